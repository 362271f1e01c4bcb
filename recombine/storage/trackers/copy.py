"""The copy of a finished run that trackers get."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Copy(NamedTuple):
    """One finished run, for a tracker."""

    run: str  # its hash
    name: str
    config: dict[str, Any]
    scores: dict[int, dict[str, float]]  # step -> metric -> value


Write = Callable[[Copy], None]
