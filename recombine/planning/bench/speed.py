"""Speed: the peak of the device, whole sweeps compared with a plain loop, compilation.

Each function measures one thing and returns rows: name, value, unit, target if there is one, and
whether it is reached.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.fast import Fast
from recombine.parts.recipes.paper import Paper
from recombine.planning.bench import plain_loop
from recombine.sweeps.discovery import parts
from recombine.sweeps.run import Run, from_json, paper, to_json
from recombine.training import device, trainer
from recombine.training.cost import Work

Row = dict[str, Any]
# The public code (scale-compositionality) on one H200 with jax 0.11.2, one run at a time, without
# compilation. The seconds to the published score are computed: 290,000 steps at that speed.
PUBLIC_STEPS = 933  # per second
PUBLIC_SECONDS = 311.0
PUBLISHED_R2 = 0.9967
MIN_STEPS = 9300  # run-steps per second with the paper's recipe
MAX_PRECISION_GAP = 0.002  # in R2, between bfloat16 and float32
MAX_PROBE_PERCENT = 2  # of a run's training time
MAX_CACHED_FRACTION = 0.7  # of the first compilation, in a process that finds the program on disk
MIN_SPEEDUP = 2  # over the plain loop, on a CPU
MAX_SMALL_WIDTH = 128  # of students with that target
NO_GAIN = 1.1  # a smaller ratio is marked


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


def measure(runs: list[Run], again: bool = True) -> trainer.TrainedChunk:
    """Train a program, and again if asked to; return the faster training.

    The first training of a process also initializes the device.
    """
    ready = trainer.prepare(runs)
    trained = [trainer.train_prepared(ready) for _ in range(2 if again else 1)]
    return min(trained, key=lambda result: result.seconds)


def last(trained: trainer.TrainedChunk, column: str) -> np.ndarray:
    """A column of every run's last row."""
    return np.array([rows[-1][column] for rows in trained.rows])


def percent_of_peak(run: Run, run_steps_per_second: float, peak: float) -> float:
    """The operations of training, in percent of the peak in TFLOP/s."""
    return 100 * run_steps_per_second * Work.of(run).flops / (peak * 1e12)


def matrix_product() -> list[Row]:
    """Measure one large matrix product: an upper bound for any program."""
    size = 1024 if device.on_cpu() else 8192
    types = (jnp.float32,) if device.on_cpu() else (jnp.float32, jnp.bfloat16)
    rows = []
    for dtype in types:
        x = jax.random.normal(jax.random.key(0), (size, size), dtype)
        product = jax.jit(lambda x, y: (x @ y) * jnp.asarray(0.01, x.dtype))
        y = product(x, x).block_until_ready()
        num_products = 0
        start = time.perf_counter()
        while time.perf_counter() - start < 1:
            for _ in range(10):
                y = product(x, y)
            y.block_until_ready()
            num_products += 10
        rate = 2 * size**3 * num_products / (time.perf_counter() - start) / 1e12
        rows.append(row(f"matrix product, {x.dtype.name}, {size}x{size}", rate, "TFLOP/s"))
    return rows


