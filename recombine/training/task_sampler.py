"""The task tables of a family, their train/test splits, and fresh samples of tasks.

The trainer and the diagnostics use `TaskSampler` inside the compiled program. The splits are made
before, on the host.
"""

import functools
import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from recombine.basics.errors import require
from recombine.basics.random_streams import generator
from recombine.parts import conditions
from recombine.parts.protocols import (
    Batch,
    Encoding,
    Family,
    Observation,
    Part,
    Split,
    example_sampler,
)
from recombine.sweeps.run import Run


class Shared(NamedTuple):
    """What all runs of a program share: the family's task tables, and the groups of their rows."""

    table: Any
    groups: dict[str, Any]
    beyond: Any  # extrapolation tasks, which are not in the table
    beyond_groups: dict[str, Any]


class Setting(NamedTuple):
    """What a run draws once: the hidden teacher, and the encoding's own arrays."""

    world: PyTree[Array]
    encoding: PyTree[Array]


class TaskSampler:
    """Draws tasks and samples of one run, inside the compiled program.

    Diagnostics receive it as `lab` (the protocol `Lab`).
    """

    def __init__(self, run: Run, shared: Shared, split: Split, setting: Setting, net: Any = None):
        self.run = run
        self.shared = shared
        self.split = split
        self.setting = setting
        self.net = net
        self.family: Family = run.family
        self.encoding: Encoding = run.encoding
        self.world = setting.world
        self.table = shared.table

    def draw(self, key: PRNGKeyArray, rows: Int[Array, "tasks _"], num_points: int) -> Batch:
        """Fresh samples of the given rows of a task table."""

        def draw_task(keys, row):
            task = self.family.weigh(keys[0], row)
            x, y = self.family.sample(self.world, keys[1], task, num_points)
            examples = example_sampler(self.family, self.world, task)
            code = self.encoding.encode(self.setting.encoding, keys[2], task, examples)
            return Batch(x, y, code, task)

        return jax.vmap(draw_task)(jax.random.split(key, (rows.shape[0], 3)), rows)

    def pick(self, key: PRNGKeyArray, part: Part, n: int) -> Int[Array, " n"]:
        """Pick n tasks of a part, as row numbers of the table.

        No task is picked twice before every task was picked once.
        """
        if part == "train":
            first = 0
            count = self.split.num_train
        else:
            first = self.split.num_train
            count = self.split.num_test
        offset = uniform_ints(key, count, ())
        # The split's order is random, so a window of it is a draw without replacement.
        return self.split.order[first + (offset + jnp.arange(n)) % count]

    def look(self, key: PRNGKeyArray, rows: Array, net: Any = None) -> Observation:
        """Fresh samples of the given rows, with a network's predictions and activations.

        The network is the run's own, unless another one is passed.
        """
        num_points = self.run.num_eval_points
        batch = self.draw(key, rows, num_points)
        points_together = getattr(self.run.model, "together", False)
        at_once = self.run.num_points if points_together else num_points
        prediction, activations = predict(self.net if net is None else net, batch, at_once)
        return Observation(batch, prediction, activations)

    def observe(self, key: PRNGKeyArray, part: Part, n: int, net: Any = None) -> Observation:
        """The same as `look`, for n tasks of a part."""
        key_pick, key_draw = jax.random.split(key)
        return self.look(key_draw, self.table[self.pick(key_pick, part, n)], net)


Laboratory = TaskSampler  # the old name, for one more release


