"""Tasks as k-hot rows: which of M modules are active, at most K of them, and how strongly.

Families whose tasks are such rows stand on this file: the table of all rows (or of some, drawn once), rows beyond it,
and the three laws by which active modules get their weights (paper, appendix).
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from recombine.basics.errors import require
from recombine.basics.random_streams import generator
from recombine.parts.field_checks import check

MAX_LISTED = 5_000_000  # rows; a longer table has to be sampled through max_tasks
MAX_CELLS = 4_000_000_000  # of a table, a byte each
MAX_MODULES = 10_000  # the conditions on a support take the cube of it in time, and rows are drawn by the thousand
MAX_LOG_TASKS = 690.0  # beyond it the number of tasks is no float any more
NUM_EXTRAPOLATION = 512  # rows with K+1 active modules, and as many with K+2
CHUNK = 4096  # rows drawn at a time, so that sampling a table needs little memory

Law = Literal["discrete", "khot", "continuous"]


class Khot(Protocol):
    """A family whose rows are k-hot. With `max_tasks` its table is so many unique rows, drawn with `table_seed`."""

    @property
    def num_modules(self) -> int: ...
    @property
    def num_hot(self) -> int: ...
    @property
    def max_tasks(self) -> int: ...
    @property
    def table_seed(self) -> int: ...


def check_sizes(family: Khot) -> None:
    """Refuse numbers of modules and of tasks that make no table."""
    check(family, num_modules=1, num_hot=1, max_tasks=0, table_seed=0)
    require(
        family.num_hot <= family.num_modules,
        f"num_hot={family.num_hot} active modules are more than num_modules={family.num_modules}: lower num_hot",
    )
    require(
        family.num_modules <= MAX_MODULES,
        f"num_modules={family.num_modules} are too many to draw tasks of: lower it to at most {MAX_MODULES}",
    )
    most = min(
        family.num_hot + 2, family.num_modules // 2
    )  # active modules; also of rows beyond the table
    log_tasks = (
        math.lgamma(family.num_modules + 1)
        - math.lgamma(most + 1)
        - math.lgamma(family.num_modules - most + 1)
    )
    require(
        log_tasks < MAX_LOG_TASKS,
        f"num_hot={family.num_hot} of {family.num_modules} modules make too many tasks to draw from: lower num_hot",
    )
    total = count(family.num_modules, family.num_hot)
    require(
        bool(family.max_tasks) or total <= MAX_LISTED,
        f"{total:,} tasks are too many to list: set max_tasks, to 100000 say",
    )
    num_rows = (
        total if total <= MAX_LISTED else min(total, family.max_tasks)
    )  # a short table is drawn from the whole
    require(
        num_rows * family.num_modules <= MAX_CELLS,
        f"a table of {num_rows:,} tasks and {family.num_modules} modules is too large: lower max_tasks or num_modules",
    )


def count(num_modules: int, num_hot: int) -> int:
    """How many rows have 1 to `num_hot` active modules."""
    return sum(math.comb(num_modules, k) for k in range(1, num_hot + 1))


def table(family: Khot) -> Int[np.ndarray, "N M"]:
    """All rows with 1 to K active modules, or `max_tasks` unique ones drawn uniformly from them."""
    total = count(family.num_modules, family.num_hot)
    if not family.max_tasks or family.max_tasks >= total:
        return listed(family.num_modules, family.num_hot)
    rng = generator(family.table_seed, "table")
    if total <= MAX_LISTED:
        rows = listed(family.num_modules, family.num_hot)
        return rows[np.sort(rng.choice(total, family.max_tasks, replace=False))]
    return drawn(rng, family.num_modules, range(1, family.num_hot + 1), family.max_tasks)


def beyond(family: Khot) -> Int[np.ndarray, "E M"]:
    """Rows with K+1 and K+2 active modules: more than any task of the table has."""
    rng = generator(family.table_seed, "extrapolation")
    rows = [np.zeros((0, family.num_modules), np.int8)]
    for num_hot in (family.num_hot + 1, family.num_hot + 2):
        if num_hot <= family.num_modules:
            most = min(NUM_EXTRAPOLATION, math.comb(family.num_modules, num_hot))
            rows.append(drawn(rng, family.num_modules, [num_hot], most))
    return np.concatenate(rows)


def groups(tasks: np.ndarray) -> dict[str, np.ndarray]:
    """Rows by their number of active modules."""
    return {"num_hot": tasks.sum(axis=1, dtype=np.int32)}


def weigh(key: PRNGKeyArray, row: Shaped[Array, " M"], law: Law) -> Float[Array, " M"]:
    """Give every active module of a row a weight."""
    row = row.astype(jnp.float32)
    if law == "khot":
        return row
    if law == "discrete":
        return row * (5 + jax.random.bits(key, row.shape) % 6).astype(jnp.float32) / 10
    # Uniform on {w >= 0, sum w <= 1} over the active modules (normalised exponentials, one of them slack), then
    # shifted to [0.5, 1] so that no active module fades out. (The public code has 1 in place of the slack.)
    exponential = jax.random.exponential(key, (len(row) + 1,))
    active = exponential[:-1] * row
    return (0.5 + 0.5 * active / (active.sum() + exponential[-1])) * row


def regression(prediction: Float[Array, "n O"], y: Float[Array, "n O"]) -> dict[str, Array]:
    """Mean squared error, and R2 per output against the task's own mean, averaged over outputs (the paper's score).

    Outputs whose targets are constant have no R2 and are left out; a task with no other output scores 0.
    """
    error = jnp.square(prediction - y)
    spread = jnp.square(y - y.mean(axis=0)).mean(axis=0)
    varies = spread > 1e-6 * jnp.square(y).mean() + 1e-12
    r2 = jnp.where(varies, 1 - error.mean(axis=0) / jnp.where(varies, spread, 1.0), 0.0)
    return {"loss": error.mean(), "r2": r2.sum() / jnp.maximum(varies.sum(), 1)}


def listed(num_modules: int, num_hot: int) -> np.ndarray:
    """All rows with 1 to `num_hot` active modules, those with fewer first."""
    rows = []
    for k in range(1, num_hot + 1):
        num_rows = math.comb(num_modules, k)
        flat = itertools.chain.from_iterable(itertools.combinations(range(num_modules), k))
        active = np.fromiter(flat, np.intp, num_rows * k).reshape(num_rows, k)
        block = np.zeros((num_rows, num_modules), np.int8)
        np.put_along_axis(block, active, 1, axis=1)
        rows.append(block)
    return np.concatenate(rows)


def drawn(
    rng: np.random.Generator, num_modules: int, num_hots: Sequence[int], num_rows: int
) -> np.ndarray:
    """Distinct rows, uniform over all rows with such numbers of active modules."""
    sizes = np.array([math.comb(num_modules, k) for k in num_hots], dtype=np.float64)
    found = np.zeros((0, num_modules), np.int8)
    while len(found) < num_rows:
        more = [found]
        # All that is missing before looking for doubles: to sort the table after every chunk would be quadratic.
        for _ in range(-(-(num_rows - len(found)) // CHUNK)):
            hot = rng.choice(list(num_hots), size=CHUNK, p=sizes / sizes.sum())
            ranks = rng.random((CHUNK, num_modules)).argsort(axis=1)
            more.append((ranks < hot[:, None]).astype(np.int8))
        found = np.concatenate(more)
        # Distinct rows in the order of their first appearance are a uniform draw without replacement.
        packed = np.packbits(found, axis=1)
        first = np.unique(packed.view([("", packed.dtype)] * packed.shape[1]), return_index=True)[1]
        found = found[np.sort(first)]
    return found[:num_rows]