def throughput(peak: float, num_steps: int = 5000, widths: tuple[int, ...] = (24, 48)) -> list[Row]:
    """Train the paper's student and recipe in float32 and bfloat16, with more and more runs."""
    base = paper(num_steps=num_steps, num_evals=1, diagnostics=())
    low = dataclasses.replace(base, recipe=Paper(precision="bfloat16"))
    float32 = measure(seeds(base, 12), again=False)
    bfloat16 = measure(seeds(low, 12), again=False)
    rates = {12: 12 * num_steps / bfloat16.seconds}
    for width in widths:
        short = dataclasses.replace(low, num_steps=max(1, num_steps // 5))
        rates[width] = width * short.num_steps / measure(seeds(short, width)).seconds
    best = max(rates.values())
    r2_float32 = last(float32, "test/r2").mean()
    gap = abs(last(bfloat16, "test/r2").mean() - r2_float32)
    public = f"public code: {PUBLIC_STEPS} steps/s on one H200, one run at a time"
    return [
        row("Paper, float32, 12 runs", 12 * num_steps / float32.seconds, "run-steps/s"),
        *(
            row(f"Paper, bfloat16, {width} runs", rate, "run-steps/s")
            for width, rate in rates.items()
        ),
        row(
            "Paper, bfloat16, best of these",
            best,
            "run-steps/s",
            f">= {MIN_STEPS}",
            best >= MIN_STEPS,
            public,
        ),
        row("… compared with the public code", best / PUBLIC_STEPS, "x"),
        row("… share of the upper bound", percent_of_peak(low, best, peak), "%"),
        row(f"Paper, test R2 after {num_steps:,} steps, float32", r2_float32, "R2"),
        row(
            "… difference with bfloat16",
            gap,
            "in R2",
            f"<= {MAX_PRECISION_GAP}",
            bool(gap <= MAX_PRECISION_GAP),
        ),
    ]


def decodability(run: Run, num_runs: int, num_steps: int) -> list[Row]:
    """Measure the probe of all layers and modules in an evaluation, and the training of a run.

    Training is measured for `num_steps` and scaled to the steps of the run.
    """
    short = dataclasses.replace(run, num_steps=4, num_evals=4)
    with_probe = measure(seeds(short, num_runs)).seconds
    without_probe = measure(seeds(dataclasses.replace(short, diagnostics=()), num_runs)).seconds
    probe = (with_probe - without_probe) / short.num_evals
    trained = dataclasses.replace(run, num_steps=num_steps, num_evals=1, diagnostics=())
    seconds = measure(seeds(trained, num_runs), again=False).seconds
    training = seconds * run.num_steps / num_steps
    percent = 100 * probe / training
    target = "" if device.on_cpu() else f"< {MAX_PROBE_PERCENT}"
    reached = None if device.on_cpu() else percent < MAX_PROBE_PERCENT
    name = "one probe of all layers, as a share of a run's training time"
    note = f"probe: {probe / num_runs * 1e3:.1f} ms per run; training: {run.num_steps:,} steps"
    return [row(name, percent, "%", target, reached, note)]


def compilation(run: Run) -> list[Row]:
    """Measure the seconds until a program is ready, in two processes with one program cache."""
    first, second = _compile_seconds(run, num_processes=2)
    limit = MAX_CACHED_FRACTION * first
    return [
        row("first compilation, empty program cache", first, "s"),
        row(
            "… in the next process, from the program cache",
            second,
            "s",
            f"< {limit:.3g}",
            second < limit,
            "tracing is not cached",
        ),
    ]


def _compile_seconds(run: Run, num_processes: int) -> list[float]:
    """Compile a run in new processes, one after the other, that share an empty program cache."""
    script = f"from {__name__} import print_compile_seconds; print_compile_seconds()"
    command = [sys.executable, "-c", script, json.dumps(to_json(run))]
    seconds = []
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "RECOMBINE_CACHE": cache,
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        for _ in range(num_processes):
            process = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            seconds.append(float(process.stdout.split()[-1]))
    return seconds


def print_compile_seconds() -> None:
    """Compile the run in the first command line argument, and print the seconds."""
    classes: dict[str, type] = {"Run": Run}
    for classes_of_kind in parts().values():
        classes |= classes_of_kind
    run = from_json(json.loads(sys.argv[1]), classes)
    sys.stdout.write(f"{trainer.prepare(seeds(run, 4)).compile_seconds}\n")


def student(widths: Sequence[int], num_steps: int, recipe: Any = None) -> Run:
    """A student of the benchmark, with the default diagnostics."""
    return Run(
        model=MLP(widths=tuple(widths)), recipe=recipe or Fast(), num_steps=num_steps, num_evals=1
    )


def compared_with_loop(
    peak: float,
    widths: Sequence[int],
    num_runs: int,
    seconds: float = 1.0,
    recipes: Sequence[Any] | None = None,
    alone: bool = True,
) -> list[Row]:
    """Train `num_runs` runs in one program, and one run if `alone`; compare with the plain loop."""
    rows = []
    for recipe in recipes or (Fast(), Paper()):
        for width in widths:
            run = dataclasses.replace(student((width,) * 3, 100, recipe), diagnostics=())
            rows += _loop_rows(run, width, peak, num_runs, seconds, alone)
    return rows


def _loop_rows(
    run: Run, width: int, peak: float, num_runs: int, seconds: float, alone: bool
) -> list[Row]:
    """The rows of one student and recipe."""
    loop = plain_loop.compile_loop(run)
    run = dataclasses.replace(run, num_steps=max(30, int(loop(0.2) * seconds)))
    together = trainer.prepare(seeds(run, num_runs))
    single = trainer.prepare(seeds(run, 1)) if alone else None
    loop_rate = together_rate = single_rate = 0.0
    for _ in range(3):  # in turn, and the best of each: other processes slow all of them
        loop_rate = max(loop_rate, loop(seconds))
        if single:
            single_rate = max(single_rate, run.num_steps / trainer.train_prepared(single).seconds)
        rate = num_runs * run.num_steps / trainer.train_prepared(together).seconds
        together_rate = max(together_rate, rate)
    speedup = together_rate / loop_rate
    has_target = device.on_cpu() and width <= MAX_SMALL_WIDTH
    rows = [
        row(f"{type(run.recipe).__name__}, 3 layers of {width}: plain loop", loop_rate, "steps/s"),
        row(
            f"… {num_runs} runs in one program, compared with the loop",
            speedup,
            "x",
            f">= {MIN_SPEEDUP}" if has_target else "",
            speedup >= MIN_SPEEDUP if has_target else None,
        ),
        row("… share of the upper bound", percent_of_peak(run, together_rate, peak), "%"),
    ]
    if single:
        note = "no gain" if single_rate < NO_GAIN * loop_rate else ""
        ratio = single_rate / loop_rate
        rows.append(row("… one run alone, compared with the loop", ratio, "x", note=note))
    return rows
