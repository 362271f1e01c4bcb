"""One finished run as a tracker is given it."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Copy(NamedTuple):
    """One finished run as a mirror is given it."""

    run: str
    name: str
    config: dict[str, Any]
    scores: dict[int, dict[str, float]]


Write = Callable[[Copy], None]
