"""When a set of train tasks can be enough: the conditions on its module rows, and draws that meet them.

compositional: every module occurs. connected: the graph "two modules share a task" is connected, which takes
n(K-1)+1 >= M. balanced: module counts within 1. spanned: test rows lie in the span of the train rows. All
follow from the M x M co-occurrence matrix. See arXiv 2507.07207 and Schug et al. 2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, log10

import numpy as np

from recombine.basics.errors import InputError, require

CHUNK = (
    1 << 15
)  # rows per matrix product: the float copy stays in cache, and float32 counts stay exact
DRAWS = 200  # uniform draws before a connected set is grown instead
CELLS = 40_000_000  # table cells that all those draws may look at: about a second
NOTHING = 1e-6  # a coordinate that is rounding
GROWTHS = 32  # attempts at growing one; the later ones take the largest steps


def counts(rows: np.ndarray) -> np.ndarray:
    """How many tasks hold each module."""
    return np.diag(_together(rows)).astype(np.int64)


def least_count(rows: np.ndarray) -> int:
    """How many tasks hold the rarest module."""
    return int(counts(rows).min())


def compositional(rows: np.ndarray) -> bool:
    """Whether every module occurs in some task."""
    return least_count(rows) > 0


def balanced(rows: np.ndarray) -> bool:
    """Whether the module counts differ by at most 1."""
    return int(np.ptp(counts(rows))) <= 1


def components(rows: np.ndarray) -> list[list[int]]:
    """The groups of modules linked by shared tasks, largest first; an absent module is a group of its own."""
    return _components(_together(rows))


def connected(rows: np.ndarray) -> bool:
    """Whether shared tasks link all modules to each other."""
    together = np.zeros((rows.shape[1],) * 2)
    for chunk in _chunks(rows):
        together += chunk.T @ chunk
        # More tasks only add links, so the first connected chunks settle the question.
        if _connected(together):
            return True
    return False


def spanned(train: np.ndarray, test: np.ndarray) -> bool:
    """Whether every test row is a linear combination of train rows."""
    return _spanned(_together(train), test)


def feasible(num_train: int, num_hot: int, num_modules: int) -> bool:
    """Whether so many tasks of at most `num_hot` modules could connect all modules."""
    return num_train >= 1 and num_train * (num_hot - 1) + 1 >= num_modules


def describe(train: np.ndarray, test: np.ndarray) -> dict[str, bool | int]:
    """Every condition at once, for the columns of a result."""
    together = _together(train)
    count = np.diag(together)
    return {
        "compositional": bool(count.min() > 0),
        "connected": _connected(together),
        "balanced": bool(np.ptp(count) <= 1),
        "spanned": _spanned(together, test),
        "least_count": int(count.min()),
        "num_components": len(_components(together)),
    }


def _chunks(rows: np.ndarray, dtype: type = np.float32) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK].astype(dtype)


def _together(rows: np.ndarray) -> np.ndarray:
    """In how many tasks two modules occur together; on the diagonal, the counts."""
    total = np.zeros((rows.shape[1],) * 2)
    for chunk in _chunks(rows):
        total += chunk.T @ chunk
    return total


def _components(together: np.ndarray) -> list[list[int]]:
    linked = together > 0
    unseen = np.ones(len(linked), bool)
    found = []
    for start in range(len(linked)):
        if not unseen[start]:
            continue
        reached = np.arange(len(linked)) == start
        frontier = reached
        while frontier.any():
            frontier = linked[frontier].any(0) & ~reached
            reached = reached | frontier
        unseen &= ~reached
        found.append(np.flatnonzero(reached).tolist())
    return sorted(found, key=lambda group: (-len(group), group))


def _connected(together: np.ndarray) -> bool:
    return bool(np.diag(together).all()) and len(_components(together)) == 1


def unseen(together: np.ndarray) -> np.ndarray:
    """The directions in which no task goes, as orthonormal columns, from how often modules occur together."""
    # A unit diagonal first, or a module seen once beside one seen 100,000 times would drown in rounding.
    scale = 1 / np.sqrt(np.maximum(np.diag(together), 1))
    values, vectors = np.linalg.eigh(together * scale * scale[:, None])
    return np.linalg.qr(scale[:, None] * vectors[:, values < 1e-10])[0]


def _spanned(together: np.ndarray, test: np.ndarray) -> bool:
    directions = unseen(together)
    if not directions.shape[1]:
        return True
    return all(np.abs(chunk @ directions).max() < NOTHING for chunk in _chunks(test))


def train_size(num_tasks: int, frac_test: float) -> int:
    """How many train tasks a held-out fraction leaves."""
    require(num_tasks > 1, f"a table of {num_tasks} tasks cannot be split: use a larger one")
    num_test = round(frac_test * num_tasks) if 0 < frac_test < 1 else 0
    places = (
        len(str(num_tasks)) + 1
    )  # decimals with which both ends, rounded inwards, still leave one task
    least = ceil(10**places / num_tasks) / 10**places
    require(
        0 < num_test < num_tasks,
        f"frac_test={frac_test} of {num_tasks} tasks leaves no train or no test task: choose it from "
        f"{least:.{places}f} to {1 - least:.{places}f}",
    )
    return num_tasks - num_test


def mark(num_tasks: int, train: np.ndarray, test: np.ndarray | None = None) -> np.ndarray:
    """The parts of a table, 1 train and 2 test; without `test`, all that is not train is test."""
    parts = np.full(num_tasks, 2 if test is None else 0, np.int8)
    if test is not None:
        parts[test] = 2
    parts[train] = 1
    for number, name in ((1, "train"), (2, "test")):
        found = bool((parts == number).any())
        require(
            found,
            f"this support leaves no {name} task of {num_tasks}: use another, or a larger table",
        )
    return parts


def stamps(num_modules: int) -> np.ndarray:
    """One 64-bit number per module whose wrapping sums tell rows apart: exact to 64 modules, then a hash."""
    if num_modules <= 64:
        return np.uint64(1) << np.arange(num_modules, dtype=np.uint64)
    return np.random.default_rng(0).integers(1 << 64, size=num_modules, dtype=np.uint64)


def fingerprint(rows: np.ndarray) -> np.ndarray:
    """The sum of a row's stamps: linear, so replacing module a by b adds `stamps[b] - stamps[a]`."""
    stamp = stamps(rows.shape[1])
    return np.concatenate([chunk @ stamp for chunk in _chunks(rows, np.uint64)])