def predict(net: Any, batch: Batch, at_once: int | None = None) -> tuple[Any, dict[str, Array]]:
    """A network's predictions and activations for all tasks of a batch.

    Calls the network's own `many` if it has one, and otherwise vmaps over tasks. With `at_once`,
    the network sees that many points of a task at a time.
    """
    num_tasks, num_points = jax.tree.leaves(batch.x)[0].shape[:2]
    at_once = at_once or num_points
    x = jax.tree.map(lambda leaf: leaf.reshape(-1, at_once, *leaf.shape[2:]), batch.x)
    code = jnp.repeat(batch.code, num_points // at_once, axis=0)
    predict_many = net.many if hasattr(net, "many") else jax.vmap(net)
    outputs = predict_many(x, code)
    return jax.tree.map(lambda leaf: leaf.reshape(num_tasks, -1, *leaf.shape[2:]), outputs)


def uniform_ints(key: PRNGKeyArray, n: Array | int, shape: tuple[int, ...]) -> Int[Array, "..."]:
    """Uniform random integers from 0 to n - 1."""
    # While n is far below 2**32, the remainder is as uniform as jax.random.randint, and it
    # compiles faster.
    return (jax.random.bits(key, shape) % jnp.uint32(n)).astype(jnp.int32)


Splits = dict[tuple[Any, ...], tuple[Split, dict[str, Any]]]  # by `split_key`: split, its columns


def split_key(run: Run) -> tuple[Any, ...]:
    """Everything that a run's split depends on."""
    return run.family, run.support, run.frac_test, run.seed


def split_all(runs: Iterable[Run]) -> Splits:
    """The splits of all runs. Runs with the same `split_key` share one."""
    run_of_key = {split_key(run): run for run in runs}
    families = {run.family for run in run_of_key.values()}
    modules = {family: family.modules(family.tasks()) for family in families}
    return {key: make_split(run, modules[run.family]) for key, run in run_of_key.items()}


def split_bytes(splits: Splits) -> int:
    """The memory of the splits."""
    return sum(split.order.nbytes for split, _ in splits.values())


def make_split(run: Run, modules: np.ndarray) -> tuple[Split, dict[str, Any]]:
    """Split the tasks of a run into train and test.

    `modules` is the 0/1 table of tasks, of shape (tasks, modules). Also returns the columns
    `support/…`, which describe the split.
    """
    rng = generator(run.seed, "support")
    rows = _rows_of_support(run, modules)
    parts = np.asarray(run.support.parts(rows, rng, run.frac_test))
    name = type(run.support).__name__
    require(
        parts.shape == (len(modules),) and bool(np.isin(parts, (0, 1, 2)).all()),
        f"{name}.parts must mark each of the {len(modules)} tasks with "
        "0 (unused), 1 (train) or 2 (test)",
    )
    num_train = int((parts == 1).sum())
    num_test = int((parts == 2).sum())
    require(num_train > 0, f"{name} leaves no train task")
    require(num_test > 0, f"{name} leaves no test task")

    order = rng.permutation(len(parts))
    rank = np.array([2, 0, 1])[parts.astype(int)]  # train first, then test, then unused
    order = order[np.argsort(rank[order], kind="stable")]
    split: Any = (order.astype(np.int32), np.int32(num_train), np.int32(num_test))

    facts = conditions.describe(modules[parts == 1], modules[parts == 2])
    facts |= {
        "num_train": num_train,
        "num_test": num_test,
        "frac_test": num_test / (num_train + num_test),
    }
    facts |= _unseen_features(run.family, parts)
    return Split(*split), {f"support/{fact}": value for fact, value in facts.items()}


def split_digest(split: Split) -> str:
    """A hash of a split, which is in the rows of the runs that were trained on it."""
    counts = f"{int(split.num_train)} {int(split.num_test)} ".encode()
    order = np.ascontiguousarray(split.order, dtype="<i4").tobytes()
    return hashlib.sha256(counts + order).hexdigest()[:16]


def _rows_of_support(run: Run, modules: np.ndarray) -> np.ndarray:
    """The 0/1 rows that the run's support reads: the modules, or the view that it names."""
    name = getattr(run.support, "view", None)
    if name is None:
        return modules
    known = getattr(run.family, "views", ())
    support = type(run.support).__name__
    require(
        name in known,
        f"{support} uses the view {name!r}, but {type(run.family).__name__} offers "
        f"{', '.join(known) or 'no views'}: choose another view or family",
    )
    return _view(run.family, name)


@functools.lru_cache(maxsize=4)  # the views of one table, for all seeds
def _view(family: Any, name: str) -> np.ndarray:
    return family.view(name, family.tasks())


def _unseen_features(family: Any, parts: np.ndarray) -> dict[str, int]:
    """For each view, how many of its features occur in test tasks but in no train task.

    A network cannot have learned the inputs of such features.
    """
    unseen = {}
    for name in getattr(family, "views", ()):
        rows = _view(family, name)
        is_unseen = rows[parts == 2].any(axis=0) & ~rows[parts == 1].any(axis=0)
        unseen[f"unseen_{name}"] = int(is_unseen.sum())
    return unseen


def make_shared(family: Family) -> Shared:
    """The task tables of a family, and their groups."""
    table = family.tasks()
    has_extrapolation = hasattr(family, "extrapolation")
    beyond = family.extrapolation() if has_extrapolation else table[:0]  # pyright: ignore
    return Shared(table, family.groups(table), beyond, family.groups(beyond))
