"""What may be added to a train set: forbidden combinations, values that may occur, and costs.

Texts of the command line become the same plain values that the Python interface takes:
`shape=fish,action=fly` is a forbidden partial combination, `shape=fish,bird` declares values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recombine.basics.errors import InputError, require
from recombine.basics.suggest import did_you_mean
from recombine.coverage.combinations import (
    CONCEPT_SEPARATOR,
    NUM_EXAMPLES,
    TOTAL_COST,
    Combinations,
    Counts,
    Modules,
    Source,
    column_names,
    count,
)
from recombine.coverage.space import Rule, Space
from recombine.parts.conditions import stamps

COST = "cost"  # the column of a table of costs that holds them
Partial = Mapping[str, Any] | str  # a value, or several concepts of a set, by column; or as text


def parse_partial(text: str) -> dict[str, list[str]]:
    """Parse `shape=fish,action=fly`. A value with a comma is quoted: `shape="a, b"`."""
    partial: dict[str, list[str]] = {}
    for part in _split(text):
        name, equals, value = part.partition("=")
        require(
            bool(equals and name.strip() and value.strip()),
            f"cannot read the combination {text!r}: write COLUMN=VALUE,COLUMN=VALUE",
        )
        partial.setdefault(name.strip(), []).append(value.strip())
    return partial


def parse_declared(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parse texts such as `shape=fish,bird`, one per column."""
    declared: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        own = [value.strip() for value in _split(values) if value.strip()]
        require(
            bool(equals and name.strip() and own),
            f"cannot read the values {text!r}: write COLUMN=VALUE,VALUE",
        )
        declared.setdefault(name.strip(), []).extend(own)
    return declared


def _split(text: str) -> list[str]:
    """The parts between commas; quoted parts may contain commas."""
    # Not the module csv: it wants `"a=x, y"`, but people write `a="x, y"`.
    parts = [""]
    inside = False
    for character in text:
        if character == '"':
            inside = not inside
        elif character == "," and not inside:
            parts.append("")
        else:
            parts[-1] += character
    require(not inside, f"cannot read {text!r}: a quotation mark is not closed")
    return parts


def rules(forbid: Sequence[Partial], modules: Modules) -> tuple[Rule, ...]:
    """Forbidden partial combinations as sets of modules."""
    require(
        not isinstance(forbid, str | Mapping),
        "forbid is a list of partial combinations: write [{'shape': 'fish', 'action': 'fly'}]",
    )
    forbidden = []
    for partial in forbid:
        values_by_factor = parse_partial(partial) if isinstance(partial, str) else dict(partial)
        require(
            len(values_by_factor) > 0, "a forbidden combination is empty: name at least one value"
        )
        rule = _rule(values_by_factor, modules)
        if rule is not None:
            forbidden.append(rule)
    return tuple(dict.fromkeys(forbidden))


def _rule(values_by_factor: Mapping[str, Any], modules: Modules) -> Rule | None:
    """The modules of a partial combination; None if it contains no combination."""
    known = [*modules.factors, *modules.constant]
    rule: set[int] = set()
    for name, value in values_by_factor.items():
        require(name in known, f"forbid: there is no factor {name!r}: {did_you_mean(name, known)}")
        values = [value] if not isinstance(value, list | tuple | set | frozenset) else list(value)
        texts = [str(each).strip() for each in values]
        require(
            name not in modules.constant,
            f"forbid: {name} has only one value, so it cannot be forbidden: leave it out",
        )
        column = modules.factors.index(name)
        own = modules.values[column]
        for text in texts:
            require(
                text in own,
                f"forbid: {name} has no value {text!r}: {did_you_mean(text, own)}"
                " (a value that does not occur yet must be declared)",
            )
        require(
            name in modules.sets or len(set(texts)) == 1,
            f"forbid: a combination has one value of {name}, not {' and '.join(texts)}: "
            "forbid each in a combination of its own",
        )
        rule |= {int(modules.starts[column]) + own.index(text) for text in texts}
    return frozenset(rule) or None


