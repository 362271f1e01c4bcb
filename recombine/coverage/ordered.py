"""Coverage of ordered combinations: which neighbors and positions did training never have?

An example is a chain of modules, such as the steps of a program. A set of modules says nothing
about order, so a chain can be new although all its modules occur. A feature (module b directly
after a, or module a at position t) is covered if at least `evidence` distinct chains have it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.basics.errors import InputError, require
from recombine.basics.parquet_reader import LimitedFile
from recombine.basics.suggest import counted, did_you_mean
from recombine.coverage.combinations import Source

MAX_LISTED = 20  # missing features in the result
MAX_MODULES = 1_000

Chain = tuple[str, ...]
Feature = tuple[Any, ...]


def answer(
    table: Source,
    factors: str,
    separator: str = ";",
    held_out: Source | None = None,
    evidence: int = 1,
) -> tuple[dict[str, Any], list[str]]:
    """Answer `recombine coverage --ordered`: the result as plain values, and as lines of text.

    `factors` names one column of chains, as text with the separator, or several columns with the
    modules in order; the columns after the end of a chain are empty.
    """
    require(evidence >= 1, f"--evidence must be at least 1, got {evidence}")
    columns = [name.strip() for name in factors.split(",")]
    train = read_chains(table, columns, separator)
    test = None if held_out is None else read_chains(held_out, columns, separator)
    result = measure(train, test, evidence)
    return result, lines(result)


def read_chains(source: Source, columns: Sequence[str], separator: str) -> list[Chain]:
    """The chains of a table, one for each row that has a module."""
    frame = source if isinstance(source, pd.DataFrame) else _read(Path(source))
    for column in columns:
        if column not in frame:
            raise InputError(f"the table has no column {column!r}: {did_you_mean(column, frame)}")
    cells = frame[list(columns)].astype("string").fillna("")
    if len(columns) == 1:
        require(len(separator) > 0, "the separator is empty: name the text between modules")
        rows = [text.split(separator) for text in cells[columns[0]]]
    else:
        rows = cells.to_numpy().tolist()
    chains = [tuple(name.strip() for name in row) for row in rows]
    return [_without_empty_end(chain, number) for number, chain in enumerate(chains) if any(chain)]


def _read(path: Path) -> pd.DataFrame:
    try:
        if path.suffix == ".parquet":
            with LimitedFile(path) as file:
                return file.read().to_pandas()
        return pd.read_csv(path, dtype="string")
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot read {path} as a table ({reason})") from error


def _without_empty_end(chain: Chain, number: int) -> Chain:
    length = max(i for i, name in enumerate(chain) if name) + 1
    require(
        all(chain[:length]),
        f"row {number + 1} has an empty cell inside a chain: leave only the end of a row empty",
    )
    return chain[:length]


def measure(train: Sequence[Chain], test: Sequence[Chain] | None, evidence: int) -> dict[str, Any]:
    """Neighbors and positions in fewer chains than `evidence`, and which test chains need them.

    Evidence counts distinct chains, not examples.
    """
    require(len(train) > 0, "the table has no chains: name columns with modules")
    distinct = set(train)
    modules = sorted({name for chain in distinct for name in chain})
    require(
        len(modules) <= MAX_MODULES,
        f"the chains have {len(modules):,} different modules, more than {MAX_MODULES:,}: name "
        "columns with fewer values",
    )
    longest = max(map(len, distinct))
    repeats = any(first == second for chain in distinct for first, second in neighbors(chain))
    pairs = [(a, b) for a in modules for b in modules if a != b or repeats]
    places = [(t, name) for t in range(1, longest + 1) for name in modules]
    of_neighbors = Counter(pair for chain in distinct for pair in set(neighbors(chain)))
    of_positions = Counter(position for chain in distinct for position in positions(chain))
    result: dict[str, Any] = {
        "examples": len(train),
        "chains": len(distinct),
        "modules": modules,
        "evidence": evidence,
        "lengths": {str(n): count for n, count in sorted(Counter(map(len, distinct)).items())},
        "neighbors": _gaps(pairs, of_neighbors, evidence),
        "positions": _gaps(places, of_positions, evidence),
    }
    if test is not None:
        known = set(modules)
        new = [chain for chain in set(test) if chain not in distinct]
        result["held_out"] = {
            "chains": len(set(test)),
            "in_training": len(set(test)) - len(new),
            "new_modules": sum(not known.issuperset(chain) for chain in new),
            "new_neighbors": _num_needing(map(neighbors, new), of_neighbors, evidence),
            "new_positions": _num_needing(map(positions, new), of_positions, evidence),
            "longer": sum(len(chain) > longest for chain in new),
        }
    return result


def neighbors(chain: Chain) -> list[Feature]:
    """The pairs of modules that follow each other."""
    return list(itertools.pairwise(chain))


def positions(chain: Chain) -> list[Feature]:
    """Each module with its position, counted from 1."""
    return list(enumerate(chain, start=1))


def _gaps(possible: list[Feature], counts: Counter[Feature], evidence: int) -> dict[str, Any]:
    missing = [feature for feature in possible if counts[feature] < evidence]
    return {
        "possible": len(possible),
        "missing": len(missing),
        "first": [list(feature) for feature in missing[:MAX_LISTED]],
    }


def _num_needing(chains: Iterable[list[Feature]], counts: Counter[Feature], evidence: int) -> int:
    """How many chains have a feature that occurs in fewer train chains than `evidence`."""
    return sum(any(counts[feature] < evidence for feature in chain) for chain in chains)


def lines(result: dict[str, Any]) -> list[str]:
    """The result as lines of text, for the terminal."""
    longest = max(map(int, result["lengths"]))
    text = [
        f"{counted(result['examples'], 'example')} with {counted(result['chains'], 'chain')} of "
        f"up to {longest} of {counted(len(result['modules']), 'module')}"
    ]
    least = result["evidence"]
    for kind, spelled in (("neighbors", _spell_pair), ("positions", _spell_place)):
        gaps = result[kind]
        text.append(
            f"{gaps['missing']:,} of {gaps['possible']:,} {kind} occur in fewer than "
            f"{counted(least, 'chain')}"
        )
        text += [f"  {spelled(feature)}" for feature in gaps["first"]]
    held_out = result.get("held_out")
    if held_out:
        text.append(
            f"held-out chains: {held_out['chains']:,}, of which {held_out['in_training']:,} occur "
            f"in training, {held_out['new_modules']:,} have a new module, "
            f"{held_out['new_neighbors']:,} new neighbors, {held_out['new_positions']:,} a module "
            f"at a new position, and {held_out['longer']:,} are longer than all train chains"
        )
    return text


def _spell_pair(feature: Sequence[Any]) -> str:
    return f"{feature[0]} -> {feature[1]}"


def _spell_place(feature: Sequence[Any]) -> str:
    return f"{feature[1]} at position {feature[0]}"
