"""Sudoku: fill the empty cells of a grid so that no digit repeats in a row, a column or a box.

    row, column and box:  each has every digit 1 to N once;  every puzzle has exactly one solution

A task is one puzzle. The table has no two symmetric copies: puzzles that differ by names of digits,
by order of lines or by a transposition. So no split of the table puts copies on both sides, and
each draw of a puzzle may be any of its copies. Protocol of augmentation: TRM (arXiv 2510.04871).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from recombine.basics.errors import InputError, require
from recombine.parts import sequences, sudoku_puzzles
from recombine.parts.field_checks import check
from recombine.parts.protocols import Nodes
from recombine.parts.sudoku_puzzles import Puzzles, Shape

EMPTY = 1  # the word of an empty cell; word 0 is padding


@dataclass(frozen=True)
class Sudoku:
    """Puzzles of N x N cells with one solution; the answer is a digit for each empty cell.

    - `size`, `box_height`, `box_width`: N and the shape of a box of N cells.
    - `num_clues`: the number of given digits; 0 leaves no more than the solution needs. A puzzle
      has more if one of them cannot be removed.
    - `num_puzzles`: the number of puzzles in the table, drawn with `table_seed`. There may be fewer
      that are not copies of each other.
    - `augment`: every draw of a puzzle is a random one of its symmetric copies, on both sides of a
      split.

    Puzzles are graded by the rules that solve them (`groups`). The view `solutions` has the class
    of the solution: with `HeldOutFeatures(view="solutions")`, no solution of a test puzzle is a
    symmetric copy of a solution of a train puzzle.

    A task is the puzzle as a one-hot row, then its number in the table and the symmetry that was
    drawn. The puzzle itself is what `sentence` has: use the encoding `Language`.
    """

    size: int = 6
    box_height: int = 2
    box_width: int = 3
    num_clues: int = 0
    num_puzzles: int = 1600
    augment: bool = True
    table_seed: int = 0
    deterministic: ClassVar[bool] = True
    views: ClassVar[tuple[str, ...]] = ("modules", "solutions")

    def __post_init__(self):
        check(self, size=2, box_height=1, box_width=1, num_clues=0, num_puzzles=2, table_seed=0)
        require(
            self.size <= 6,
            f"Sudoku.size={self.size} is too large: canonical forms are computed up to size 6",
        )
        require(
            self.box_height * self.box_width == self.size,
            f"boxes of {self.box_height} x {self.box_width} cells do not tile a Sudoku grid of "
            f"{self.size} x {self.size}: box_height * box_width must be size",
        )
        require(
            self.num_clues <= self.num_cells,
            f"Sudoku.num_clues={self.num_clues} is more than the {self.num_cells} cells of the "
            "grid: lower it",
        )
        require(
            self.num_clues < self.num_cells,
            f"Sudoku.num_clues={self.num_clues} leaves no empty cell: lower it",
        )

    @property
    def shape(self) -> Shape:
        """The size of the grid and of its boxes."""
        return Shape(self.size, self.box_height, self.box_width)

    @property
    def num_cells(self) -> int:
        """The number of cells of the grid."""
        return self.size**2

    @property
    def num_modules(self) -> int:
        """The number of digits."""
        return self.size

    @property
    def num_outputs(self) -> int:
        """One logit for each cell and digit."""
        return self.num_cells * self.size

    def stored(self) -> Puzzles:
        """The puzzles with their solutions, grades and classes."""
        return sudoku_puzzles.load(self.shape, self.num_clues, self.num_puzzles, self.table_seed)

    def tasks(self) -> Int[np.ndarray, "P row"]:
        """The digits of every puzzle (0 for empty cells), and the number of the puzzle."""
        puzzles = self.stored().puzzles
        return np.column_stack([puzzles, np.arange(len(puzzles))]).astype(np.int16)

    def modules(self, tasks: np.ndarray) -> np.ndarray:
        """Which digits are given in each puzzle."""
        return self.view("modules", tasks)

    def view(self, name: str, tasks: np.ndarray) -> np.ndarray:
        """The given digits, or the class of the solution, as 0/1 rows."""
        if name == "modules":
            return sequences.view("modules", tasks[:, :-1], self.size)
        if name == "solutions":
            classes = self.stored().solution_class
            return np.eye(int(classes.max()) + 1, dtype=np.int8)[classes[tasks[:, -1]]]
        raise InputError(f"there is no view {name!r}: choose one of {', '.join(self.views)}")

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """Scores are also reported by the grade of the puzzle (`sudoku_puzzles.grade`)."""
        return {"search": self.stored().search[tasks[:, -1]].astype(np.int32)}

    def init(self, key: PRNGKeyArray) -> Int[Array, "P cells"]:
        """The solutions of the table. Nothing is drawn."""
        return jnp.asarray(self.stored().solutions, jnp.int32)

    def weigh(self, key: PRNGKeyArray, row: Shaped[Array, " row"]) -> Float[Array, " features"]:
        """The puzzle or a random symmetric copy as a float row, and how it was made."""
        symmetry = self._draw_symmetry(key)
        puzzle = self._transform(symmetry, row[:-1].astype(jnp.int32))
        numbers = jnp.concatenate([row[-1:].astype(jnp.int32), symmetry])
        return jnp.concatenate([sequences.one_hot(puzzle, self.size), numbers.astype(jnp.float32)])

    def _draw_symmetry(self, key: PRNGKeyArray) -> Int[Array, " symmetry"]:
        """New names of the digits, the orders of rows and columns, and whether to transpose."""
        n, height, width = self.shape
        if not self.augment:
            return jnp.concatenate([jnp.tile(jnp.arange(n), 3), jnp.zeros(1, int)])
        bits = jax.random.bits(key, (n + 3,))
        row_orders = jnp.asarray(sudoku_puzzles.line_orders(n // height, height), jnp.int32)
        column_orders = jnp.asarray(sudoku_puzzles.line_orders(n // width, width), jnp.int32)
        rows = row_orders[bits[n] % jnp.uint32(len(row_orders))]
        columns = column_orders[bits[n + 1] % jnp.uint32(len(column_orders))]
        is_transposed = bits[n + 2 :] % jnp.uint32(2) if height == width else jnp.zeros(1)
        pieces = [bits[:n].argsort(), rows, columns, is_transposed]
        return jnp.concatenate([piece.astype(jnp.int32) for piece in pieces])

    def _transform(
        self, symmetry: Int[Array, " symmetry"], grid: Int[Array, " cells"]
    ) -> Int[Array, " cells"]:
        """A symmetric copy of a grid, in which empty cells stay empty."""
        n = self.size
        names, rows, columns = symmetry[:-1].reshape(3, n)
        square = grid.reshape(n, n)[rows][:, columns]
        square = jnp.where(symmetry[-1] > 0, square.T, square)
        return jnp.concatenate([jnp.zeros(1, int), names + 1])[square.reshape(-1)]

    def _split(self, task: Float[Array, " features"]) -> tuple[Array, Array, Array]:
        """The puzzle, its number in the table and its symmetry."""
        numbers = task[self.num_cells * self.size :].astype(jnp.int32)
        puzzle = sequences.words_of(task[: self.num_cells * self.size], self.size)
        return puzzle, numbers[0], numbers[1:]

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The padding, the empty cell and the digits."""
        return ("-", "empty", *map(str, range(1, self.size + 1)))

    def sentence(self, task: Float[Array, " features"]) -> Int[Array, " cells"]:
        """One word for each cell."""
        return self._split(task)[0] + EMPTY

    def sample(
        self,
        world: Int[Array, "P cells"],
        key: PRNGKeyArray,
        task: Float[Array, " features"],
        n: int,
    ) -> tuple[Float[Array, "n 1"], Nodes]:
        """The puzzle n times: the solution, of which the empty cells count. The key is not used."""
        puzzle, number, symmetry = self._split(task)
        solution = self._transform(symmetry, world[number])
        values = jnp.broadcast_to(solution - 1, (n, self.num_cells))
        exists = jnp.broadcast_to(puzzle == 0, values.shape)
        answer = jnp.broadcast_to(jnp.arange(self.num_cells), values.shape)
        return jnp.ones((n, 1)), Nodes(values, exists, answer)

    def score(self, prediction: Array, y: Nodes) -> dict[str, Array]:
        """Cross-entropy, the fraction of puzzles solved, and that of empty cells (`node_accuracy`).

        A prediction has shape (n, cells * size).
        """
        return sequences.classification_scores(prediction, y)
