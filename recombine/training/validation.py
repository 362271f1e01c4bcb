"""Checks of a sweep before anything is compiled.

Refused are parts that do not work together, arrays that do not fit in memory, and supports that
cannot be satisfied.
"""

from collections.abc import Iterable

import jax

from recombine.basics.errors import InputError, require
from recombine.parts.prng import new_key
from recombine.sweeps.run import Run, structure
from recombine.training import device, program
from recombine.training.task_sampler import Splits, split_all

# What to lower if memory is short, by the purposes in `program.min_memory_bytes`.
REMEDIES = {
    "the network and its optimizer": (
        "the model's widths, or the length of the code (num_pairs of FewShot)"
    ),
    "the model's memory between steps": "num_tasks, num_points, or the model's widths",
    "a batch of tasks": "num_tasks, num_points, or the width of the observation or of the code",
    "the tasks of an evaluation": (
        "num_eval_tasks, num_eval_points, or the width of the observation or of the code"
    ),
}
MAX_STEPS = 2**31 - 1  # steps are counted in 32 bits
MAX_REASON_LENGTH = 200  # characters of another library's error


def check_runs(runs: Iterable[Run]) -> Splits:
    """Refuse runs that cannot be trained, before anything is compiled.

    Returns the train/test splits of all runs. They are made for the check, and need not be made
    again.
    """
    runs = list(runs)
    memory_limit = device.total_bytes()
    run_of_structure = {structure(run): run for run in runs}
    for run in run_of_structure.values():
        require(
            run.num_steps <= MAX_STEPS,
            f"num_steps={run.num_steps} is too large: at most {MAX_STEPS} steps can be counted",
        )
        drawn_bytes, needed_bytes = _count_bytes(run)
        if memory_limit is not None:
            _check_memory(run, drawn_bytes, needed_bytes, memory_limit)
    pairs = {(structure(run), structure(run.start)): run for run in runs if run.start is not None}
    for run in pairs.values():
        _check_start(run)
    return split_all(runs)


def _check_start(run: Run) -> None:
    """Refuse a run whose network has another structure than that of the run it starts from."""
    assert run.start is not None
    own = jax.eval_shape(lambda: program.initialize(run)[0])
    other = jax.eval_shape(lambda: program.initialize(run.start)[0])  # pyright: ignore
    is_equal = jax.tree.structure(own) == jax.tree.structure(other)
    own_shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(own)]
    other_shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(other)]
    require(
        is_equal and own_shapes == other_shapes,
        f"a run with {run.model} cannot start from the network of a run with {run.start.model}, "
        f"codes {type(run.encoding).__name__} and {type(run.start.encoding).__name__}: both "
        "networks must have the same layers and shapes",
    )


def _count_bytes(run: Run) -> tuple[int, dict[str, int]]:
    """The memory of what a run draws once, and the memory that it needs at least, by purpose."""
    try:
        return _drawn_bytes(run), program.min_memory_bytes(run)
    except InputError:
        raise
    except Exception as error:
        parts = (run.family, run.encoding, run.model)
        names = ", ".join(type(part).__name__ for part in parts)
        reason = " ".join(str(error).split())[:MAX_REASON_LENGTH]
        raise InputError(
            f"{names} do not work together ({type(error).__name__}: {reason}): "
            "`recombine check FILE` shows which contract your own part breaks"
        ) from error


def _drawn_bytes(run: Run) -> int:
    """The memory of a run's hidden teacher and of its encoding's arrays, from their shapes."""
    key = new_key(0)
    drawn = jax.eval_shape(lambda: (run.family.init(key), run.encoding.init(key, run.family)))
    return program.num_bytes(drawn)


def _check_memory(
    run: Run, drawn_bytes: int, needed_bytes: dict[str, int], memory_limit: int
) -> None:
    family = type(run.family).__name__
    encoding = type(run.encoding).__name__
    available = f"only {memory_limit / 1e9:.3g} GB are available"
    require(
        drawn_bytes <= memory_limit,
        f"the arrays of {family} and {encoding} take {drawn_bytes / 1e9:.3g} GB, but {available}: "
        "lower their sizes",
    )
    total_bytes = sum(needed_bytes.values())
    largest = max(needed_bytes, key=lambda purpose: needed_bytes[purpose])
    require(
        total_bytes <= memory_limit,
        f"one run needs at least {total_bytes / 1e9:.3g} GB, most of it for {largest}, but "
        f"{available}: lower {REMEDIES[largest]}",
    )
