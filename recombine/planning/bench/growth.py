"""How cost grows: seconds a run against width, depth, M, K and runs in a program; the model fitted to them; memory.

The fitted model is what the engine tells the time left with. It is checked on a run that it was not fitted on.
"""

import dataclasses
import sys
import time
from typing import Any

from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.fast import Fast
from recombine.parts.recipes.paper import Paper
from recombine.planning.bench.speed import Row, row, seeds
from recombine.sweeps.run import Run
from recombine.training import cost, device, scheduler, trainer
from recombine.training.cost import Work

try:
    import resource
except ImportError:  # not on Windows
    resource = None

Cell = tuple[str, Run, int]


def base(num_steps: int) -> Run:
    """The run that is varied: the paper's batch on a GPU, the quickstart's on a CPU."""
    tasks, points = (64, 8) if device.on_cpu() else (128, 16)
    size = 64 if device.on_cpu() else 256
    return Run(
        family=Hyperteacher(num_modules=16),
        model=MLP(widths=(size,) * 3),
        diagnostics=(),
        num_steps=num_steps,
        num_evals=1,
        num_tasks=tasks,
        num_points=points,
        num_eval_tasks=16,
    )


def grid(num_steps: int) -> tuple[list[Cell], Cell]:
    """The cells that the model is fitted on, and the one that it is checked on."""
    start, cells = base(num_steps), []
    first = start.model.widths[0]  # pyright: ignore[reportAttributeAccessIssue]
    runs = 4 if device.on_cpu() else 16

    def cell(name: str, num_runs: int = runs, **changes: Any) -> Cell:
        return name, dataclasses.replace(start, **changes), num_runs

    def mlp(width: int, depth: int) -> MLP:
        return MLP(widths=(width,) * depth)

    for width in (16, 64, 128) if device.on_cpu() else (64, 256, 1024, 2048):
        cells.append(
            cell(f"width {width}, depth 3", 4 if width > 1024 else runs, model=mlp(width, 3))
        )
    cells += [cell(f"width {first}, depth {depth}", model=mlp(first, depth)) for depth in (1, 6)]
    cells += [cell(f"M={m}", family=Hyperteacher(num_modules=m)) for m in (8, 32)]
    cells += [cell(f"K={k}", family=Hyperteacher(num_hot=k, max_tasks=5000)) for k in (2, 5)]
    cells += [cell("recipe Paper", recipe=Paper())]
    for many in (1, 2, 8) if device.on_cpu() else (1, 4, 64, 256):
        cells.append(
            cell(f"{many} runs in a program, width {first // 2}", many, model=mlp(first // 2, 3))
        )
    width = 3 * first // 2
    return cells, cell(
        f"width {width}, depth 4, M=24", 2 * runs, model=mlp(width, 4), family=Hyperteacher(24)
    )


def growth(num_steps: int) -> tuple[list[Row], cost.Cost]:
    """Seconds per run and 1,000 steps for every cell; then the fit, and what it says of a cell that it never saw."""
    cells, other = grid(num_steps)
    ready = [trainer.prepare(seeds(run, num_runs)) for _, run, num_runs in [*cells, other]]
    seconds = []
    for one in ready:  # the best of three: the first call of a program also sets it up
        seconds.append(
            min(trainer.advance(one).seconds for _ in range(3)) / len(one.runs) / num_steps
        )
    works = [Work.of(run) for _, run, _ in cells]
    compile_seconds = sum(one.compile_seconds for one in ready) / len(ready)
    model = cost.fit(works, [num_runs for *_, num_runs in cells], seconds[:-1], compile_seconds)
    found = []
    for (name, run, num_runs), measured in zip([*cells, other], seconds, strict=True):
        expected = model.step(run, num_runs)
        note = f"model {1000 * expected:.3f} s, {num_runs} runs" + ", not fitted on" * (
            run is other[1]
        )
        found.append(row(name, 1000 * measured, "s per run and 1,000 steps", note=note))
    ratio = model.step(other[1], other[2]) / seconds[-1]
    held = 2 / 3 <= ratio <= 1.5
    found.append(
        row("predicted / measured, on the cell not fitted on", ratio, "x", "0.67 to 1.5", held)
    )
    return found, model


def linear(num_steps: int, num_runs: int) -> list[Row]:
    """A whole sweep of four times the runs takes four times the time: planned, trained and turned into rows."""
    run, seconds = base(num_steps), {}
    for count in (num_runs, num_runs, 4 * num_runs):  # the first one compiles
        clock = time.perf_counter()
        scheduler.train(seeds(run, count), max_width=num_runs, progress=False)
        seconds[count] = time.perf_counter() - clock
    ratio = seconds[4 * num_runs] / seconds[num_runs] / 4
    name = f"seconds per run of a sweep of {4 * num_runs} runs, against {num_runs}"
    return [row(name, ratio, "x", "<= 1.25", ratio <= 1.25)]


def memory(max_tasks: int = 20_000) -> list[Row]:
    """Memory does not depend on how many tasks there could be, only on how many are listed."""
    found, sizes, peaks = [], [], [_peak()]
    for num_hot in (3, 10):
        family = Hyperteacher(num_modules=200, num_hot=num_hot, max_tasks=max_tasks)
        ready = trainer.prepare(
            seeds(dataclasses.replace(base(10), family=family, recipe=Fast()), 4)
        )
        trainer.advance(ready)
        sizes.append(device.needed_bytes(ready.program.advance) / 2**20)
        peaks.append(_peak())
        note = f"{family.num_tasks:.3g} tasks, of which {max_tasks:,} are listed"
        found.append(row(f"M=200, K={num_hot}: memory of one call", sizes[-1], "MiB", note=note))
    ratio, grown = sizes[1] / sizes[0], peaks[2] - peaks[1]
    found.append(row("… K=10 against K=3", ratio, "x", "<= 1.05", ratio <= 1.05))
    note = f"K=3, with the first program of its shape, grew it by {peaks[1] - peaks[0]:.0f} MiB"
    return [*found, row("… the host's peak then grew by", grown, "MiB", "<= 64", grown <= 64, note)]


def _peak() -> float:
    """The host's peak memory so far, in MiB; 0 where the system does not tell."""
    if resource is None:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
