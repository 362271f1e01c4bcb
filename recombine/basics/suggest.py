"""Words for the user: what to say of a name that does not exist, and of one thing or several."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """What the user may have meant, in words."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "there are " + ", ".join(known) if known else "there are none"


def counted(number: int, thing: str) -> str:
    """A number of things: 1 run, 2 runs."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
