"""A compositional instruction language: sentences that name operations on a short list of letters.

    reverse and keep and mirror : d a f b e c =

The answer is the list reversed, with every letter mirrored. A task is the set of operations, a
k-hot row. The order of the words has no meaning: operations are always applied in the order of
OPERATIONS. "keep" fills up the sentence, so that all sentences are equally long.

An operation takes letter i of its answer from one position of the list and maps it; the map may
depend on i. The same is true of every combination of operations. Two tasks are the same function
exactly if these two tables, of positions and of letters, are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from recombine.basics.errors import require
from recombine.parts.field_checks import check
from recombine.parts.khot import all_rows

LETTERS = "abcdefghij"
KEEP = "keep"
AND = "and"
COLON = ":"
EQUALS = "="
# The position from which letter i of n is taken, and the letter that letter x of m becomes at
# position i. Operations are applied in this order.
Source = Callable[[Any, int], Any]
LetterMap = Callable[[Any, Any, int, int], Any]
OPERATIONS: dict[str, tuple[Source, LetterMap]] = {
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
    """Sentences of up to `num_hot` of the first `num_modules` operations.

    Lists have `length` letters of an alphabet of `num_letters`.
    """

    num_modules: int = 10
    num_hot: int = 3
    length: int = 8
    num_letters: int = 10

    def __post_init__(self):
        check(self, num_modules=1, num_hot=1, length=4, num_letters=4)
        require(
            self.num_modules <= len(OPERATIONS),
            f"num_modules must be at most {len(OPERATIONS)}, got {self.num_modules}",
        )
        require(
            self.num_hot <= self.num_modules,
            f"num_hot must be at most num_modules={self.num_modules}, got {self.num_hot}",
        )
        require(
            self.length % 2 == 0,
            "length must be even, because operations swap halves and pairs of the list, got "
            f"{self.length}",
        )
        require(
            self.num_letters <= len(LETTERS),
            f"num_letters must be at most {len(LETTERS)}, got {self.num_letters}",
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
        return all_rows(self.num_modules, self.num_hot)

    def functions(self, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The functions of these tasks as tables.

        The position that letter i is taken from (tasks x length), and the letter that it becomes
        (tasks x length x letters).
        """
        tables = [self._function(np.flatnonzero(task)) for task in tasks]
        sources = np.stack([source for source, _ in tables])
        letter_maps = np.stack([letter_map for _, letter_map in tables])
        return sources, letter_maps

    def _function(self, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = self.length
        m = self.num_letters
        positions = np.arange(n)
        operations = list(OPERATIONS.values())
        source = positions
        letter_map = np.tile(np.arange(m), (n, 1))
        for number in active:
            operation_source, operation_map = operations[number]
            taken = operation_source(positions, n)
            source = source[taken]
            letter_map = operation_map(letter_map[taken], positions[:, None], n, m)
        return source, letter_map

    def instructions(self, tasks: np.ndarray) -> np.ndarray:
        """The instructions of these tasks in all orders of their words.

        Tokens: tasks x orders x `num_asked`.
        """
        token_of = {word: token for token, word in enumerate(self.words)}
        orders = np.array(list(itertools.permutations(range(self.num_hot))))
        tokens = np.full((len(tasks), len(orders), self.num_asked), token_of[AND])
        tokens[:, :, -1] = token_of[COLON]
        for row, task in enumerate(tasks):
            words = [self.operations[number] for number in np.flatnonzero(task)]
            words += [KEEP] * (self.num_hot - len(words))
            named = np.array([token_of[word] for word in words])
            tokens[row, :, :-1:2] = named[orders]
        return tokens

    def text(self, tokens: Any) -> str:
        """Tokens as words."""
        return " ".join(self.words[token] for token in tokens)
