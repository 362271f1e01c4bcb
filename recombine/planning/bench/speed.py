"""How fast: the machine's ceiling, runs side by side against a plain loop, compilation.

Each function measures one thing and gives rows: what, how much, the target where there is one, and whether it is met.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.fast import Fast
from recombine.parts.recipes.paper import Paper
from recombine.planning.bench import plain
from recombine.sweeps.run import Run, paper, to_json
from recombine.training import device, trainer
from recombine.training.cost import Work

Row = dict[str, Any]
# The public code (scale-compositionality) on one H200 with jax 0.11.2, one run at a time; its seconds to the published
# quality are computed, 290,000 steps at that speed. Neither counts compilation, nor do ours.
PUBLIC_STEPS, PUBLIC_SECONDS, PUBLISHED_R2 = 933, 311.0, 0.9967


def row(
    name: str,
    value: float,
    unit: str,
    target: str = "",
    reached: bool | None = None,
    note: str = "",
) -> Row:
    """One measured number."""
    return {
        "name": name,
        "value": float(value),
        "unit": unit,
        "target": target,
        "reached": reached,
        "note": note,
    }


def seeds(run: Run, num_runs: int, first: int = 0) -> list[Run]:
    """The same run with several seeds."""
    return [dataclasses.replace(run, seed=first + i) for i in range(num_runs)]


def measure(runs: list[Run], again: bool = True) -> trainer.Trained:
    """Train one program twice and keep the faster time: the first call of a process also sets up the device."""
    ready = trainer.prepare(runs)
    times = [trainer.advance(ready) for _ in range(2 if again else 1)]
    return min(times, key=lambda trained: trained.seconds)


def last(trained: trainer.Trained, column: str) -> np.ndarray:
    """A column of every run's last row."""
    return np.array([rows[-1][column] for rows in trained.rows])


def ceiling() -> list[Row]:
    """The rate of one large matrix product, the most that any program here can reach."""
    size, found = (1024 if device.on_cpu() else 8192), []
    for dtype in (jnp.float32,) if device.on_cpu() else (jnp.float32, jnp.bfloat16):
        x = jax.random.normal(jax.random.key(0), (size, size), dtype)
        product = jax.jit(lambda x, y: (x @ y) * jnp.asarray(0.01, x.dtype))
        y = product(x, x).block_until_ready()
        count, clock = 0, time.perf_counter()
        while time.perf_counter() - clock < 1:
            for _ in range(10):
                y = product(x, y)
            y.block_until_ready()
            count += 10
        rate = 2 * size**3 * count / (time.perf_counter() - clock) / 1e12
        found.append(row(f"matrix product, {x.dtype.name}, {size} cubed", rate, "TFLOP/s"))
    return found


