"""A run's moving parts inside the compiled program: the tables of tasks, their split, and fresh samples of them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from recombine.basics.errors import require
from recombine.basics.random_streams import generator
from recombine.parts import conditions
from recombine.parts.protocols import Batch, Encoding, Family, Observation, Part, Split, examples_of
from recombine.sweeps.run import Run


class Shared(NamedTuple):
    """What all runs of a program share: the table of tasks, the tasks beyond it, and the groups of both."""

    table: Any
    groups: dict[str, Any]
    beyond: Any
    beyond_groups: dict[str, Any]


class Setting(NamedTuple):
    """What a run draws once: the hidden teacher, and the encoding's own arrays."""

    world: PyTree[Array]
    encoding: PyTree[Array]


class Laboratory:
    """A run's moving parts, as the trainer and the diagnostics see them inside the program."""

    def __init__(self, run: Run, shared: Shared, split: Split, setting: Setting, net: Any = None):
        self.run, self.shared, self.split, self.setting, self.net = run, shared, split, setting, net
        self.family: Family = run.family
        self.encoding: Encoding = run.encoding
        self.world, self.table = setting.world, shared.table

    def draw(self, key: PRNGKeyArray, rows: Int[Array, "tasks _"], num_points: int) -> Batch:
        """Fresh samples of the given rows of a task table."""

        def one(keys, row):
            task = self.family.weigh(keys[0], row)
            x, y = self.family.sample(self.world, keys[1], task, num_points)
            examples = examples_of(self.family, self.world, task)
            return Batch(
                x, y, self.encoding.encode(self.setting.encoding, keys[2], task, examples), task
            )

        return jax.vmap(one)(jax.random.split(key, (rows.shape[0], 3)), rows)

    def pick(self, key: PRNGKeyArray, part: Part, n: int) -> Int[Array, " n"]:
        """n tasks of a part, as rows of the table, as evenly as possible: none twice before each was picked once."""
        first, count = (
            (0, self.split.num_train)
            if part == "train"
            else (self.split.num_train, self.split.num_test)
        )
        offset = below(key, count, ())
        # The split's order is random already, so a window of it is a fair draw without replacement.
        return self.split.order[first + (offset + jnp.arange(n)) % count]

    def look(self, key: PRNGKeyArray, rows: Array, net: Any = None) -> Observation:
        """Fresh samples of the given rows, and what a network makes of them."""
        batch = self.draw(key, rows, self.run.num_eval_points)
        at_once = (
            self.run.num_points
            if getattr(self.run.model, "together", False)
            else self.run.num_eval_points
        )
        return Observation(batch, *predict(self.net if net is None else net, batch, at_once))

    def observe(self, key: PRNGKeyArray, part: Part, n: int, net: Any = None) -> Observation:
        """Fresh samples of n tasks of a part, and what a network makes of them."""
        key_pick, key_draw = jax.random.split(key)
        return self.look(key_draw, self.table[self.pick(key_pick, part, n)], net)


def predict(net: Any, batch: Batch, at_once: int | None = None) -> tuple[Any, dict[str, Array]]:
    """What a network makes of all tasks of a batch: its own `many` where it has one, otherwise one by one.

    With `at_once` it is shown so many points of a task at a time.
    """
    tasks, n = jax.tree.leaves(batch.x)[0].shape[:2]
    at_once = at_once or n
    x = jax.tree.map(lambda leaf: leaf.reshape(-1, at_once, *leaf.shape[2:]), batch.x)
    found = (net.many if hasattr(net, "many") else jax.vmap(net))(
        x, jnp.repeat(batch.code, n // at_once, axis=0)
    )
    return jax.tree.map(lambda leaf: leaf.reshape(tasks, -1, *leaf.shape[2:]), found)


def below(key: PRNGKeyArray, n: Array | int, shape: tuple[int, ...]) -> Int[Array, "..."]:
    """Random whole numbers from 0 to n - 1."""
    # A remainder is as good as jax.random.randint while n is far below 2**32, and compiles four times sooner.
    return (jax.random.bits(key, shape) % jnp.uint32(n)).astype(jnp.int32)


Splits = dict[tuple[Any, ...], tuple[Split, dict[str, Any]]]


def split_key(run: Run) -> tuple[Any, ...]:
    """What a run's split depends on."""
    return run.family, run.support, run.frac_test, run.seed


def split_all(runs: Iterable[Run]) -> Splits:
    """The split of every run, each made once."""
    kinds = {split_key(run): run for run in runs}
    modules = {
        family: family.modules(family.tasks()) for family in {run.family for run in kinds.values()}
    }
    return {key: make_split(run, modules[run.family]) for key, run in kinds.items()}


def split_bytes(splits: Splits) -> int:
    """The memory that splits take."""
    return sum(split.order.nbytes for split, _ in splits.values())


def make_split(run: Run, modules: np.ndarray) -> tuple[Split, dict[str, Any]]:
    """Split a run's table of tasks, and tell what the split really is."""
    rng = generator(run.seed, "support")
    parts = np.asarray(run.support.parts(modules, rng, run.frac_test))
    name = type(run.support).__name__
    require(
        parts.shape == (len(modules),) and bool(np.isin(parts, (0, 1, 2)).all()),
        f"{name}.parts must mark each of the {len(modules)} tasks with 0 (unused), 1 (train) or 2 (test)",
    )
    order = rng.permutation(len(parts))
    place = np.array([2, 0, 1])[parts.astype(int)]  # train, then test, then unused
    order = order[np.argsort(place[order], kind="stable")]
    num_train, num_test = int((parts == 1).sum()), int((parts == 2).sum())
    require(
        num_train > 0 and num_test > 0,
        f"{name} leaves no {'train' if not num_train else 'test'} task",
    )
    facts = conditions.describe(modules[parts == 1], modules[parts == 2])
    facts |= {
        "num_train": num_train,
        "num_test": num_test,
        "frac_test": num_test / (num_train + num_test),
    }
    split: Any = (order.astype(np.int32), np.int32(num_train), np.int32(num_test))
    return Split(*split), {f"support/{name}": value for name, value in facts.items()}


def make_shared(family: Family) -> Shared:
    """A family's tables as arrays."""
    table = family.tasks()
    beyond = family.extrapolation() if hasattr(family, "extrapolation") else table[:0]  # pyright: ignore
    return Shared(table, family.groups(table), beyond, family.groups(beyond))
