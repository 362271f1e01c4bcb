"""Conditions on a set of train tasks, and random draws of train tasks that meet them.

A task is a 0/1 row: which of M modules it contains, at most K of them. The conditions on n rows:

- compositional: every module occurs in some train task.
- connected: the graph in which modules are linked if they share a train task is connected. This
  requires n (K - 1) + 1 >= M.
- balanced: the numbers of train tasks per module differ by at most 1.
- spanned: every test row is a linear combination of train rows.

All of them follow from the M x M co-occurrence matrix. Sources: arXiv 2507.07207 and Schug et al.
2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, log10

import numpy as np

from recombine.basics.errors import InputError, require

# Rows per matrix product: the float copy stays in the cache, and counts in float32 stay exact.
CHUNK_ROWS = 1 << 15
MAX_DRAWS = 200  # uniform draws before a connected set is grown instead
MAX_DRAWN_CELLS = 40_000_000  # table cells read by all these draws: about a second
MAX_GROWTHS = 32  # attempts at growing a set; the second half of them takes the largest steps
ZERO_TOLERANCE = 1e-6  # a coordinate below this is a rounding error
DEFAULT_REMEDY = "lower frac_test, raise num_hot, or use a larger table"


def counts(rows: np.ndarray) -> np.ndarray:
    """The number of tasks that contain each module."""
    return np.diag(_cooccurrence(rows)).astype(np.int64)


def least_count(rows: np.ndarray) -> int:
    """The number of tasks that contain the rarest module."""
    return int(counts(rows).min())


def compositional(rows: np.ndarray) -> bool:
    """Whether every module occurs in some task."""
    return least_count(rows) > 0


def balanced(rows: np.ndarray) -> bool:
    """Whether the module counts differ by at most 1."""
    return int(np.ptp(counts(rows))) <= 1


def components(rows: np.ndarray) -> list[list[int]]:
    """The groups of modules linked by shared tasks, largest first.

    A module that occurs in no task is a group of its own.
    """
    return _components(_cooccurrence(rows))


def connected(rows: np.ndarray) -> bool:
    """Whether shared tasks link all modules to each other."""
    num_modules = rows.shape[1]
    cooccurrence = np.zeros((num_modules, num_modules))
    for chunk in _chunks(rows):
        cooccurrence += chunk.T @ chunk
        # Further tasks can only add links, so there is no need to look at the other chunks.
        if _is_connected(cooccurrence):
            return True
    return False


def spanned(train: np.ndarray, test: np.ndarray) -> bool:
    """Whether every test row is a linear combination of train rows."""
    return _is_spanned(_cooccurrence(train), test)


def feasible(num_train: int, num_hot: int, num_modules: int) -> bool:
    """Whether `num_train` tasks of at most `num_hot` modules could connect all modules."""
    return num_train >= 1 and num_train * (num_hot - 1) + 1 >= num_modules


def describe(train: np.ndarray, test: np.ndarray) -> dict[str, bool | int]:
    """All conditions at once, as they are stored in the columns `support/…` of a row."""
    cooccurrence = _cooccurrence(train)
    count = np.diag(cooccurrence)
    return {
        "compositional": bool(count.min() > 0),
        "connected": _is_connected(cooccurrence),
        "balanced": bool(np.ptp(count) <= 1),
        "spanned": _is_spanned(cooccurrence, test),
        "least_count": int(count.min()),
        "num_components": len(_components(cooccurrence)),
    }


def _chunks(rows: np.ndarray, dtype: type = np.float32) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), CHUNK_ROWS):
        yield rows[start : start + CHUNK_ROWS].astype(dtype)


def _cooccurrence(rows: np.ndarray) -> np.ndarray:
    """The matrix of how many tasks contain both of two modules; counts are on its diagonal."""
    num_modules = rows.shape[1]
    total = np.zeros((num_modules, num_modules))
    for chunk in _chunks(rows):
        total += chunk.T @ chunk
    return total


def _components(cooccurrence: np.ndarray) -> list[list[int]]:
    linked = cooccurrence > 0
    num_modules = len(linked)
    unvisited = np.ones(num_modules, bool)
    groups = []
    for start in range(num_modules):
        if not unvisited[start]:
            continue
        reached = np.arange(num_modules) == start
        frontier = reached
        while frontier.any():
            frontier = linked[frontier].any(0) & ~reached
            reached = reached | frontier
        unvisited &= ~reached
        groups.append(np.flatnonzero(reached).tolist())
    return sorted(groups, key=lambda group: (-len(group), group))


def _is_connected(cooccurrence: np.ndarray) -> bool:
    every_module_occurs = bool(np.diag(cooccurrence).all())
    return every_module_occurs and len(_components(cooccurrence)) == 1


def missing_directions(cooccurrence: np.ndarray) -> np.ndarray:
    """The directions that are orthogonal to all tasks, as orthonormal columns.

    They are the null space of the co-occurrence matrix.
    """
    # Scale to a unit diagonal first: a module that occurs once beside one that occurs 100,000 times
    # would be lost to rounding.
    scale = 1 / np.sqrt(np.maximum(np.diag(cooccurrence), 1))
    values, vectors = np.linalg.eigh(cooccurrence * scale * scale[:, None])
    return np.linalg.qr(scale[:, None] * vectors[:, values < 1e-10])[0]


def _is_spanned(cooccurrence: np.ndarray, test: np.ndarray) -> bool:
    directions = missing_directions(cooccurrence)
    if not directions.shape[1]:
        return True
    return all(np.abs(chunk @ directions).max() < ZERO_TOLERANCE for chunk in _chunks(test))


def train_size(num_tasks: int, frac_test: float) -> int:
    """The number of train tasks if the fraction `frac_test` of all tasks is held out."""
    require(num_tasks > 1, f"a table of {num_tasks} tasks cannot be split: use a larger one")
    num_test = round(frac_test * num_tasks) if 0 < frac_test < 1 else 0
    # With this many decimals, both limits can be rounded inwards and still leave one task.
    decimals = len(str(num_tasks)) + 1
    min_frac = ceil(10**decimals / num_tasks) / 10**decimals
    require(
        0 < num_test < num_tasks,
        f"frac_test={frac_test} of {num_tasks} tasks leaves no train or no test task: choose it "
        f"from {min_frac:.{decimals}f} to {1 - min_frac:.{decimals}f}",
    )
    return num_tasks - num_test


def mark(num_tasks: int, train: np.ndarray, test: np.ndarray | None = None) -> np.ndarray:
    """The part of every task of a table: 1 train, 2 test, 0 unused.

    `train` and `test` are indices or masks. Without `test`, all tasks outside `train` are test.
    """
    parts = np.full(num_tasks, 2 if test is None else 0, np.int8)
    if test is not None:
        parts[test] = 2
    parts[train] = 1
    for number, name in ((1, "train"), (2, "test")):
        require(
            bool((parts == number).any()),
            f"this support leaves no {name} task of {num_tasks}: use another support or a larger "
            "table",
        )
    return parts


def stamps(num_modules: int) -> np.ndarray:
    """One 64-bit number per module; the wrapping sum of a row's stamps identifies the row.

    Different rows have different sums for up to 64 modules. Beyond that, the sum is a hash.
    """
    if num_modules <= 64:
        return np.uint64(1) << np.arange(num_modules, dtype=np.uint64)
    return np.random.default_rng(0).integers(1 << 64, size=num_modules, dtype=np.uint64)


def fingerprint(rows: np.ndarray) -> np.ndarray:
    """The sum of the stamps of each row.

    It is linear: replacing module a by b in a row adds `stamps[b] - stamps[a]`.
    """
    stamp = stamps(rows.shape[1])
    return np.concatenate([chunk @ stamp for chunk in _chunks(rows, np.uint64)])


def draw(
    rows: np.ndarray, num: int, rng: np.random.Generator, remedy: str = "", linked: bool = True
) -> np.ndarray:
    """Draw the indices of `num` random rows that connect all modules.

    With `linked=False`, the rows only have to cover all modules. The draw is uniform over all such
    sets as long as rejection sampling finds one. Otherwise a set is grown row by row, which never
    fails on a complete table. If no such set exists, the error message ends with `remedy`.
    """
    num_rows = len(rows)
    _require_possible(rows, num, remedy, linked)
    meets_condition = connected if linked else compositional
    num_draws = max(3, min(MAX_DRAWS, MAX_DRAWN_CELLS // (num * rows.shape[1])))
    for _ in range(num_draws):
        chosen = rng.choice(num_rows, num, replace=False)
        if meets_condition(rows[chosen]):
            return chosen
    for attempt in range(MAX_GROWTHS):
        grown = _grow(rows, num, rng, linked, greedy=attempt >= MAX_GROWTHS // 2)
        if grown is not None:
            rest = rng.permutation(np.setdiff1d(np.arange(num_rows), grown))
            return np.concatenate([grown, rest[: num - len(grown)]])
    condition = "connect" if linked else "cover"
    remedy = remedy or DEFAULT_REMEDY
    raise InputError(
        f"found no {num} of {num_rows} tasks that {condition} {rows.shape[1]} modules: {remedy}"
    )


def _require_possible(rows: np.ndarray, num: int, remedy: str, linked: bool) -> None:
    """Raise an `InputError` if no `num` rows can connect (or cover) all modules."""
    num_rows, num_modules = rows.shape
    num_hot = int(rows.sum(1).max(initial=0))
    condition = "connect" if linked else "cover"
    # Every row adds at most this many modules to those already connected (or covered).
    max_new = max(num_hot - 1, 0) if linked else num_hot
    max_modules = num * max_new + linked
    remedy_for_bound = remedy or _remedy_for_bound(num_rows, max_new, num_modules - linked)
    remedy = remedy or DEFAULT_REMEDY
    require(1 <= num <= num_rows, f"cannot choose {num} train tasks from {num_rows}: {remedy}")
    require(
        max_modules >= num_modules,
        f"{num} train tasks of at most {num_hot} modules cannot {condition} {num_modules} modules "
        f"({num}*{max_new}+{int(linked)} = {max_modules} < {num_modules}): {remedy_for_bound}",
    )
    possible = connected(rows) if linked else compositional(rows)
    require(
        possible,
        f"the {num_rows} available tasks do not {condition} {num_modules} modules: {remedy}",
    )


def _remedy_for_bound(num_rows: int, max_new: int, num_links: int) -> str:
    """Advice if there are too few train tasks: the largest `frac_test` that leaves enough."""
    max_frac = 1 - ceil(num_links / max_new) / num_rows if max_new else 0
    if max_frac <= 0:
        return "raise num_hot"
    scale = 10 ** max(2, ceil(log10(num_rows)))
    return f"lower frac_test to at most {floor(max_frac * scale) / scale:.12g} or raise num_hot"


def _grow(
    rows: np.ndarray, num: int, rng: np.random.Generator, linked: bool, greedy: bool
) -> np.ndarray | None:
    """Choose at most `num` random rows that cover all modules; None if that fails.

    With `linked`, each row shares a module with an earlier one. A row must add enough new modules
    that the remaining rows, which add at most `max_new` each, can cover the rest. A complete table
    always has such a row: the one with one covered and K-1 new modules. With `greedy`, each row
    adds as many new modules as possible.
    """
    size = rows.sum(1, dtype=np.int64)
    max_new = size.max() - linked
    num_covered = np.zeros_like(size)
    covered = np.zeros(rows.shape[1], bool)
    grown = []
    for num_left in range(num - 1, -1, -1):
        num_new = size - num_covered
        is_linked = (num_covered > 0) | (not linked or not grown)
        allowed = (num_new > 0) & is_linked
        if not allowed.any():
            return None
        most = num_new[allowed].max()
        needed = np.count_nonzero(~covered) - num_left * max_new
        min_new = most if greedy else min(most, needed)
        grown.append(rng.choice(np.flatnonzero(allowed & (num_new >= min_new))))
        fresh = (rows[grown[-1]] > 0) & ~covered
        covered |= fresh
        num_covered += rows[:, fresh].sum(1, dtype=np.int64)
        if covered.all():
            return np.array(grown)
    return None