def throughput(best: float, num_steps: int = 5000, widths: tuple[int, ...] = (24, 48)) -> list[Row]:
    """The paper's student and recipe, in bfloat16 and float32, at equal steps and with ever more runs in a program."""
    base = paper(num_steps=num_steps, num_evals=1, diagnostics=())
    low = dataclasses.replace(base, recipe=Paper(precision="bfloat16"))
    full, fast = measure(seeds(base, 12), again=False), measure(seeds(low, 12), again=False)
    rates = {12: 12 * num_steps / fast.seconds}
    for width in widths:
        short = dataclasses.replace(low, num_steps=max(1, num_steps // 5))
        rates[width] = width * short.num_steps / measure(seeds(short, width)).seconds
    found = [row("Paper, float32, 12 runs", 12 * num_steps / full.seconds, "run-steps/s")]
    for width, rate in rates.items():
        found.append(row(f"Paper, bfloat16, {width} runs", rate, "run-steps/s"))
    rate = max(rates.values())
    note = f"{PUBLIC_STEPS} steps/s is the public code, one run at a time, on one H200"
    found.append(
        row(
            "Paper, bfloat16, the best of these", rate, "run-steps/s", ">= 9300", rate >= 9300, note
        )
    )
    found.append(row("… against the public code", rate / PUBLIC_STEPS, "x"))
    found.append(
        row("… share of the ceiling", 100 * rate * Work.of(low).flops / (best * 1e12), "%")
    )
    exact, rounded = last(full, "test/r2").mean(), last(fast, "test/r2").mean()
    found.append(row(f"Paper, test R2 after {num_steps:,} steps, float32", exact, "R2"))
    gap = abs(rounded - exact)
    found.append(row("… bfloat16 differs by", gap, "in R2", "<= 0.002", bool(gap <= 0.002)))
    return found


def decodability(run: Run, num_runs: int, num_steps: int) -> list[Row]:
    """What one evaluation's probe of all layers and modules costs, against the training of a run."""
    short = dataclasses.replace(run, num_steps=4, num_evals=4)
    probed = measure(seeds(short, num_runs)).seconds
    without = measure(seeds(dataclasses.replace(short, diagnostics=()), num_runs)).seconds
    trained = dataclasses.replace(run, num_steps=num_steps, num_evals=1, diagnostics=())
    training = measure(seeds(trained, num_runs), again=False).seconds
    training *= run.num_steps / num_steps
    share = 100 * (probed - without) / short.num_evals / training
    note = f"probe {(probed - without) / short.num_evals / num_runs * 1e3:.1f} ms a run, {run.num_steps:,} steps"
    target, met = ("", None) if device.on_cpu() else ("< 2", share < 2)
    return [
        row(
            "probe of all layers, per evaluation, of a run's training",
            share,
            "%",
            target,
            met,
            note,
        )
    ]


def compilation(run: Run) -> list[Row]:
    """Seconds until a program is ready: in a first process, and in a second one that finds it on disk."""
    code = (
        "import json, sys; from recombine import find, run, trainer; from recombine.planning.bench import speed; "
        "known = {name: part for kind in discovery.parts().values() for name, part in kind.items()}; "
        "base = run.from_json(json.loads(sys.argv[1]), {'Run': run.Run, **known}); "
        "print(trainer.prepare(speed.seeds(base, 4)).compile_seconds)"
    )
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "RECOMBINE_CACHE": folder,
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        for _ in range(2):
            called = [sys.executable, "-c", code, json.dumps(to_json(run))]
            done = subprocess.run(
                called, env=environment, capture_output=True, text=True, check=True
            )
            seconds.append(float(done.stdout.split()[-1]))
    cold, warm = seconds
    return [
        row("a structure's first program, no cache", cold, "s"),
        row(
            "… in the next process, from disk",
            warm,
            "s",
            "cached",
            warm < 0.7 * cold,
            "tracing remains",
        ),
    ]


def student(widths: tuple[int, ...] | list[int], num_steps: int, recipe: Any = None) -> Run:
    """A student of the benchmark; the probe is on, as it is by default."""
    return Run(
        model=MLP(widths=tuple(widths)), recipe=recipe or Fast(), num_steps=num_steps, num_evals=1
    )


def against_plain(
    best: float,
    widths: tuple[int, ...],
    num_runs: int,
    seconds: float = 1.0,
    recipes: Any = None,
    alone: bool = True,
) -> list[Row]:
    """Run-steps per second of one program, and of one run alone, against the plain loop."""
    found = []
    for recipe in recipes or (Fast(), Paper()):
        for width in widths:
            run = dataclasses.replace(student((width,) * 3, 100, recipe), diagnostics=())
            competitor = plain.loop(run)
            run = dataclasses.replace(run, num_steps=max(30, int(competitor(0.2) * seconds)))
            ready = {
                n: trainer.prepare(seeds(run, n)) for n in ((1, num_runs) if alone else (num_runs,))
            }
            loops, rates = [], dict.fromkeys(ready, 0.0)
            for _ in range(3):  # in turn, and the best of each: other work on the machine hits both
                loops.append(competitor(seconds))
                for n, one in ready.items():
                    rates[n] = max(rates[n], n * run.num_steps / trainer.advance(one).seconds)
            loop = max(loops)
            name = f"{type(recipe).__name__}, 3 layers of {width}"
            ratio = rates[num_runs] / loop
            target, met = (">= 2", ratio >= 2) if device.on_cpu() and width <= 128 else ("", None)
            found.append(row(f"{name}: plain loop", loop, "steps/s"))
            found.append(row(f"… {num_runs} runs in one program", ratio, "x", target, met))
            share = 100 * rates[num_runs] * Work.of(run).flops / (best * 1e12)
            found.append(row("… share of the ceiling", share, "%"))
            if alone:
                note = "no gain" if rates[1] < 1.1 * loop else ""
                found.append(row("… one run alone", rates[1] / loop, "x", note=note))
    return found
