"""How cost grows: seconds a run against width, depth, M, K and runs in a program; the model fitted to them; memory.

The fitted model is what the engine tells the time left with. It is checked on a run that it was not fitted on.
"""

import concurrent.futures
import dataclasses
import resource
from typing import Any

from recombine import cost, device, trainer
from recombine.bench.speed import Row, measure, row, seeds
from recombine.cost import Work
from recombine.families.hyperteacher import Hyperteacher
from recombine.models.mlp import MLP
from recombine.recipe import Fast, Paper
from recombine.run import Run

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


def grid(num_steps: int, quick: bool = False) -> tuple[list[Cell], Cell]:
    """The cells that the model is fitted on, and the one that it is checked on."""
    start, cells = base(num_steps), []
    first = start.model.widths[0]  # pyright: ignore[reportAttributeAccessIssue]
    runs = 4 if device.on_cpu() else 16

    def cell(name: str, num_runs: int = runs, **changes: Any) -> Cell:
        return name, dataclasses.replace(start, **changes), num_runs

    def mlp(width: int, depth: int) -> MLP:
        return MLP(widths=(width,) * depth)

    for width in (first // 4, first, 2 * first) if quick or device.on_cpu() else (64, 256, 1024, 2048):
        cells.append(cell(f"width {width}, depth 3", 4 if width > 1024 else runs, model=mlp(width, 3)))
    if not quick:
        cells += [cell(f"width {first}, depth {depth}", model=mlp(first, depth)) for depth in (1, 6)]
        cells += [cell(f"M={m}", family=Hyperteacher(num_modules=m)) for m in (8, 32)]
        cells += [cell(f"K={k}", family=Hyperteacher(num_hot=k, max_tasks=5000)) for k in (2, 5)]
        cells += [cell("recipe Paper", recipe=Paper())]
        for many in (1, 2, 8) if device.on_cpu() else (1, 4, 64, 256):
            cells.append(cell(f"{many} runs in a program, width {first // 2}", many, model=mlp(first // 2, 3)))
    width = 3 * first // 2
    return cells, cell(f"width {width}, depth 4, M=24", 2 * runs, model=mlp(width, 4), family=Hyperteacher(24))


def growth(num_steps: int, quick: bool = False) -> tuple[list[Row], cost.Cost]:
    """Seconds per run and 1,000 steps for every cell; then the fit, and what it says of a cell that it never saw."""
    cells, other = grid(num_steps, quick)
    with concurrent.futures.ThreadPoolExecutor(device.num_compilers()) as pool:
        ready = list(pool.map(lambda cell: trainer.prepare(seeds(cell[1], cell[2])), [*cells, other]))
    seconds = []
    for one in ready:  # twice: the first call of a program also sets it up
        seconds.append(min(trainer.train(one).seconds for _ in range(2)) / len(one.runs) / num_steps)
    works = [Work.of(run) for _, run, _ in cells]
    compile_seconds = sum(one.compile_seconds for one in ready) / len(ready)
    model = cost.fit(works, [num_runs for *_, num_runs in cells], seconds[:-1], compile_seconds)
    found = []
    for (name, run, num_runs), measured in zip([*cells, other], seconds, strict=True):
        expected = model.step(run, num_runs)
        note = f"model {1000 * expected:.3f} s, {num_runs} runs" + ", not fitted on" * (run is other[1])
        found.append(row(name, 1000 * measured, "s per run and 1,000 steps", note=note))
    ratio = model.step(other[1], other[2]) / seconds[-1]
    held = 2 / 3 <= ratio <= 1.5
    found.append(row("predicted / measured, on the cell not fitted on", ratio, "x", "0.67 to 1.5", held))
    return found, model


def linear(num_steps: int, num_runs: int) -> list[Row]:
    """A sweep of four times the runs takes four times the time."""
    run = base(num_steps)
    small = measure(seeds(run, num_runs)).seconds
    large = sum(measure(seeds(run, num_runs, first=num_runs * i)).seconds for i in range(4))
    ratio = large / small / 4
    name = f"time of a sweep of {4 * num_runs} runs against {num_runs}, per run"
    return [row(name, ratio, "x", "0.8 to 1.25", 0.8 <= ratio <= 1.25)]


def memory(max_tasks: int = 20_000) -> list[Row]:
    """Memory does not depend on how many tasks there could be, only on how many are listed."""
    found, sizes = [], []
    for num_hot in (3, 10):
        family = Hyperteacher(num_modules=200, num_hot=num_hot, max_tasks=max_tasks)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ready = trainer.prepare(seeds(dataclasses.replace(base(10), family=family, recipe=Fast()), 4))
        trainer.train(ready)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        sizes.append(device.needed_bytes(ready.block) / 2**20)
        note = f"{family.num_tasks:.3g} tasks, of which {max_tasks:,} are listed; host's peak grew by {grown:.0f} MiB"
        found.append(row(f"M=200, K={num_hot}: a program's memory, 4 runs", sizes[-1], "MiB", note=note))
    ratio = sizes[1] / sizes[0]
    return [*found, row("… K=10 against K=3", ratio, "x", "<= 1.05", ratio <= 1.05)]
