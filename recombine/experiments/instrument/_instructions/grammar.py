"""A compositional instruction language: sentences that name operations on a short list of letters.

    reverse and keep and mirror : d a f b e c =        the answer: the list reversed, every letter mirrored

Which words stand there is the task, a k-hot row of operations as elsewhere in the laboratory; the order of the words
means nothing, since operations are carried out in one order, that of OPERATIONS. A free place is filled by "keep", so
that all sentences are equally long. Every operation takes letter i of its answer from one place of the list and maps
it, by a map that may depend on i: so does every combination, and two tasks are the same function exactly where these
two tables are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from recombine.basics.errors import require
from recombine.parts.field_checks import check
from recombine.parts.khot import listed

LETTERS = "abcdefghij"
KEEP, AND, COLON, EQUALS = "keep", "and", ":", "="
# Where letter i of n comes from, and what letter x of m becomes at place i. In the order in which they are carried out.
Where = Callable[[Any, int], Any]
Becomes = Callable[[Any, Any, int, int], Any]
OPERATIONS: dict[str, tuple[Where, Becomes]] = {
    "reverse": (lambda i, n: n - 1 - i, lambda x, i, n, m: x),
    "raise": (lambda i, n: i, lambda x, i, n, m: (x + 1) % m),
    "swap": (lambda i, n: (i + n // 2) % n, lambda x, i, n, m: x),
    "mirror": (lambda i, n: i, lambda x, i, n, m: m - 1 - x),
    "rotate": (lambda i, n: (i + 1) % n, lambda x, i, n, m: x),
    "stripe": (lambda i, n: i, lambda x, i, n, m: (x + 2 * (i % 2)) % m),
    "pair": (lambda i, n: i ^ 1, lambda x, i, n, m: x),
    "trade": (lambda i, n: i, lambda x, i, n, m: np.where(x < 2, 1 - x, x)),
    "ends": (lambda i, n: np.where(i % (n - 1), i, n - 1 - i), lambda x, i, n, m: x),
    "tilt": (lambda i, n: i, lambda x, i, n, m: (x + 3 * (i >= n // 2)) % m),
}


@dataclass(frozen=True)
class Language:
    """Sentences of up to `num_hot` of the first `num_modules` operations, on lists of so many of so many letters."""

    num_modules: int = 10
    num_hot: int = 3
    length: int = 8
    num_letters: int = 10

    def __post_init__(self):
        check(self, num_modules=1, num_hot=1, length=4, num_letters=4)
        most = len(OPERATIONS)
        require(
            self.num_modules <= most, f"num_modules must be at most {most}, got {self.num_modules}"
        )
        told = f"num_hot must be at most num_modules={self.num_modules}, got {self.num_hot}"
        require(self.num_hot <= self.num_modules, told)
        require(
            self.length % 2 == 0,
            f"length must be even, since operations swap its halves and its pairs, got {self.length}",
        )
        most = len(LETTERS)
        require(
            self.num_letters <= most, f"num_letters must be at most {most}, got {self.num_letters}"
        )

    @property
    def operations(self) -> list[str]:
        """The words of the operations."""
        return list(OPERATIONS)[: self.num_modules]

    @property
    def words(self) -> list[str]:
        """The vocabulary, letters first: the token of a letter is its number."""
        return [*LETTERS[: self.num_letters], KEEP, AND, COLON, EQUALS, *self.operations]

    @property
    def num_asked(self) -> int:
        """Tokens of an instruction, its colon included."""
        return 2 * self.num_hot

    def tasks(self) -> np.ndarray:
        """All k-hot rows, those with fewer operations first."""
        return listed(self.num_modules, self.num_hot)

    def functions(self, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What these tasks do: where letter i comes from (tasks x length), and what it becomes (… x letters)."""
        found = [self._function(np.flatnonzero(task)) for task in tasks]
        return np.stack([where for where, _ in found]), np.stack([becomes for _, becomes in found])

    def _function(self, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, m = self.length, self.num_letters
        places, known = np.arange(n), list(OPERATIONS.values())
        where, becomes = places, np.tile(np.arange(m), (n, 1))
        for number in active:
            take, turn = known[number]
            taken = take(places, n)
            where, becomes = where[taken], turn(becomes[taken], places[:, None], n, m)
        return where, becomes

    def instructions(self, tasks: np.ndarray) -> np.ndarray:
        """The instructions of these tasks in all orders of their words, as tokens: tasks x orders x `num_asked`."""
        place = {word: number for number, word in enumerate(self.words)}
        orders, names = list(itertools.permutations(range(self.num_hot))), self.operations
        told = np.full((len(tasks), len(orders), self.num_asked), place[AND])
        told[:, :, -1] = place[COLON]
        for row, task in enumerate(tasks):
            said = [place[names[number]] for number in np.flatnonzero(task)]
            said += [place[KEEP]] * (self.num_hot - len(said))
            told[row, :, :-1:2] = [[said[number] for number in order] for order in orders]
        return told

    def text(self, tokens: Any) -> str:
        """Tokens as words."""
        return " ".join(self.words[token] for token in tokens)
