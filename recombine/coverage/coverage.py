"""Measure which combinations a table of training examples covers, and which to add.

The table has one column per factor, columns of sets of concepts, or both. `Coverage` checks the
conditions under which known parts can be combined in new ways (`conditions.py`), lists the rarest
values and the missing combinations, and suggests combinations to add (`advice.py`).

It counts distinct combinations and examples. A combination with fewer examples than the reference
number counts in part: with a tenth of it, as a tenth of a combination. The reference number is the
geometric mean of the numbers of examples, unless `examples_needed` gives another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recombine.basics.errors import require
from recombine.coverage.advice import Advice, Adviser, Suggestion
from recombine.coverage.combinations import Source, count, encode
from recombine.coverage.constraints import Costs, Partial, rules
from recombine.coverage.expected_drop import Trained
from recombine.coverage.space import Space

MAX_EXAMPLES_RATIO = 2  # of the most to the least frequent value of a balanced factor
MAX_LISTED = 20  # rarest values and missing combinations in the result


class Coverage:
    """The coverage of a table of training examples.

    `factors` names the columns, one per factor. Those in `sets` hold sets of concepts, as text with
    a separator or as lists; without `sets`, a single column does. Combinations in the table
    `held_out` are never suggested; values that occur only there count as absent. So do the values
    by column in `values`, which may occur but need not.

    `forbid` lists partial combinations that are impossible, such as {"shape": "fish", "action":
    "fly"}. `costs` is a table with a column `cost` and some of the factors, or the name of a column
    of the train table. `examples_needed` is the number of examples that a combination needs.
    """

    def __init__(
        self,
        table: Source,
        factors: Sequence[str],
        separator: str = ";",
        held_out: Source | None = None,
        *,
        sets: Sequence[str] | None = None,
        forbid: Sequence[Partial] = (),
        values: Mapping[str, Sequence[str]] | None = None,
        costs: Source | None = None,
        examples_needed: int | None = None,
    ):
        _check_arguments(factors, sets, separator, values, examples_needed)
        cost_column = costs if isinstance(costs, str) and not _is_file_name(costs) else None
        tables = [count(table, factors, separator, sets, cost_column)]
        if held_out is not None:
            tables.append(count(held_out, factors, separator, sets))
        self.num_rows = tables[0].num_rows
        self.num_skipped = tables[0].num_skipped
        self.modules, (self.combinations, *others) = encode(tables, factors, sets, values)
        codes = self.combinations.codes
        self.held_out = others[0].codes if others else codes[:0]
        self.space = Space(self.modules.starts, self._sizes(codes), rules(forbid, self.modules))
        require(
            self.space.num_possible > 0,
            "every combination is forbidden: forbid fewer of them",
        )
        self.examples_needed = examples_needed or _reference_number(self.combinations.examples)
        self.amounts = np.minimum(1, self.combinations.examples / self.examples_needed)
        self.cooccurrence = _cooccurrence(codes, self.space.num_modules)
        self.counts = np.diag(self.cooccurrence)
        effective = _sum_by_module(codes, self.amounts, self.space.num_modules)
        self.trained = Trained.of(self.space, self.cooccurrence, effective)
        self.costs = self._costs(costs, cost_column, separator)

    def _sizes(self, codes: np.ndarray) -> tuple[tuple[int, ...], ...]:
        """The numbers of values of each column in a combination: one, or the sizes that occur."""
        sizes = []
        for name, first, end in zip(
            self.modules.factors, self.modules.starts[:-1], self.modules.starts[1:], strict=True
        ):
            if name in self.modules.sets:
                own = (codes >= first) & (codes < end)
                sizes.append(tuple(np.unique(own.sum(axis=1)).tolist()))
            else:
                sizes.append((1,))
        return tuple(sizes)

    def _costs(self, costs: Source | None, column: str | None, separator: str) -> Costs:
        if costs is None:
            return Costs(self.space)
        if column is not None:
            return Costs.from_column(self.space, self.combinations)
        return Costs.from_table(self.space, self.modules, costs, separator)

    @property
    def compositional(self) -> bool:
        """Whether every value occurs."""
        return bool(self.trained.counts.min() > 0)

    @property
    def components(self) -> list[list[str]]:
        """The groups of values that shared combinations link, the largest first."""
        return [[self.modules.names[module] for module in group] for group in self.trained.groups()]

    @property
    def connected(self) -> bool:
        """Whether shared combinations link all values."""
        return len(self.trained.groups()) == 1

    @property
    def balanced(self) -> bool:
        """Whether the values of each factor are balanced in combinations and in examples."""
        return self.balanced_combinations and self.balanced_examples

    @property
    def balanced_combinations(self) -> bool:
        """Whether the values of each factor occur in equally many combinations, up to one."""
        return all(int(np.ptp(self.counts[block])) <= 1 for block in self.space.blocks)

    @property
    def balanced_examples(self) -> bool:
        """Whether no value of a factor has more than twice the examples of another, up to one."""
        numbers = [self.num_examples[block] for block in self.space.blocks]
        return all(
            bool(np.ptp(own) <= 1 or own.max() <= MAX_EXAMPLES_RATIO * own.min()) for own in numbers
        )

    @property
    def num_examples(self) -> np.ndarray:
        """The number of examples with each value: (modules,)."""
        combinations = self.combinations
        sums = _sum_by_module(combinations.codes, combinations.examples, self.space.num_modules)
        return sums.astype(np.int64)

    @property
    def examples_ratio(self) -> float:
        """The examples of a value per example of another value of its factor, at the most."""
        ratios = [
            self.num_examples[block].max() / max(self.num_examples[block].min(), 1)
            for block in self.space.blocks
        ]
        return float(max(ratios))

    @property
    def spanned(self) -> bool:
        """Whether every missing combination is a linear combination of those in the table."""
        return self.trained.num_missing_directions <= 0

    @property
    def rarest(self) -> list[dict[str, Any]]:
        """The rarest values, with their numbers of combinations and examples."""
        num_examples = self.num_examples
        counts = self.counts
        order = np.lexsort((num_examples, counts, self.trained.counts))[:MAX_LISTED]
        return [
            {
                "value": self.modules.names[module],
                "combinations": int(counts[module]),
                "examples": int(num_examples[module]),
            }
            for module in order.tolist()
        ]

    @property
    def missing(self) -> dict[str, Any]:
        """The numbers of missing and of possible combinations, and the first missing ones."""
        codes = self.combinations.codes
        num_possible = self.space.num_possible
        num_present = int(np.count_nonzero(self.space.allowed(codes)))
        present = set(map(tuple, codes.tolist()))
        possible = self.space.combinations_of(np.arange(self.space.num_modules))
        missing = (code for code in possible if code not in present)
        first = itertools.islice(missing, MAX_LISTED)
        return {
            "count": num_possible - num_present,
            "of": num_possible,
            "first": [self.describe(np.array(code)) for code in first],
        }

    def describe(self, code: np.ndarray) -> Any:
        """The values of a combination by factor, or the list of its concepts.

        Sets beside factors are lists of their concepts.
        """
        modules = np.sort(code[code >= 0])
        all_values = [value for values in self.modules.values for value in values]
        by_column = [
            [all_values[module] for module in modules[self.space.block_of[modules] == number]]
            for number in range(len(self.modules.factors))
        ]
        if len(by_column) == 1:
            return by_column[0]
        return {
            name: values if name in self.modules.sets else values[0]
            for name, values in zip(self.modules.factors, by_column, strict=True)
        }

    tell = describe  # its name before; to be removed with the next release

    def suggest(self, num: int = 20, budget: float | None = None) -> Advice:
        """Suggest at most `num` combinations to add, the most helpful first.

        With a budget, their costs add up to at most that much.
        """
        require(num >= 0, f"the number of suggestions must not be negative, got {num}")
        require(
            budget is None or (budget >= 0 and not math.isnan(budget)),
            f"the budget must not be negative, got {budget}",
        )
        adviser = Adviser(
            self.trained,
            self.cooccurrence,
            self.combinations.codes,
            self.held_out,
            self.amounts,
            self.costs,
        )
        return adviser.advise(num, math.inf if budget is None else budget)

    def result(self, num: int = 20, budget: float | None = None) -> dict[str, Any]:
        """Everything as plain values, for JSON, with at most `num` suggestions."""
        advice = self.suggest(num, budget)
        return {
            "factors": self.modules.factors,
            "examples": self.num_rows - self.num_skipped,
            "combinations": len(self.combinations.codes),
            "compositional": self.compositional,
            "connected": self.connected,
            "components": self.components,
            "balanced": self.balanced,
            "balanced_combinations": self.balanced_combinations,
            "balanced_examples": self.balanced_examples,
            "examples_ratio": self.examples_ratio,
            "examples_needed": self.examples_needed,
            "spanned": self.spanned,
            "rarest": self.rarest,
            "missing": self.missing,
            "suggestions": [self._plain(suggestion) for suggestion in advice.suggestions],
            "goals": [goal._asdict() | {"optimal": goal.optimal} for goal in advice.goals],
            "stopped": advice.stopped,
            "cost": advice.cost,
            "expected_drop": {"now": advice.drop_before, "then": advice.drop_after},
            "notes": self._notes(),
        }

    def _plain(self, suggestion: Suggestion) -> dict[str, Any]:
        """A suggestion as plain values, with its reason in words."""
        rarest = self.modules.names[suggestion.rarest]
        is_new = not (self.combinations.codes == suggestion.code).all(axis=1).any()
        if suggestion.joins > 1:
            reason = f"joins {suggestion.joins} groups"
        elif suggestion.spans:
            reason = "is linearly independent of the table"
        elif is_new:
            reason = f"raises the count of {rarest}"
        else:
            reason = f"is in the table, but has few examples of {rarest}"
        plain = {
            "combination": self.describe(suggestion.code),
            "why": reason,
            "gain": suggestion.gain,
            "new": is_new,
            "examples": math.ceil(suggestion.amount * self.examples_needed - 1e-9),
        }
        return plain | ({"cost": suggestion.cost} if self.costs.given else {})

    def _notes(self) -> list[str]:
        notes = [f"{name} has only one value and was left out" for name in self.modules.constant]
        if self.num_skipped:
            notes.append(
                f"{self.num_skipped} of {self.num_rows} rows have an empty cell and were left out"
            )
        num_forbidden = int(np.count_nonzero(~self.space.allowed(self.combinations.codes)))
        if num_forbidden:
            notes.append(
                f"{num_forbidden} of the table's combinations are forbidden: they count as trained"
            )
        if self.costs.given:
            notes.append(self.costs.note)
        return notes


def _check_arguments(
    factors: Any, sets: Any, separator: str, values: Any, examples_needed: int | None
) -> None:
    require(
        not isinstance(factors, str),
        f"factors is a list of columns, got {factors!r}: write [{factors!r}]",
    )
    require(len(factors) > 0 and all(factors), "no factors: name the columns that hold the factors")
    require(not isinstance(sets, str), f"sets is a list of columns, got {sets!r}: write [{sets!r}]")
    require(len(separator) > 0, "the separator is empty: name the text between concepts, e.g. ';'")
    require(
        examples_needed is None or examples_needed >= 1,
        f"the number of examples needed must be at least 1, got {examples_needed}",
    )
    for name, declared in (values or {}).items():
        require(
            not isinstance(declared, str),
            f"values lists the values of each column: write {{{name!r}: [{declared!r}]}}",
        )


def _is_file_name(text: str) -> bool:
    return Path(text).suffix.lower() in (".csv", ".parquet")


def _reference_number(examples: np.ndarray) -> int:
    """The geometric mean of the numbers of examples, rounded."""
    return max(1, round(float(np.exp(np.log(examples).mean()))))


def _sum_by_module(codes: np.ndarray, values: np.ndarray, num_modules: int) -> np.ndarray:
    """The sum of the values of the combinations with each module."""
    total = np.zeros(num_modules + 1)
    for column in codes.T:  # the padding -1 adds to the last entry
        np.add.at(total, column, values)
    return total[:-1]


def _cooccurrence(codes: np.ndarray, num_modules: int) -> np.ndarray:
    """The number of combinations with both modules: (modules, modules), counts on the diagonal."""
    size = num_modules + 1  # one more, for the padding
    columns = np.where(codes < 0, num_modules, codes).T
    total = np.zeros(size**2, np.int64)
    for a, b in itertools.product(columns, repeat=2):
        total += np.bincount(a * size + b, minlength=size**2)
    return total.reshape(size, size)[:-1, :-1].astype(float)
