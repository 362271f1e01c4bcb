"""Trained students of a computed experiment, kept in its work folder."""

from collections.abc import Sequence
from pathlib import Path

from recombine.sweeps.run import Run, identity
from recombine.training.fitted import Fitted
from recombine.training.scheduler import train


def trained(runs: Sequence[Run], folder: Path) -> list[Fitted]:
    """Train runs in a folder, unless they are there already. Returns their networks and rows."""
    networks = folder / "networks"
    train(runs, folder / "students", keep=networks, progress=False)
    return [Fitted.load(networks / identity(run)) for run in runs]


def last_score(fitted: Fitted, column: str) -> float:
    """A score of the last evaluation."""
    return float(fitted.rows[column].iloc[-1])
