"""Tasks as k-hot rows: at most K of M modules are active in a task, each with a weight.

Several families use these functions. They build the table of all k-hot rows (or of a random sample
of them), rows with more than K active modules to test extrapolation, and the weights of active
modules. There are three weight distributions (arXiv 2507.07207, appendix).
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

MAX_LISTED = 5_000_000  # rows of a complete table; a longer one has to be sampled with max_tasks
MAX_CELLS = 4_000_000_000  # rows x modules of a table, one byte each
MAX_MODULES = 10_000  # checking a support takes time cubic in the number of modules
MAX_LOG_TASKS = 690.0  # above it, the number of tasks overflows a float
NUM_EXTRAPOLATION = 512  # rows with K+1 active modules, and as many with K+2
CHUNK_ROWS = 4096  # rows drawn at a time, to limit the memory for sampling a table

WeightDistribution = Literal["discrete", "khot", "continuous"]


class Khot(Protocol):
    """A family with k-hot rows: M = `num_modules`, K = `num_hot`.

    With `max_tasks` > 0, the table holds that many distinct rows, drawn with the seed `table_seed`.
    """

    @property
    def num_modules(self) -> int: ...
    @property
    def num_hot(self) -> int: ...
    @property
    def max_tasks(self) -> int: ...
    @property
    def table_seed(self) -> int: ...


def check_sizes(family: Khot) -> None:
    """Raise an `InputError` if the family's table would be empty, impossible or too large."""
    check(family, num_modules=1, num_hot=1, max_tasks=0, table_seed=0)
    num_modules = family.num_modules
    num_hot = family.num_hot
    require(
        num_hot <= num_modules,
        f"num_hot={num_hot} is larger than num_modules={num_modules}: lower num_hot",
    )
    require(
        num_modules <= MAX_MODULES,
        f"num_modules={num_modules} is too large: lower it to at most {MAX_MODULES}",
    )
    # The binomial coefficient is largest in the middle; extrapolation rows have up to K+2 modules.
    max_active = min(num_hot + 2, num_modules // 2)
    log_tasks = (
        math.lgamma(num_modules + 1)
        - math.lgamma(max_active + 1)
        - math.lgamma(num_modules - max_active + 1)
    )
    require(
        log_tasks < MAX_LOG_TASKS,
        f"num_hot={num_hot} of {num_modules} modules gives too many tasks to draw from: "
        "lower num_hot",
    )
    total = count_rows(num_modules, num_hot)
    require(
        bool(family.max_tasks) or total <= MAX_LISTED,
        f"a table of {total:,} tasks is too long to list: set max_tasks, for example to 100000",
    )
    # A sample of a table that can be listed is drawn from the listed table.
    num_rows = total if total <= MAX_LISTED else min(total, family.max_tasks)
    require(
        num_rows * num_modules <= MAX_CELLS,
        f"a table of {num_rows:,} tasks and {num_modules} modules is too large: "
        "lower max_tasks or num_modules",
    )


def count_rows(num_modules: int, num_hot: int) -> int:
    """The number of rows with 1 to `num_hot` active modules."""
    return sum(math.comb(num_modules, k) for k in range(1, num_hot + 1))


def table(family: Khot) -> Int[np.ndarray, "N M"]:
    """All rows with 1 to K active modules, or `max_tasks` distinct ones drawn uniformly."""
    total = count_rows(family.num_modules, family.num_hot)
    if not family.max_tasks or family.max_tasks >= total:
        return all_rows(family.num_modules, family.num_hot)
    rng = generator(family.table_seed, "table")
    if total <= MAX_LISTED:
        rows = all_rows(family.num_modules, family.num_hot)
        return rows[np.sort(rng.choice(total, family.max_tasks, replace=False))]
    return draw_rows(rng, family.num_modules, range(1, family.num_hot + 1), family.max_tasks)


def extrapolation_rows(family: Khot) -> Int[np.ndarray, "E M"]:
    """Rows with K+1 and K+2 active modules, which is more than any row of the table has."""
    rng = generator(family.table_seed, "extrapolation")
    blocks = [np.zeros((0, family.num_modules), np.int8)]
    for num_hot in (family.num_hot + 1, family.num_hot + 2):
        if num_hot <= family.num_modules:
            num_rows = min(NUM_EXTRAPOLATION, math.comb(family.num_modules, num_hot))
            blocks.append(draw_rows(rng, family.num_modules, [num_hot], num_rows))
    return np.concatenate(blocks)


def groups(tasks: np.ndarray) -> dict[str, np.ndarray]:
    """Group rows by their number of active modules."""
    return {"num_hot": tasks.sum(axis=1, dtype=np.int32)}


def weigh(
    key: PRNGKeyArray, row: Shaped[Array, " M"], distribution: WeightDistribution
) -> Float[Array, " M"]:
    """Draw a weight for every active module of a 0/1 row; inactive modules keep the weight 0.

    khot: all weights are 1. discrete: independent and uniform on {0.5, 0.6, …, 1.0}. continuous:
    uniform on the simplex {w >= 0, sum w <= 1} over active modules, then mapped to 0.5 + w / 2, so
    that no active module fades out.
    """
    row = row.astype(jnp.float32)
    if distribution == "khot":
        return row
    if distribution == "discrete":
        return row * (5 + jax.random.bits(key, row.shape) % 6).astype(jnp.float32) / 10
    # Normalized exponentials; one more exponential is the slack 1 - sum w. (The public code has the
    # constant 1 in place of the slack.)
    exponential = jax.random.exponential(key, (len(row) + 1,))
    active = exponential[:-1] * row
    slack = exponential[-1]
    return (0.5 + 0.5 * active / (active.sum() + slack)) * row


def regression_scores(prediction: Float[Array, "n O"], y: Float[Array, "n O"]) -> dict[str, Array]:
    """Mean squared error, and R2 per output against the task's own mean, averaged over outputs.

    This R2 is the score of the paper. An output with constant targets has no R2 and is left out; if
    all targets are constant, R2 is 0.
    """
    error = jnp.square(prediction - y)
    variance = jnp.square(y - y.mean(axis=0)).mean(axis=0)
    varies = variance > 1e-6 * jnp.square(y).mean() + 1e-12
    r2 = jnp.where(varies, 1 - error.mean(axis=0) / jnp.where(varies, variance, 1.0), 0.0)
    return {"loss": error.mean(), "r2": r2.sum() / jnp.maximum(varies.sum(), 1)}


def all_rows(num_modules: int, num_hot: int) -> np.ndarray:
    """All rows with 1 to `num_hot` active modules, sorted by their number of active modules."""
    blocks = []
    for k in range(1, num_hot + 1):
        num_rows = math.comb(num_modules, k)
        flat = itertools.chain.from_iterable(itertools.combinations(range(num_modules), k))
        active = np.fromiter(flat, np.intp, num_rows * k).reshape(num_rows, k)
        block = np.zeros((num_rows, num_modules), np.int8)
        np.put_along_axis(block, active, 1, axis=1)
        blocks.append(block)
    return np.concatenate(blocks)


def draw_rows(
    rng: np.random.Generator, num_modules: int, num_hots: Sequence[int], num_rows: int
) -> np.ndarray:
    """Draw distinct rows, uniformly from those whose number of active modules is in `num_hots`."""
    num_choices = np.array([math.comb(num_modules, k) for k in num_hots], dtype=np.float64)
    rows = np.zeros((0, num_modules), np.int8)
    while len(rows) < num_rows:
        blocks = [rows]
        # Draw all missing rows, then remove duplicates once: sorting after every chunk would take
        # quadratic time.
        num_chunks = math.ceil((num_rows - len(rows)) / CHUNK_ROWS)
        for _ in range(num_chunks):
            num_active = rng.choice(
                list(num_hots), size=CHUNK_ROWS, p=num_choices / num_choices.sum()
            )
            ranks = rng.random((CHUNK_ROWS, num_modules)).argsort(axis=1)
            blocks.append((ranks < num_active[:, None]).astype(np.int8))
        rows = np.concatenate(blocks)
        # Distinct rows in the order of their first appearance are a uniform draw without
        # replacement.
        packed = np.packbits(rows, axis=1)
        as_records = packed.view([("", packed.dtype)] * packed.shape[1])
        first = np.unique(as_records, return_index=True)[1]
        rows = rows[np.sort(first)]
    return rows[:num_rows]


# Earlier names, which work until the next release.
Law = WeightDistribution
beyond = extrapolation_rows
count = count_rows
regression = regression_scores
