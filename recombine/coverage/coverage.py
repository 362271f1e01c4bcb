"""Is a table of training examples enough to combine its parts anew, and what should be added to it?

From any table, one column per factor or one column of sets of concepts: is every value there, do shared combinations
link all values, are they equally frequent, do they span the others (`conditions`), which values are rarest, which
combinations are missing, and which to add (`advice`). Counts are of distinct combinations, as the conditions are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from recombine.basics.errors import require
from recombine.coverage.advice import Advice, Adviser, Suggestion
from recombine.coverage.outlook import Trained
from recombine.coverage.space import Factored, Sets
from recombine.coverage.tally import Source, count, encode

SHOWN = 20  # rarest values and missing combinations that are listed


class Coverage:
    """What a table of training examples covers and lacks.

    `factors` names the columns, one per factor, or one column of sets whose concepts a separator stands between (or
    lists). Combinations in the table `held_out` are never suggested, and values that only it has count as absent.
    """

    def __init__(
        self,
        table: Source,
        factors: Sequence[str],
        separator: str = ";",
        held_out: Source | None = None,
    ):
        require(
            not isinstance(factors, str),
            f"factors is a list of columns, got {factors!r}: write [{factors!r}]",
        )
        require(
            len(factors) > 0 and all(factors),
            "no factors: name the columns that tell what is combined",
        )
        require(
            len(separator) > 0, "the separator is empty: give what stands between concepts, ';' say"
        )
        tallies = [
            count(source, factors, separator) for source in (table, held_out) if source is not None
        ]
        self.modules, (self.combinations, *held) = encode(tallies, factors)
        self.num_rows, self.num_skipped = tallies[0].num_rows, tallies[0].num_skipped
        self.held_out = held[0].codes if held else self.combinations.codes[:0]
        codes = self.combinations.codes
        sizes = np.unique((codes >= 0).sum(axis=1)).tolist()
        self.space = (
            Sets(len(self.modules.names), tuple(sizes))
            if len(factors) == 1
            else Factored(self.modules.starts)
        )
        self.together = _together(codes, self.space.num_modules)
        self.trained = Trained.of(self.space, self.together)

    @property
    def compositional(self) -> bool:
        """Whether every value occurs."""
        return bool(self.trained.counts.min() > 0)

    @property
    def components(self) -> list[list[str]]:
        """The groups of values that shared combinations link, largest first."""
        return [[self.modules.names[module] for module in group] for group in self.trained.groups()]

    @property
    def connected(self) -> bool:
        """Whether shared combinations link all values."""
        return len(self.trained.groups()) == 1

    @property
    def balanced(self) -> bool:
        """Whether the values of each factor are in equally many combinations, give or take one."""
        return all(int(np.ptp(self.trained.counts[block])) <= 1 for block in self.space.blocks)

    @property
    def spanned(self) -> bool:
        """Whether every missing combination is a linear combination of those that are there."""
        return self.trained.lacking <= 0

    @property
    def rarest(self) -> list[dict[str, Any]]:
        """The values in the fewest combinations, with their numbers of combinations and examples."""
        counts, codes = self.trained.counts, self.combinations.codes
        examples = np.zeros(self.space.num_modules + 1, np.int64)  # -1 is the last one: nothing
        for column in codes.T:
            np.add.at(examples, column, self.combinations.examples)
        order = np.lexsort((examples[:-1], counts))[:SHOWN].tolist()
        names = self.modules.names
        return [
            {"value": names[m], "combinations": int(counts[m]), "examples": int(examples[m])}
            for m in order
        ]

    @property
    def missing(self) -> dict[str, Any]:
        """How many of all combinations are missing, and the first of them."""
        total = self.space.size(list(map(len, self.space.blocks)))
        present = set(map(tuple, self.combinations.codes.tolist()))
        every = self.space.among(np.arange(self.space.num_modules))
        first = itertools.islice((code for code in every if code not in present), SHOWN)
        return {
            "count": total - len(present),
            "of": total,
            "first": [self.tell(np.array(code)) for code in first],
        }

    def tell(self, code: np.ndarray) -> Any:
        """A combination by the names of its factors and values, or of its concepts."""
        values = [value for own in self.modules.values for value in own]
        named = [values[module] for module in sorted(code[code >= 0].tolist())]
        return (
            named
            if isinstance(self.space, Sets)
            else dict(zip(self.modules.factors, named, strict=True))
        )

    def suggest(self, num: int = 20) -> Advice:
        """At most `num` combinations to add, those first that help most."""
        require(num >= 0, f"the number of suggestions must not be negative, got {num}")
        return Adviser(self.trained, self.together, self.combinations.codes, self.held_out).advise(
            num
        )

    def result(self, num: int = 20) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        advice = self.suggest(num)
        return {
            "factors": self.modules.factors,
            "examples": self.num_rows - self.num_skipped,
            "combinations": len(self.combinations.codes),
            **{
                name: getattr(self, name)
                for name in ("compositional", "connected", "components", "balanced")
            },
            **{name: getattr(self, name) for name in ("spanned", "rarest", "missing")},
            "suggestions": [self._told(one) for one in advice.suggestions],
            "goals": [goal._asdict() | {"optimal": goal.optimal} for goal in advice.goals],
            "expected_drop": {"now": advice.drop, "then": advice.left},
            "notes": self._notes(),
        }

    def _told(self, one: Suggestion) -> dict[str, Any]:
        name = self.modules.names[one.rarest]
        if one.joins > 1:
            why = f"joins {one.joins} groups"
        elif one.spans:
            why = "spans a new direction"
        else:
            why = f"lifts {name}"
        return {"combination": self.tell(one.code), "why": why, "gain": one.gain}

    def _notes(self) -> list[str]:
        notes = [f"{name} has one value and was left out" for name in self.modules.constant]
        skipped = f"{self.num_skipped} of {self.num_rows} rows have an empty cell and were left out"
        return [*notes, skipped] if self.num_skipped else notes


def _together(codes: np.ndarray, num_modules: int) -> np.ndarray:
    """In how many combinations two modules occur together; on the diagonal, each one's count."""
    wide = num_modules + 1  # the last one stands for nothing
    columns = np.where(codes < 0, num_modules, codes).T
    total = sum(
        np.bincount(a * wide + b, minlength=wide**2)
        for a, b in itertools.product(columns, repeat=2)
    )
    return np.reshape(total, (wide, wide))[:-1, :-1].astype(float)
