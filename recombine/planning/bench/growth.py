"""How cost grows with width, depth, M, K and runs in a program; a fitted cost model; memory.

The trainer uses the fitted model to predict the time left. It is checked on a run that was not used
for the fit.
"""

import dataclasses
import sys
import time
from typing import Any, NamedTuple

from recombine.basics.suggest import counted
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

MAX_COST_ERROR = 1.5  # the ratio of predicted and measured seconds
MAX_SWEEP_RATIO = 1.25  # seconds per run of a larger sweep, relative to a smaller one
MAX_MEMORY_RATIO = 1.05  # with many more possible tasks
MAX_MEMORY_GROWTH = 64  # MiB of the host


class Cell(NamedTuple):
    """A run to measure, with so many seeds in one program."""

    name: str
    run: Run
    num_runs: int


def base(num_steps: int) -> Run:
    """The run that is varied: the paper's batch on a GPU, the quickstart's on a CPU."""
    on_cpu = device.on_cpu()
    return Run(
        family=Hyperteacher(num_modules=16),
        model=MLP(widths=(64 if on_cpu else 256,) * 3),
        diagnostics=(),
        num_steps=num_steps,
        num_evals=1,
        num_tasks=64 if on_cpu else 128,
        num_points=8 if on_cpu else 16,
        num_eval_tasks=16,
    )


def grid(num_steps: int) -> tuple[list[Cell], Cell]:
    """The cells that the cost model is fitted to, and the one that it is checked on."""
    on_cpu = device.on_cpu()
    start = base(num_steps)
    base_width = start.model.widths[0]  # pyright: ignore[reportAttributeAccessIssue]
    usual_runs = 4 if on_cpu else 16

    def cell(name: str, num_runs: int = usual_runs, **changes: Any) -> Cell:
        return Cell(name, dataclasses.replace(start, **changes), num_runs)

    def mlp(width: int, depth: int) -> MLP:
        return MLP(widths=(width,) * depth)

    cells = []
    for width in (16, 64, 128) if on_cpu else (64, 256, 1024, 2048):
        num_runs = 4 if width > 1024 else usual_runs
        cells.append(cell(f"width {width}, depth 3", num_runs, model=mlp(width, 3)))
    for depth in (1, 6):
        cells.append(cell(f"width {base_width}, depth {depth}", model=mlp(base_width, depth)))
    for num_modules in (8, 32):
        cells.append(cell(f"M={num_modules}", family=Hyperteacher(num_modules=num_modules)))
    for num_hot in (2, 5):
        cells.append(cell(f"K={num_hot}", family=Hyperteacher(num_hot=num_hot, max_tasks=5000)))
    cells.append(cell("recipe Paper", recipe=Paper()))
    half = base_width // 2
    for num_runs in (1, 2, 8) if on_cpu else (1, 4, 64, 256):
        name = f"{counted(num_runs, 'run')} in a program, width {half}"
        cells.append(cell(name, num_runs, model=mlp(half, 3)))
    width = 3 * base_width // 2
    other = cell(
        f"width {width}, depth 4, M=24",
        2 * usual_runs,
        model=mlp(width, 4),
        family=Hyperteacher(24),
    )
    return cells, other


def growth(num_steps: int) -> tuple[list[Row], cost.Cost]:
    """Measure the seconds of every cell, fit the cost model, and check it on another cell."""
    cells, other = grid(num_steps)
    ready = [trainer.prepare(seeds(cell.run, cell.num_runs)) for cell in [*cells, other]]
    # The best of three: the first training of a program also initializes it.
    step_seconds = [
        min(trainer.train_prepared(program).seconds for _ in range(3))
        / len(program.runs)
        / num_steps
        for program in ready
    ]
    compile_seconds = sum(program.compile_seconds for program in ready) / len(ready)
    works = [Work.of(cell.run) for cell in cells]
    num_runs = [cell.num_runs for cell in cells]
    model = cost.fit(works, num_runs, step_seconds[:-1], compile_seconds)
    rows = []
    for cell, seconds in zip([*cells, other], step_seconds, strict=True):
        predicted = model.step(cell.run, cell.num_runs)
        note = f"cost model: {1000 * predicted:.3f} s; {counted(cell.num_runs, 'run')}"
        if cell is other:
            note += "; not used for the fit"
        rows.append(row(cell.name, 1000 * seconds, "s per run per 1,000 steps", note=note))
    ratio = model.step(other.run, other.num_runs) / step_seconds[-1]
    is_close = 1 / MAX_COST_ERROR <= ratio <= MAX_COST_ERROR
    name = "predicted / measured, for the run not used for the fit"
    rows.append(row(name, ratio, "x", "0.67 to 1.5", is_close))
    return rows, model


def linear(num_steps: int, num_runs: int) -> list[Row]:
    """Measure whole sweeps: four times the runs should take four times the time."""
    run = base(num_steps)
    seconds = {}
    for number in (num_runs, num_runs, 4 * num_runs):  # the first sweep compiles
        start = time.perf_counter()
        scheduler.train(seeds(run, number), max_width=num_runs, progress=False)
        seconds[number] = time.perf_counter() - start
    ratio = seconds[4 * num_runs] / seconds[num_runs] / 4
    name = f"seconds per run in a sweep of {4 * num_runs} runs, relative to {num_runs} runs"
    return [row(name, ratio, "x", f"<= {MAX_SWEEP_RATIO}", ratio <= MAX_SWEEP_RATIO)]


def memory(max_tasks: int = 20_000) -> list[Row]:
    """Measure memory: it should depend on the tasks that are listed, not on all possible tasks."""
    rows = []
    sizes = []
    peaks = [_peak_memory()]
    for num_hot in (3, 10):
        family = Hyperteacher(num_modules=200, num_hot=num_hot, max_tasks=max_tasks)
        run = dataclasses.replace(base(10), family=family, recipe=Fast())
        ready = trainer.prepare(seeds(run, 4))
        trainer.train_prepared(ready)
        sizes.append(device.needed_bytes(ready.program.advance) / 2**20)
        peaks.append(_peak_memory())
        note = f"{family.num_tasks:.3g} tasks, of which {max_tasks:,} are listed"
        rows.append(row(f"M=200, K={num_hot}: memory of one call", sizes[-1], "MiB", note=note))
    ratio = sizes[1] / sizes[0]
    target = f"<= {MAX_MEMORY_RATIO}"
    rows.append(row("… K=10 relative to K=3", ratio, "x", target, ratio <= MAX_MEMORY_RATIO))
    grown = peaks[2] - peaks[1]
    rows.append(
        row(
            "… growth of the host's peak memory with K=10",
            grown,
            "MiB",
            f"<= {MAX_MEMORY_GROWTH}",
            grown <= MAX_MEMORY_GROWTH,
            f"with K=3 and the first program of this shape: {peaks[1] - peaks[0]:.0f} MiB",
        )
    )
    return rows


def _peak_memory() -> float:
    """The host's peak memory so far in MiB; 0 if the system does not report it."""
    if resource is None:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
