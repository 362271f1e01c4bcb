"""Untrained baselines: every student is compared with the same network before its first step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from recombine.experiments.claim import Frame
from recombine.sweeps.run import Run, replace_fields

PAIRED_BY = (
    "encoding",
    "model.widths",
    "frac_test",
    "seed",
)  # equal for a student and its baseline


def untrained(run: Run) -> Run:
    """The run's untrained baseline: one step with the learning rate 0."""
    return replace_fields(run, {"num_steps": 1, "num_evals": 1, "recipe.learning_rate": 0.0})


def is_untrained(final: Frame) -> Frame:
    """Whether each row is an untrained baseline."""
    return final["recipe.learning_rate"] == 0


def untrained_column(column: str) -> str:
    """The name of the column that holds the untrained network's value of `column`."""
    return f"untrained/{column}"


def with_untrained(
    final: Frame, columns: Mapping[str, str], paired_by: Sequence[str] = ()
) -> Frame:
    """The trained students, with columns of their untrained baselines beside their own.

    `columns` maps each new column to the column of the baseline. `paired_by` has further columns in
    which a student and its baseline are equal.
    """
    # Only MLPs have `model.widths`.
    keys = [key for key in (*PAIRED_BY, *paired_by) if key in final]
    baselines = final[is_untrained(final)]
    values = baselines[keys].copy()
    for name, column in columns.items():
        values[name] = baselines.get(column, math.nan)
    return final[~is_untrained(final)].merge(values, "left", keys)
