"""Features of held-out tasks that no train task has, from the rows of a sweep, as one line.

Families with ordered tasks offer views: neighbors, positions, lengths. The columns
`support/unseen_VIEW` count the features of a view that occur in test tasks but in no train task. A
network whose inputs are these features, such as an MLP with an input for every module at every
position, cannot have learned what they mean.
"""

from __future__ import annotations

from typing import Any

PREFIX = "support/unseen_"


def summary_line(rows: Any) -> str | None:
    """The number of unseen features by view as one sentence; None if all features were trained."""
    runs = rows.drop_duplicates("run")
    views = []
    for column in runs.columns:
        if not str(column).startswith(PREFIX):
            continue
        num_unseen = runs[column].fillna(0)
        num_runs = int((num_unseen > 0).sum())
        if num_runs:
            name = str(column).removeprefix(PREFIX)
            views.append(f"{name} {int(num_unseen.max())} (in {num_runs} of {len(runs)} runs)")
    if not views:
        return None
    return f"Features of held-out tasks that never occur in training, at most: {', '.join(views)}"
