"""Logistic regressions from one layer to every factor: scikit-learn's, on standardised activations."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from recombine.probe.ridge import Reading

STEPS = 1000  # of the solver; scikit-learn's 100 are too few for wide layers


class Logistic:
    """Logistic regressions of one layer to blocks of one-hot columns; `folds` as for `Ridge`."""

    penalties = (1.0,)  # scikit-learn's own, and that of the paper's image probes

    def __init__(self, x: np.ndarray, y: np.ndarray, folds: np.ndarray, blocks: list[slice]):
        self.x, self.folds, self.width = x, folds, y.shape[1]
        self.classes = [(block.start, y[:, block].argmax(axis=1)) for block in blocks]

    def fit(self, without: frozenset[int], penalty: float) -> Reading:
        """What gives the probability of every class, fitted on all folds but these."""
        rows = np.flatnonzero((self.folds >= 0) & ~np.isin(self.folds, list(without)))
        x, width, fitted = self.x[rows], self.width, []
        scaler = StandardScaler().fit(x)
        scaled = scaler.transform(x)
        for start, classes in self.classes:
            here = classes[rows]
            if len(np.unique(here)) > 1:
                model = LogisticRegression(C=1 / penalty, max_iter=STEPS).fit(scaled, here)
                fitted.append((start + model.classes_, model.predict_proba))
            else:  # without these folds only one value is left
                fitted.append((start + here[:1], lambda new: np.ones((len(new), 1))))

        def read(new: np.ndarray) -> np.ndarray:
            found, scaled = np.zeros((len(new), width)), np.asarray(scaler.transform(new))
            for columns, probabilities in fitted:
                found[:, columns] = probabilities(scaled)
            return found

        return read
