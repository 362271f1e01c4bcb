"""Can the parts of a combination be read from a model's activations, and which combinations will it get wrong?

A probe is fitted on some combinations and scored on others that it never saw. Penalties and the layer that predicts
failures are chosen by cross-validation over the combinations that are fitted on, never on held-out ones.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import ThreadpoolController

from recombine.basics.errors import require
from recombine.probe import failure, inputs
from recombine.probe.ridge import Reading, Ridge
from recombine.probe.split import Split, split
from recombine.probe.targets import Targets

NO_FOLD: frozenset[int] = frozenset()
ALL = "all layers"  # what they are called when they are joined into one
NARROW = 512  # features: below it threads wait for each other longer than they work, a hundred times on a busy machine


class _Probed(NamedTuple):
    """What was found in one layer."""

    scores: pd.DataFrame
    reading: Reading
    errors: (
        np.ndarray
    )  # of every sample, its combination being left out; NaN where the user holds it out
    misread: np.ndarray


class Decodability(BaseEstimator):
    """Linear probes of every layer for every factor, with splits by combination.

    Factors of numbers are scored by R2, factors of names by accuracy; `kind="logistic"` takes every value as a name.
    New samples are read from the layer that is read best, or with `layers="all"` from all of them, joined into one.
    """

    def __init__(
        self,
        kind: Literal["ridge", "logistic"] = "ridge",
        folds: int = 5,
        seed: int = 0,
        layers: Literal["best", "all"] = "best",
    ):
        self.kind = kind
        self.folds = folds
        self.seed = seed
        self.layers = layers

    def fit(
        self,
        activations: Any,
        factors: Any,
        combinations: Any = None,
        held_out: Any = None,
        outcomes: Any = None,
    ) -> Decodability:
        """Fit probes of all layers and score them; `scores_` has layer x factor x split, `layer_` the one that is read
        best over combinations that are left out in turn, or `all layers`.

        Activations are one array or a dict by layer; the rest has an entry per sample. Samples with equal factors are
        one combination, unless `combinations` names them. `held_out` marks combinations that are only scored; without
        it all are held out in turn. `outcomes` says what failed, NaN where it is not known.
        """
        require(
            self.kind in ("ridge", "logistic"),
            f"kind must be 'ridge' or 'logistic', got {self.kind!r}",
        )
        require(isinstance(self.folds, int), f"folds must be a whole number, got {self.folds!r}")
        require(
            self.folds >= 3,
            f"folds must be at least 3, got {self.folds}: one is scored, one chooses the penalty",
        )
        require(
            self.layers in ("best", "all"), f"layers must be 'best' or 'all', got {self.layers!r}"
        )
        layers, joined = inputs.layers(activations), self.layers == "all"
        require(
            not (joined and ALL in layers),
            f"no layer can be called {ALL!r}, as all of them are: rename it",
        )
        num_samples = len(next(iter(layers.values())))
        frame: Any = inputs.table(factors, num_samples)
        self.present_ = inputs.binary(frame)
        numbers, self.combinations_ = inputs.combined(combinations, frame, self.present_)
        held = np.zeros(num_samples, bool)
        if held_out is not None:
            held = inputs.flags(held_out, "held_out", num_samples) == 1
            require(
                0 < held.sum() < num_samples,
                "held_out must be true for some combinations and false for others",
            )
        inputs.varying(frame[~held])
        if (
            joined and self.kind == "ridge"
        ):  # logistic probes are fitted to features of one variance
            inputs.alike(layers, ~held)
        parts = split(numbers, held, self.folds, self.seed, self.combinations_)
        self.targets_ = Targets(frame[~held], named=self.kind == "logistic")
        y = self.targets_.encode(frame)
        found, pools = {}, ThreadpoolController()
        for name, x in (layers | ({ALL: inputs.joined(layers)} if joined else {})).items():
            with pools.limit(limits=1 if x.shape[1] < NARROW else None):
                found[name] = self._probe(x, y, numbers, parts)
        tables = {name: one.scores for name, one in found.items()}
        self.scores_ = (
            pd.concat(tables, names=["layer"]).reset_index(level=0).reset_index(drop=True)
        )
        self.layer_ = (
            ALL if joined else min(found, key=lambda name: float(np.nanmean(found[name].errors)))
        )
        self.probe_ = found[self.layer_]
        self.widths_ = {
            name: layers[name].shape[1] for name in (layers if joined else [self.layer_])
        }
        self._remember(frame, numbers, held, outcomes)
        return self

    def predict(self, activations: Any) -> pd.DataFrame:
        """The factors, as they are read from the chosen layer."""
        read = self._read(activations)
        return self.targets_.decode(read)

    def score(self, activations: Any, factors: Any) -> float:
        """The mean R2 (or accuracy) over factors, read from the chosen layer."""
        read = self._read(activations)
        y = self.targets_.encode(inputs.table(factors, len(read)))
        return float(pd.Series(self.targets_.score(read, y)).mean())

    def log_loss(self, activations: Any, factors: Any) -> np.ndarray:
        """How improbable the factors of every sample are by what is read from the chosen layer, their mean log loss."""
        require(self.kind == "logistic", "probes of numbers have no log loss: use kind='logistic'")
        read = self._read(activations)
        y = self.targets_.encode(inputs.table(factors, len(read)))
        return self.targets_.log_losses(read, y).mean(axis=1)

    def rank(self, factors: Any, activations: Any = None, combinations: Any = None) -> pd.DataFrame:
        """Order new combinations by expected failure, the worst first, with a probability.

        With activations, `error` is how badly their factors are read (1: as by guessing), without how rare their pairs
        of values are. The probability is of a failure where outcomes were given to `fit`, and else of a misreading: a
        factor taken for another value, or off by more than its standard deviation.
        """
        check_is_fitted(self, "layer_")
        read = None if activations is None else self._read(activations)
        frame: Any = inputs.table(factors, None if read is None else len(read))
        y = self.targets_.encode(frame)
        frame = frame[list(self.known_)]  # whatever else it has does not tell combinations apart
        numbers, names = inputs.combined(combinations, frame, self.present_)
        if read is None:
            error = failure.rarity(frame.groupby(numbers).first(), self.known_)
            signal = failure.rarity(self.known_, self.known_, own=1)
        else:
            error, signal = _mean(self.targets_.errors(read, y).mean(axis=1), numbers), self.errors_
        told = ~np.isnan(self.outcomes_)
        probable = failure.probabilities(signal[told], self.outcomes_[told], error)
        ranking = pd.DataFrame({"combination": names, "error": error, "probability": probable})
        self.ranking_ = ranking.sort_values("error", ascending=False, ignore_index=True)
        basis = "support" if read is None else self.layer_
        return self.ranking_.assign(probability_of=self.probability_of_, basis=basis)

    def evaluate(self, outcomes: Any) -> dict[str, float]:
        """How good the last ranking was: AUROC, rank correlation and calibration against outcomes by combination."""
        check_is_fitted(
            self, "ranking_", msg="call rank before evaluate: there is no ranking to evaluate"
        )
        return failure.evaluate(self.ranking_, outcomes)

    def _probe(self, x: np.ndarray, y: np.ndarray, numbers: np.ndarray, parts: Split) -> _Probed:
        t, targets, folds = y.shape[1], self.targets_, parts.folds
        both = np.concatenate(
            [y, y[parts.elsewhere]], axis=1
        )  # the control shares every factorisation
        reader = self._reader(x, both, parts)
        fit = functools.cache(reader.fit)

        def across(outside: frozenset[int], penalty: float) -> np.ndarray:
            """What is read of every fold but these, each being left out in turn."""
            read = np.full(y.shape, np.nan)
            for fold in set(range(self.folds)) - outside:
                read[folds == fold] = fit(outside | {fold}, penalty)(x[folds == fold])[:, :t]
            return read

        def choose(outside: frozenset[int]) -> float:
            if len(reader.penalties) == 1:
                return reader.penalties[0]
            errors = [
                np.nanmean(targets.errors(across(outside, penalty), y))
                for penalty in reader.penalties
            ]
            return reader.penalties[int(np.argmin(errors))]

        turns = [(NO_FOLD, folds == -1, parts.aside)] if (folds == -1).any() else self._turns(parts)
        reads = {"seen": np.full(both.shape, np.nan), "held out": np.full(both.shape, np.nan)}
        for without, held, seen in turns:
            reading = fit(without, choose(without))
            for side, rows in (("held out", held), ("seen", seen)):
                if rows.any():
                    reads[side][rows] = reading(x[rows])
        penalty = choose(NO_FOLD)
        read = across(NO_FOLD, penalty)
        errors, misread = targets.errors(read, y).mean(axis=1), targets.misread(read, y)
        return _Probed(self._table(reads, both, numbers), fit(NO_FOLD, penalty), errors, misread)

    def _reader(self, x: np.ndarray, y: np.ndarray, parts: Split) -> Any:
        if self.kind == "ridge":
            return Ridge(x, y, parts.fitted)
        from recombine.probe.logistic import Logistic

        t, blocks = y.shape[1] // 2, [factor.columns for factor in self.targets_.factors]
        return Logistic(
            x, y, parts.fitted, [*blocks, *(slice(b.start + t, b.stop + t) for b in blocks)]
        )

    def _turns(self, parts: Split) -> list[tuple[frozenset[int], np.ndarray, np.ndarray]]:
        """Every fold is held out once, and seen once by the probes that hold out the one before it."""
        following = [(fold, (fold + 1) % self.folds) for fold in range(self.folds)]
        return [
            (frozenset({f}), parts.folds == f, parts.aside & (parts.folds == after))
            for f, after in following
        ]

    def _table(
        self, reads: dict[str, np.ndarray], both: np.ndarray, numbers: np.ndarray
    ) -> pd.DataFrame:
        t, lines = both.shape[1] // 2, []
        for side, read in reads.items():
            rows = ~np.isnan(read[:, 0])
            true, mixed = (
                self.targets_.scores(read[rows, part], both[rows, part], numbers[rows])
                for part in (slice(0, t), slice(t, None))
            )
            for factor, (score, low, high), control in zip(
                self.targets_.factors, true, mixed[:, 0], strict=True
            ):
                lines.append((factor.name, side, factor.measure, score, low, high, control))
        return pd.DataFrame(
            lines, columns=["factor", "split", "measure", "score", "low", "high", "shuffled"]
        )

    def _remember(self, frame: Any, numbers: np.ndarray, held: np.ndarray, outcomes: Any) -> None:
        """What is known of the combinations that were fitted on: their factors, errors and outcomes."""
        happened = self.probe_.misread.astype(float)
        self.probability_of_ = "misreading"
        if outcomes is not None:
            happened, self.probability_of_ = (
                inputs.flags(outcomes, "outcomes", len(frame), True),
                "failure",
            )
        self.known_ = frame[~held].groupby(numbers[~held]).first()
        facts: Any = pd.DataFrame({"error": self.probe_.errors, "outcome": happened})[~held]
        self.errors_, self.outcomes_ = facts.groupby(numbers[~held]).mean().to_numpy().T
        told = "outcomes are not known of any combination that the probe is fitted on: give some, or leave them out"
        require(not np.isnan(self.outcomes_).all(), told)

    def _read(self, activations: Any) -> np.ndarray:
        check_is_fitted(self, "layer_")
        (first, *others), named = self.widths_, isinstance(activations, Mapping)
        needed = ", ".join(self.widths_)
        require(
            named or not others,
            f"one array does not tell layers apart: give a dict by layer, of {needed}",
        )
        layers = inputs.layers(activations if named else {first: activations})
        for name, width in self.widths_.items():
            require(
                name in layers,
                f"there is no layer {name!r}: there are {', '.join(layers)}; give {needed}",
            )
            told = f"layer {name!r} has {layers[name].shape[1]} features, and had {width} when the probe was fitted"
            require(
                layers[name].shape[1] == width, f"{told}: give the same layer of the same model"
            )
        x = inputs.joined({name: layers[name] for name in self.widths_})
        return self.probe_.reading(x)[:, : self.targets_.width]


def _mean(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return np.bincount(numbers, values) / np.bincount(numbers)