def draw(
    rows: np.ndarray, num: int, rng: np.random.Generator, remedy: str = "", linked: bool = True
) -> np.ndarray:
    """Indices of `num` random rows that connect all modules, or with `linked=False` only cover them.

    Uniform over such sets while rejection sampling finds one. Else one is grown, which never fails on a
    complete table. `remedy` ends the message of the error where no such set exists.
    """
    num_rows, num_modules = rows.shape
    num_hot = int(rows.sum(1).max(initial=0))
    verb, reach = ("connect", max(num_hot - 1, 0)) if linked else ("cover", num_hot)
    bound = remedy or _lower(num_rows, reach, num_modules - linked)
    remedy = remedy or "lower frac_test, raise num_hot, or use a larger table"
    require(1 <= num <= num_rows, f"{num} train tasks to be chosen from {num_rows}: {remedy}")
    require(
        num * reach + linked >= num_modules,
        f"{num} train tasks of at most {num_hot} modules cannot {verb} {num_modules} modules "
        f"({num}*{reach}+{int(linked)} = {num * reach + linked} < {num_modules}): {bound}",
    )
    good = connected if linked else compositional
    require(
        good(rows), f"all {num_rows} tasks at hand do not {verb} {num_modules} modules: {remedy}"
    )
    for _ in range(max(3, min(DRAWS, CELLS // (num * num_modules)))):
        chosen = rng.choice(num_rows, num, replace=False)
        if good(rows[chosen]):
            return chosen
    for attempt in range(GROWTHS):
        grown = _grow(rows, num, rng, linked, greedy=attempt >= GROWTHS // 2)
        if grown is not None:
            rest = rng.permutation(np.setdiff1d(np.arange(num_rows), grown))
            return np.concatenate([grown, rest[: num - len(grown)]])
    raise InputError(
        f"found no {num} of {num_rows} tasks that {verb} {num_modules} modules: {remedy}"
    )


def _lower(num_rows: int, reach: int, num_links: int) -> str:
    """What to do when the held-out fraction leaves too few tasks."""
    most = 1 - ceil(num_links / reach) / num_rows if reach else 0
    if most <= 0:
        return "raise num_hot"
    digits = 10 ** max(2, ceil(log10(num_rows)))
    return f"lower frac_test to at most {floor(most * digits) / digits:.12g} or raise num_hot"


def _grow(
    rows: np.ndarray, num: int, rng: np.random.Generator, linked: bool, greedy: bool
) -> np.ndarray | None:
    """At most `num` random rows, each linked to those before it, that cover all modules; None at a dead end.

    A row must bring so many new modules that the rows after it, each bringing at most `reach`, can do the
    rest. A complete table always has such a row, because it has one of one old and K-1 new modules.
    """
    size = rows.sum(1, dtype=np.int64)
    reach = size.max() - linked
    known = np.zeros_like(size)
    covered = np.zeros(rows.shape[1], bool)
    grown = []
    for left in range(num - 1, -1, -1):
        gain = size - known
        allowed = (gain > 0) & ((known > 0) | (not linked or not grown))
        if not allowed.any():
            return None
        most = gain[allowed].max()
        need = most if greedy else min(most, np.count_nonzero(~covered) - left * reach)
        grown.append(rng.choice(np.flatnonzero(allowed & (gain >= need))))
        fresh = (rows[grown[-1]] > 0) & ~covered
        covered |= fresh
        known += rows[:, fresh].sum(1, dtype=np.int64)
        if covered.all():
            return np.array(grown)
    return None
