"""Phrases of messages: suggestions for an unknown name, and counts with a plural."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: similar names, or else all of them."""
    known = sorted(known)
    similar = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if similar:
        return f"did you mean {' or '.join(similar)}?"
    return f"choose from {', '.join(known)}" if known else "there are none"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 run, 2 runs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
