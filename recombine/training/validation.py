"""What is refused before anything is compiled: parts that do not go together, arrays beyond the memory, a support that
cannot be satisfied."""

import math
from collections.abc import Iterable

import jax

from recombine.basics.errors import InputError, require
from recombine.parts.prng import new_key
from recombine.sweeps.run import Run, structure
from recombine.training import device, program
from recombine.training.task_sampler import Splits, split_all

# What to lower when memory is short; the keys are those of `program.least_bytes`.
REMEDIES = {
    "the network and its optimiser": "the model's widths, or the length of the code (num_pairs of FewShot)",
    "a batch of tasks": "num_tasks, num_points, or the width of the observation or of the code",
    "the tasks of an evaluation": "num_eval_tasks, num_eval_points, or the width of the observation or of the code",
}
MAX_STEPS = 2**31 - 1  # steps are counted in 32 bits


def check_runs(runs: Iterable[Run]) -> Splits:
    """Refuse a sweep with parts that do not go together, before anything is compiled: a code that the model cannot
    read, arrays beyond the memory, a support that cannot be satisfied. What it needs for that, the splits of all runs,
    is returned, so that tasks are split only once."""
    runs = list(runs)
    limit = device.total_bytes()
    for run in {structure(run): run for run in runs}.values():
        require(
            run.num_steps <= MAX_STEPS,
            f"num_steps={run.num_steps} is more than the {MAX_STEPS} that are counted",
        )
        try:
            drawn, needs = _drawn_bytes(run), program.least_bytes(run)
        except InputError:
            raise
        except Exception as error:
            names = ", ".join(type(part).__name__ for part in (run.family, run.encoding, run.model))
            raise InputError(
                f"{names} do not work together ({type(error).__name__}: {' '.join(str(error).split())[:200]}): "
                "`recombine check FILE` tells which promise a part of your own breaks"
            ) from error
        require(
            limit is None or drawn <= limit,
            f"what {type(run.family).__name__} and {type(run.encoding).__name__} draw takes {drawn / 1e9:.3g} GB, and "
            f"there are only {(limit or 0) / 1e9:.3g} GB: lower their sizes",
        )
        most = max(needs, key=lambda what: needs[what])
        require(
            limit is None or sum(needs.values()) <= limit,
            f"one run needs at least {sum(needs.values()) / 1e9:.3g} GB, most of it for {most}, and there are only "
            f"{(limit or 0) / 1e9:.3g} GB: lower {REMEDIES[most]}",
        )
    return split_all(runs)


def _drawn_bytes(run: Run) -> int:
    """The memory of a run's hidden teacher and of its encoding's arrays, from their shapes."""
    key = new_key(0)
    drawn = jax.eval_shape(lambda: (run.family.init(key), run.encoding.init(key, run.family)))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(drawn))
