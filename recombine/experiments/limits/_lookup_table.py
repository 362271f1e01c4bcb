"""A baseline for instances of lists: a table of windows around every element."""

import numpy as np
from jaxtyping import Int


class LookupTable:
    """A baseline that looks at each element and at its neighbors only.

    For every window of 2 `reach` + 1 elements, it knows the majority decision in the lists that it
    was fitted on. A window that it never saw falls back to the next smaller one.
    """

    def __init__(self, reach: int):
        self.reach = reach
        self.tables_: list[dict[bytes, int]] = []

    def fit(self, lists: Int[np.ndarray, "N L"], answers: Int[np.ndarray, "N L"]) -> "LookupTable":
        """Count decisions. `lists` are rows of words, `answers` 0 or 1 for each word."""
        self.tables_ = []
        decisions = answers[lists > 0]
        for reach in range(self.reach + 1):
            windows, index = np.unique(_windows(lists, reach), axis=0, return_inverse=True)
            votes = np.bincount(index.reshape(-1), 2 * decisions - 1, len(windows))
            keys = [window.tobytes() for window in windows]
            self.tables_.append(dict(zip(keys, (votes > 0).astype(int).tolist(), strict=True)))
        return self

    def predict(self, lists: Int[np.ndarray, "N L"]) -> Int[np.ndarray, "N L"]:
        """The decision for every element; 0 after the end of a list."""
        decisions = np.full(np.count_nonzero(lists), -1)
        for reach in range(self.reach, -1, -1):
            table = self.tables_[reach]
            looked_up = [table.get(window.tobytes(), -1) for window in _windows(lists, reach)]
            decisions = np.where(decisions < 0, looked_up, decisions)
        answers = np.zeros(lists.shape, np.int64)
        answers[lists > 0] = np.maximum(decisions, 0)
        return answers

    def score(self, lists: Int[np.ndarray, "N L"], answers: Int[np.ndarray, "N L"]) -> float:
        """The fraction of lists whose whole answer is right."""
        return float((self.predict(lists) == answers).all(axis=1).mean())


def _windows(lists: np.ndarray, reach: int) -> np.ndarray:
    """The window around every element, (elements, 2 reach + 1); 0 beyond the ends of the list."""
    padded = np.pad(lists, ((0, 0), (reach, reach)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1, axis=1)
    return np.ascontiguousarray(windows[lists > 0])
