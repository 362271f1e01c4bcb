"""Sudoku puzzles: rules, exact solutions, canonical forms, grades and generation, in numpy.

A grid of N x N cells is divided into boxes of h x w = N cells. Every row, column and box has every
digit 1 to N once. A puzzle is a grid with empty cells (0) and exactly one solution. Grids are flat
rows of N * N digits.

Symmetries permute digits, the rows within a band of boxes, the bands, the columns within a stack
of boxes, and the stacks. Square boxes also allow a transposition. The *canonical form* of a grid is
the smallest of all its symmetric copies, so two grids have equal canonical forms if and only if
they are copies.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from recombine.basics.random_streams import generator


class Shape(NamedTuple):
    """The size of a grid, and of its boxes."""

    size: int
    box_height: int
    box_width: int


class Puzzles(NamedTuple):
    """Puzzles (P, cells) with their solutions (P, cells), and for each puzzle its grade and the
    number of its solution's class.
    """

    puzzles: np.ndarray
    solutions: np.ndarray
    search: np.ndarray
    solution_class: np.ndarray


MAX_FAILED_DRAWS = 200  # in a row
STORED_FILE = Path(__file__).with_name("sudoku_puzzles.npz")  # of benchmarks/sudoku_puzzles.py

# The grade of a puzzle: what is needed to solve it.
NAKED_SINGLES = 0  # cells with one possible digit
HIDDEN_SINGLES = 1  # and digits with one possible cell in a row, column or box
FAILED_GUESSES = 2  # and guesses that these two rules refute
DEEP_SEARCH = 3  # guesses within guesses


@functools.lru_cache
def units(shape: Shape) -> tuple[tuple[int, ...], ...]:
    """The cells of every row, column and box."""
    n, height, width = shape
    rows = [tuple(range(n * i, n * i + n)) for i in range(n)]
    columns = [tuple(range(i, n * n, n)) for i in range(n)]
    boxes = [
        tuple(n * (top + i) + left + j for i in range(height) for j in range(width))
        for top in range(0, n, height)
        for left in range(0, n, width)
    ]
    return (*rows, *columns, *boxes)


@functools.lru_cache
def _peers(shape: Shape) -> tuple[tuple[int, ...], ...]:
    """For every cell the other cells of its row, column and box."""
    cells: list[set[int]] = [set() for _ in range(shape.size**2)]
    for unit in units(shape):
        for cell in unit:
            cells[cell] |= set(unit) - {cell}
    return tuple(tuple(sorted(cell)) for cell in cells)


# Candidates are one bit mask of possible digits for each cell; digit d is bit d - 1.
Candidates = list[int]


def _candidates(shape: Shape, puzzle: np.ndarray) -> Candidates | None:
    """The candidates after the clues are placed; None if the clues contradict each other."""
    candidates = [(1 << shape.size) - 1] * len(puzzle)
    for cell, digit in enumerate(puzzle.tolist()):
        if digit and not _assign(shape, candidates, cell, 1 << (digit - 1)):
            return None
    return candidates


def _assign(shape: Shape, candidates: Candidates, cell: int, bit: int) -> bool:
    """Place a digit and remove it from the peers, with all naked singles that follow from it.

    False if a cell has no candidate left.
    """
    if not candidates[cell] & bit:
        return False
    candidates[cell] = bit
    changed = [cell]
    while changed:
        placed = changed.pop()
        for peer in _peers(shape)[placed]:
            before = candidates[peer]
            after = before & ~candidates[placed]
            if after == before:
                continue
            if not after:
                return False
            candidates[peer] = after
            if not after & (after - 1):
                changed.append(peer)
    return True


def _place_hidden_singles(shape: Shape, candidates: Candidates) -> bool:
    """Place digits that have one possible cell in a unit, until there are none.

    False if a digit has no possible cell, or a cell no candidate.
    """
    is_changed = True
    while is_changed:
        is_changed = False
        for unit in units(shape):
            once, more = 0, 0
            for cell in unit:
                more |= once & candidates[cell]
                once |= candidates[cell]
            if once != (1 << shape.size) - 1:
                return False
            hidden = once & ~more
            for cell in unit:
                bit = candidates[cell] & hidden
                if bit and bit != candidates[cell]:
                    if bit & (bit - 1) or not _assign(shape, candidates, cell, bit):
                        return False
                    is_changed = True
    return True


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield mask & -mask
        mask &= mask - 1


def _is_solved(candidates: Candidates) -> bool:
    return all(not mask & (mask - 1) for mask in candidates)


def solutions(shape: Shape, puzzle: np.ndarray, most: int = 2) -> list[np.ndarray]:
    """The solutions of a grid with empty cells, at most `most` of them."""
    candidates = _candidates(shape, puzzle)
    if candidates is None:
        return []
    return list(itertools.islice(_search(shape, candidates), most))


def _search(
    shape: Shape, candidates: Candidates, rng: np.random.Generator | None = None
) -> Iterator[np.ndarray]:
    """All solutions: a guess at the cell with the fewest candidates, then the two rules."""
    if not _place_hidden_singles(shape, candidates):
        return
    if _is_solved(candidates):
        yield np.array([mask.bit_length() for mask in candidates], np.uint8)
        return
    open_cells = [cell for cell, mask in enumerate(candidates) if mask & (mask - 1)]
    cell = min(open_cells, key=lambda cell: candidates[cell].bit_count())
    guesses = list(_bits(candidates[cell]))
    if rng is not None:
        guesses = [guesses[i] for i in rng.permutation(len(guesses))]
    for bit in guesses:
        own = candidates.copy()
        if _assign(shape, own, cell, bit):
            yield from _search(shape, own, rng)


def grade(shape: Shape, puzzle: np.ndarray) -> int:
    """What solving a puzzle needs: `NAKED_SINGLES` to `DEEP_SEARCH`. Equal for symmetric copies."""
    candidates = _candidates(shape, puzzle)
    assert candidates is not None, "the clues contradict each other"
    if _is_solved(candidates):
        return NAKED_SINGLES
    _place_hidden_singles(shape, candidates)
    if _is_solved(candidates):
        return HIDDEN_SINGLES
    while _remove_failed_guesses(shape, candidates):
        if _is_solved(candidates):
            return FAILED_GUESSES
    return DEEP_SEARCH


def _remove_failed_guesses(shape: Shape, candidates: Candidates) -> bool:
    """Remove every candidate that the two rules refute. False if there is none."""
    is_changed = False
    for cell in range(len(candidates)):
        for bit in _bits(candidates[cell] if candidates[cell].bit_count() > 1 else 0):
            own = candidates.copy()
            if _assign(shape, own, cell, bit) and _place_hidden_singles(shape, own):
                continue
            rest = candidates[cell] & ~bit
            candidates[cell] = rest
            is_changed = True
            if rest.bit_count() == 1:
                _assign(shape, candidates, cell, rest)
                break
    _place_hidden_singles(shape, candidates)
    return is_changed


def line_orders(num_blocks: int, block: int) -> np.ndarray:
    """All orders of lines that permute blocks, and the lines within each block."""
    within = list(itertools.permutations(range(block)))
    orders = []
    for blocks in itertools.permutations(range(num_blocks)):
        for inner in itertools.product(within, repeat=num_blocks):
            order = [b * block + i for b, lines in zip(blocks, inner, strict=True) for i in lines]
            orders.append(order)
    return np.array(orders, np.int16)


@functools.lru_cache
def cell_orders(shape: Shape) -> np.ndarray:
    """For every symmetry of the cells, the cell that comes to each place: (symmetries, cells)."""
    n, height, width = shape
    rows = line_orders(n // height, height)
    columns = line_orders(n // width, width)
    cells = n * rows[:, None, :, None] + columns[None, :, None, :]
    cells = np.broadcast_to(cells, (len(rows), len(columns), n, n))
    if height == width:
        cells = np.concatenate([cells, cells.swapaxes(2, 3)])
    return cells.reshape(-1, n * n)


def canonical(shape: Shape, grid: np.ndarray) -> bytes:
    """The smallest symmetric copy of a grid. Digits are numbered in the order of occurrence."""
    copies = grid[cell_orders(shape)]
    cells = np.arange(copies.shape[1], dtype=np.int16)
    first = np.full((len(copies), shape.size + 1), len(cells), np.int16)
    for digit in range(1, shape.size + 1):
        is_digit = copies == digit
        first[:, digit] = np.where(is_digit, cells, len(cells)).min(axis=1)
    names = np.zeros_like(first)
    names[:, 1:] = first[:, 1:].argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") + 1
    relabeled = np.take_along_axis(names, copies.astype(np.int64), axis=1).astype(np.uint8)
    return min(row.tobytes() for row in relabeled)


def random_solution(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """A complete grid: a random search from a random first row, and a random symmetry."""
    candidates = [(1 << shape.size) - 1] * shape.size**2
    for cell, digit in enumerate(rng.permutation(shape.size)):
        _assign(shape, candidates, cell, 1 << int(digit))
    grid = next(_search(shape, candidates, rng))
    orders = cell_orders(shape)
    return grid[orders[rng.integers(len(orders))]]


def remove_clues(
    shape: Shape, solution: np.ndarray, num_clues: int, rng: np.random.Generator
) -> np.ndarray:
    """Remove clues in a random order while the solution stays unique and more are left."""
    puzzle = solution.copy()
    for cell in rng.permutation(len(puzzle)):
        if np.count_nonzero(puzzle) <= num_clues:
            break
        without = puzzle.copy()
        without[cell] = 0
        if len(solutions(shape, without)) == 1:
            puzzle = without
    return puzzle


def generate(shape: Shape, num_clues: int, num_puzzles: int, seed: int) -> Puzzles:
    """Draw puzzles of which no two are symmetric copies.

    A puzzle has `num_clues` clues, or more if no more can be removed. Fewer puzzles are returned if
    many draws in a row gave no new one. Classes of solutions are numbered in the order in which
    they occur, so the first puzzles do not depend on how many follow.
    """
    rng = generator(seed, f"sudoku {tuple(shape)} {num_clues}")
    found: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
    num_failures = 0
    while len(found) < num_puzzles and num_failures < MAX_FAILED_DRAWS:
        solution = random_solution(shape, rng)
        puzzle = remove_clues(shape, solution, num_clues, rng)
        form = canonical(shape, puzzle)
        num_failures = num_failures + 1 if form in found else 0
        found.setdefault(form, (puzzle, solution))
    forms = [canonical(shape, solution) for _, solution in found.values()]
    class_of = {form: i for i, form in enumerate(dict.fromkeys(forms))}
    return Puzzles(
        np.stack([puzzle for puzzle, _ in found.values()]),
        np.stack([solution for _, solution in found.values()]),
        np.array([grade(shape, puzzle) for puzzle, _ in found.values()], np.uint8),
        np.array([class_of[form] for form in forms], np.uint8),
    )


@functools.lru_cache(maxsize=8)
def load(shape: Shape, num_clues: int, num_puzzles: int, seed: int) -> Puzzles:
    """The puzzles that `generate` gives, from the stored file if it has them: that is faster."""
    name = stored_name(shape, num_clues, seed)
    with np.load(STORED_FILE) as stored:
        if f"{name}/puzzles" in stored:
            arrays = [stored[f"{name}/{field}"] for field in Puzzles._fields]
            is_all = bool(stored[f"{name}/is_all"])
            if is_all or len(arrays[0]) >= num_puzzles:
                return Puzzles(*(array[:num_puzzles] for array in arrays))
    return generate(shape, num_clues, num_puzzles, seed)


def stored_name(shape: Shape, num_clues: int, seed: int) -> str:
    """The name of a set of puzzles in the stored file."""
    return f"{shape.size}-{shape.box_height}x{shape.box_width}-{num_clues}-{seed}"
