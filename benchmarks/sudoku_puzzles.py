"""Generate the stored puzzles of the family Sudoku: `python benchmarks/sudoku_puzzles.py`.

Generating takes minutes. The result depends on the seed alone, so it can be repeated.
"""

import numpy as np

from recombine.parts.sudoku_puzzles import STORED_FILE, Puzzles, Shape, generate, stored_name

SIX = Shape(6, 2, 3)
FOUR = Shape(4, 2, 2)
# Shape, number of clues (0: as few as possible), number of puzzles, seed.
SETS = (
    (SIX, 0, 1600, 0),
    (SIX, 14, 1600, 0),
    (FOUR, 0, 1600, 0),
)


def main() -> None:
    """Write the puzzles of all sets into one file."""
    arrays = {}
    for shape, num_clues, num_puzzles, seed in SETS:
        puzzles = generate(shape, num_clues, num_puzzles, seed)
        name = stored_name(shape, num_clues, seed)
        for field in Puzzles._fields:
            arrays[f"{name}/{field}"] = getattr(puzzles, field)
        arrays[f"{name}/is_all"] = np.array(len(puzzles.puzzles) < num_puzzles)
        print(name, len(puzzles.puzzles), "puzzles, grades", np.bincount(puzzles.search))
    np.savez_compressed(STORED_FILE, **arrays)


if __name__ == "__main__":
    main()