class Costs:
    """The cost of adding each combination: 1, unless a table or a column gives costs.

    A row of a table names the values of some columns, and its cost. A combination has the cost of
    the row that names the most of its values; of several such rows, the highest. Combinations
    without a row have the mean cost of all rows.

    A column of the train table gives the costs of its combinations. For the others the cost is
    estimated as a sum: the mean, and for each value how much its combinations differ from it.
    """

    def __init__(self, space: Space):
        self.space = space
        self.given = False
        self.note = ""  # how costs that are not given are estimated
        self.default = 1.0
        self.lowest = 1.0  # no combination costs less
        self.effects: np.ndarray | None = None  # (modules + 1,): of each value on the cost
        self.tables: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.hashes = np.append(stamps(space.num_modules), np.uint64(0))

    @classmethod
    def from_table(cls, space: Space, modules: Modules, source: Source, separator: str) -> Costs:
        """The costs of a table with some of the factors' columns, and the column `cost`."""
        columns = _columns_of(source, modules)
        sets = [name for name in columns if name in modules.sets]
        counts = count(source, columns, separator, sets, COST, may_be_empty=True)
        costs = cls(space)
        costs.given = True
        costs._add_rows(counts, columns, modules)
        costs.note = (
            f"a combination that the table of costs does not name costs {costs.default:g}, the mean"
        )
        return costs

    @classmethod
    def from_column(cls, space: Space, combinations: Combinations) -> Costs:
        """The costs of the train table's combinations, and estimates for the others."""
        observed = combinations.costs
        assert observed is not None
        costs = cls(space)
        costs.given = True
        costs.default = float(observed.mean())
        costs.lowest = float(observed.min())
        costs.note = "costs of missing combinations are estimated from those of their values"
        totals = np.zeros(space.num_modules + 1)
        numbers = np.zeros(space.num_modules + 1)
        for column in combinations.codes.T:  # the padding -1 adds to the last entry
            np.add.at(totals, column, observed - costs.default)
            np.add.at(numbers, column, 1)
        totals[-1] = 0.0
        costs.effects = totals / np.maximum(numbers, 1)
        costs._add_lookup(np.arange(combinations.codes.shape[1]), combinations.codes, observed)
        return costs

    def __call__(self, codes: np.ndarray) -> np.ndarray:
        """The cost of each combination."""
        if self.effects is None:
            costs = np.full(len(codes), self.default)
        else:
            estimate = self.default + self.effects[codes].sum(axis=1)
            costs = np.maximum(estimate, self.lowest)
        for places, hashes, values in self.tables:  # rows that name more values come later
            own = self.hashes[codes[:, places]].sum(axis=1, dtype=np.uint64)
            index = np.minimum(np.searchsorted(hashes, own), len(hashes) - 1)
            costs = np.where(hashes[index] == own, values[index], costs)
        return costs

    def _add_lookup(self, places: np.ndarray, codes: np.ndarray, values: np.ndarray) -> None:
        """Add costs of combinations of which only the modules in these places are given."""
        hashes = self.hashes[codes].sum(axis=1, dtype=np.uint64)
        order = np.lexsort((-values, hashes))  # the highest cost of equal rows first
        unique, first = np.unique(hashes[order], return_index=True)
        self.tables.append((places, unique, values[order][first]))

    def _add_rows(self, counts: Counts, columns: Sequence[str], modules: Modules) -> None:
        table = counts.table
        values = table.column(TOTAL_COST).to_numpy() / table.column(NUM_EXAMPLES).to_numpy()
        self.default = float(values.mean())
        self.lowest = float(values.min())
        cells = {name: table.column(name).to_pylist() for name in columns}
        rows: dict[tuple[str, ...], list[tuple[list[int], float]]] = {}
        for i, value in enumerate(values.tolist()):
            named = tuple(name for name in columns if cells[name][i])
            members = [_members(cells[name][i], name, modules) for name in named]
            if all(each is not None for each in members):
                flat = [module for each in members for module in each or ()]
                rows.setdefault(named, []).append((flat, value))
        by_number_of_values = sorted(rows, key=len)
        for named in by_number_of_values:
            places = self._places(named, modules)
            lines = rows[named]
            width = max(len(flat) for flat, _ in lines)
            codes = np.array([flat + [-1] * (width - len(flat)) for flat, _ in lines], int)
            self._add_lookup(
                places, codes.reshape(len(lines), width), np.array([c for _, c in lines])
            )

    def _places(self, named: Sequence[str], modules: Modules) -> np.ndarray:
        """The places of these columns in a combination."""
        ends = np.cumsum([0, *self.space.capacities])
        blocks = [modules.factors.index(name) for name in named]
        return np.concatenate([np.arange(ends[b], ends[b + 1]) for b in blocks] or [[]]).astype(int)


def _members(cell: str, name: str, modules: Modules) -> list[int] | None:
    """The modules of a cell of a table of costs; None if a value does not occur."""
    column = modules.factors.index(name)
    numbers = {value: number for number, value in enumerate(modules.values[column])}
    texts = (
        [cell] if name not in modules.sets else [t.strip() for t in cell.split(CONCEPT_SEPARATOR)]
    )
    members = [numbers.get(text) for text in texts if text]
    if any(number is None for number in members):
        return None
    return sorted(int(modules.starts[column]) + number for number in members if number is not None)


def _columns_of(source: Source, modules: Modules) -> list[str]:
    """The columns of a table of costs that are factors."""
    names = column_names(source, [COST])
    columns = [name for name in modules.factors if name in names]
    if not columns:
        raise InputError(
            f"the table of costs has no column of a factor: it needs a column {COST!r} and some of "
            f"{', '.join(modules.factors)}"
        )
    return columns
