"""Linear probes of activations: which factors are decodable, and which combinations will fail.

A probe is fitted on some combinations and scored on combinations that it never saw. Penalties, and
the layer that predicts failures, are chosen by cross-validation over the combinations that are
fitted on, never on held-out ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import ThreadpoolController

from recombine.basics.console import Meter, say
from recombine.basics.errors import require
from recombine.probe import failure_ranking, input_validation, report, saved_probe
from recombine.probe.algebra import make_algebra
from recombine.probe.control import Control
from recombine.probe.layer_probe import Data, LayerResult, probe_layer
from recombine.probe.nonlinear import NonlinearScorer
from recombine.probe.ridge import PENALTIES
from recombine.probe.running_sums import RunningSums
from recombine.probe.scores import score_of
from recombine.probe.split import Split, split
from recombine.probe.targets import Targets

ALL = "all layers"  # the name of all layers joined into one
BASELINE = "baseline"  # what layers of the baseline are called in `scores_`
MIN_PERMUTATIONS = 200  # fewer draws do not support a p-value that is corrected
# What `fit` sets, and `partial_fit` computes when it is used first.
RESULTS = (
    *saved_probe.PLAIN,
    *saved_probe.TABLES,
    *saved_probe.ARRAYS,
    "targets_",
    "probe_",
    "train_factors_",
)
# Layers with fewer features are fitted on one thread: for small matrices, threads spend more time
# waiting for each other than computing, above all on a busy machine.
MIN_MULTITHREADED_WIDTH = 512


class _Samples(NamedTuple):
    """What `fit` knows of every sample, or of every row of activations."""

    frame: pd.DataFrame  # the factors
    numbers: np.ndarray  # the combination
    held: np.ndarray
    roles: Split
    weights: np.ndarray
    outcomes: np.ndarray | None

    def of_rows(self, groups: np.ndarray) -> _Samples:
        """The same for rows of activations, given the sample of each."""
        weights = self.weights[groups]
        return _Samples(
            self.frame.iloc[groups].reset_index(drop=True),
            self.numbers[groups],
            self.held[groups],
            self.roles.of_rows(groups),
            weights / weights.mean(),
            None if self.outcomes is None else self.outcomes[groups],
        )


class Decodability(BaseEstimator):
    """Linear probes of every layer for every factor, with splits by combination, and verdicts.

    - `kind`: "auto" probes names by logistic regression and numbers by ridge regression. "logistic"
      treats every factor as names, "ridge" fits ridge regressions to names too.
    - `folds` and `seed`: the cross-validation over combinations
    - `layers`: new samples are decoded from the "best" layer, or from "all" layers joined into one
    - `names`: the factors that are names, or True for all. By default text, booleans and categories
      are names, and numbers are numbers.
    - `num_permutations`: draws of the permuted-label control; with 0 there are no verdicts
    - `penalties`: the grid of ridge penalties, relative to the number of samples
    - `device`: a device of PyTorch, for example "cuda", that does the matrix operations
    - `edition`: 1 is the first edition of this probe, kept for tables that were made with it
    """

    def __init__(
        self,
        kind: Literal["auto", "ridge", "logistic"] = "auto",
        folds: int = 5,
        seed: int = 0,
        layers: Literal["best", "all"] = "best",
        *,
        names: Any = None,
        num_permutations: int = MIN_PERMUTATIONS,
        penalties: tuple[float, ...] = PENALTIES,
        device: str | None = None,
        progress: bool = True,
        edition: Literal[1, 2] = 2,
    ):
        self.kind = kind
        self.folds = folds
        self.seed = seed
        self.layers = layers
        self.names = names
        self.num_permutations = num_permutations
        self.penalties = penalties
        self.device = device
        self.progress = progress
        self.edition = edition

    _sums: RunningSums | None = None  # what `partial_fit` keeps

    def fit(
        self,
        activations: Any,
        factors: Any,
        combinations: Any = None,
        held_out: Any = None,
        outcomes: Any = None,
        *,
        baseline: Any = None,
        sample_weight: Any = None,
        groups: Any = None,
    ) -> Decodability:
        """Fit probes of all layers, score them, and give a verdict on every factor.

        Activations are one array of samples x features, or a dict of arrays by layer. All other
        arguments have one entry per sample:

        - `factors`: a table, a dict of columns, or a matrix
        - `combinations`: a name per sample; by default, samples with equal factors are one
          combination
        - `held_out`: true for combinations that are only scored; by default, all are held out in
          turn
        - `outcomes`: whether the model failed, NaN where that is unknown
        - `baseline`: the model's input, or the activations of an untrained model. A factor that is
          composed there is marked as already decodable.
        - `sample_weight`: the weight of every sample, in fits and scores

        With `groups`, activations and baseline have several rows per sample, for example one per
        token (`Recorder(pool="every")`): `groups` has the sample of every row, numbered from 0.
        All rows of a sample are fitted on, or none, and every row counts once in scores.

        Sets `scores_` (layer x factor x split), `verdicts_` (a row per factor), `sentence_`, and
        `layer_`, the layer with the lowest cross-validated error, or `all layers`.
        """
        self._check_options()
        self._sums = None
        is_joined = self.layers == "all"
        layers = self._check_layers(activations)
        num_rows = len(next(iter(layers.values())))
        samples = self._check_samples(
            factors, combinations, held_out, outcomes, sample_weight, groups, num_rows
        )
        fitted_frame: Any = samples.frame[~samples.held]
        self.targets_ = Targets(fitted_frame, self._names(samples.frame))
        probed = layers | ({ALL: input_validation.join_layers(layers)} if is_joined else {})
        if self.edition == 1:
            results = self._probe_first_edition(probed, samples)
        else:
            data = self._data(samples)
            baselines = _baseline_layers(baseline, num_rows, probed)
            results = self._probe_layers(probed, baselines, data)
            self._note_class_ids(samples.frame)
        widths = {name: layer.shape[1] for name, layer in layers.items()}
        self._choose_layer(results, widths, is_joined)
        self._store_outcomes(samples)
        return self

    def partial_fit(
        self,
        activations: Any,
        factors: Any,
        combinations: Any = None,
        held_out: Any = None,
        *,
        sample_weight: Any = None,
    ) -> Decodability:
        """Add a batch of samples, for activations that do not fit in memory.

        The arguments are those of `fit`. Only sums of products are kept, so memory does not grow
        with the number of samples: at most 3 matrices of features x features per layer and fold.
        `scores_`, `coef_` and all other results are computed when one of them is used.

        This needs kind="ridge" and num_permutations=0: verdicts, logistic regressions and the
        nonlinear probe need all samples, and so does `rank`. Names are scored by the R2 of their
        one-hot columns, and intervals are over folds. A combination's fold follows from a hash of
        its name.
        """
        self._check_options()
        self._check_partial()
        layers = self._check_layers(activations)
        num_samples = len(next(iter(layers.values())))
        frame = input_validation.factor_table(factors, num_samples)
        held = np.zeros(num_samples, bool)
        if held_out is not None:
            held = input_validation.as_flags(held_out, "held_out", num_samples) == 1
        weights = input_validation.check_weights(sample_weight, num_samples)
        if self.layers == "all":
            layers = layers | {ALL: input_validation.join_layers(layers)}
        if self._sums is None:
            self._sums = RunningSums(self.folds, self.seed, self.names)
        self._sums.add(layers, frame, combinations, held, weights)
        for name in RESULTS:  # they are computed anew
            self.__dict__.pop(name, None)
        return self

    def __getattr__(self, name: str) -> Any:
        """Compute the results of `partial_fit` when one of them is used for the first time."""
        if name not in RESULTS or self.__dict__.get("_sums") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._finish_sums(self.__dict__["_sums"])
        return self.__dict__[name]

    def _finish_sums(self, sums: RunningSums) -> None:
        """Set all results from the sums of `partial_fit`."""
        penalties = tuple(sorted(self.penalties))
        results = sums.probe(penalties, make_algebra(self.device))
        self.targets_ = sums.fitted_targets
        self.is_logistic_ = [False] * len(self.targets_.factors)
        rows = [{"layer": name} | row for name, each in results.items() for row in each.rows]
        self.scores_ = pd.DataFrame(rows)
        self.verdicts_ = pd.DataFrame(columns=["factor", "layer", "verdict", "reason"])
        self.sentence_ = ""
        self.notes_ = report.edge_notes(results, self.targets_)
        widths = {name: layer.width for name, layer in sums.layers.items()}
        own = {name: width for name, width in widths.items() if name != ALL}
        self.constant_features_ = {name: results[name].num_constant for name in own}
        self._choose_layer(results, own, self.layers == "all")
        known = sums.combinations
        self.train_factors_ = known.fitted_factors()
        self.binary_factors_ = input_validation.is_binary(pd.DataFrame(known.rows))
        self.combinations_ = list(known.numbers)
        self.errors_ = np.full(len(self.train_factors_), np.nan)
        self.outcomes_ = self.errors_.copy()
        self.probability_of_ = "misreading"

    def _check_partial(self) -> None:
        require(
            self.edition == 2 and self.kind == "ridge" and self.num_permutations == 0,
            "partial_fit keeps sums and no samples, which verdicts, logistic regressions and "
            "edition=1 need: set kind='ridge' and num_permutations=0, or use fit",
        )
        require(
            self._sums is not None or "layer_" not in self.__dict__,
            "this probe was fitted by fit, which keeps no sums: use a new one for partial_fit",
        )

    def _check_samples(
        self,
        factors: Any,
        combinations: Any,
        held_out: Any,
        outcomes: Any,
        sample_weight: Any,
        groups: Any,
        num_rows: int,
    ) -> _Samples:
        """The checked arguments of `fit`, one entry per row of activations."""
        num_samples = num_rows
        if groups is not None:
            require(self.edition == 2, "edition=1 knows no groups: leave edition out")
            groups = input_validation.check_groups(groups, num_rows)
            num_samples = int(groups.max()) + 1
        frame: Any = input_validation.factor_table(factors, num_samples)
        self.binary_factors_ = input_validation.is_binary(frame)
        numbers, self.combinations_ = input_validation.number_combinations(
            combinations, frame, self.binary_factors_
        )
        held = _held_out_samples(held_out, num_samples)
        input_validation.require_varying_factors(frame[~held])
        if self.edition == 2:
            names = self._names(frame)
            input_validation.require_values_in_several_combinations(frame, names, numbers)
        roles = split(numbers, held, self.folds, self.seed, self.combinations_)
        weights = input_validation.sample_weights(sample_weight, num_samples)
        if outcomes is not None:
            outcomes = input_validation.as_flags(outcomes, "outcomes", num_samples, True)
        samples = _Samples(frame, numbers, held, roles, weights, outcomes)
        return samples if groups is None else samples.of_rows(groups)

    def _check_layers(self, activations: Any) -> dict[str, Any]:
        layers = input_validation.check_layers(activations)
        require(
            not (self.layers == "all" and ALL in layers),
            f"a layer is named {ALL!r}, the name for all layers concatenated: rename it",
        )
        return layers

    def predict(self, activations: Any) -> pd.DataFrame:
        """The factors of new samples, decoded from the chosen layer."""
        outputs = self._decode(activations)
        return self.targets_.decode(outputs)

    def predict_proba(self, activations: Any) -> dict[str, np.ndarray]:
        """The probabilities of the values in `classes_`, by factor: samples x values."""
        outputs = self._decode(activations)
        by_factor = zip(self.targets_.factors, self.is_logistic_, strict=True)
        named = [factor for factor, is_logistic in by_factor if is_logistic]
        require(bool(named), "ridge probes have no probabilities: use kind='auto' or 'logistic'")
        return {factor.name: outputs[:, factor.columns] for factor in named}

    def score(self, activations: Any, factors: Any, sample_weight: Any = None) -> float:
        """The mean R2 (or accuracy) over factors, decoded from the chosen layer."""
        predicted = self._decode(activations)
        y = self.targets_.encode(input_validation.factor_table(factors, len(predicted)))
        weights = input_validation.sample_weights(sample_weight, len(predicted))
        scores = [
            score_of(f, predicted[:, f.columns], y[:, f.columns], weights)
            for f in self.targets_.factors
        ]
        return float(pd.Series(scores).mean())

    def log_loss(self, activations: Any, factors: Any) -> np.ndarray:
        """The log loss of every sample's factors, a mean over factors, from the chosen layer."""
        probabilities = self._decode(activations)
        require(
            all(self.is_logistic_),
            "factors that are probed by ridge regression have no log loss: use kind='logistic'",
        )
        y = self.targets_.encode(input_validation.factor_table(factors, len(probabilities)))
        return self.targets_.log_losses(probabilities, y).mean(axis=1)

    def rank(self, factors: Any, activations: Any = None, combinations: Any = None) -> pd.DataFrame:
        """Order new combinations by predicted failure, the worst first, with a probability.

        With activations, `error` is the decoding error of the factors (1 for predicting the mean).
        Without, it is the rarity of the combination's pairs of values. The probability is that of a
        failure if `fit` received outcomes, and otherwise that of a misreading: a factor decoded as
        another value, or off by more than its standard deviation.
        """
        check_is_fitted(self, "layer_")
        require(
            not np.isnan(self.outcomes_).all(),
            "rank needs the errors of all samples, which partial_fit does not keep: use fit",
        )
        predicted = None if activations is None else self._decode(activations, for_ranking=True)
        num_samples = None if predicted is None else len(predicted)
        frame: Any = input_validation.factor_table(factors, num_samples)
        y = self.targets_.encode(frame)
        frame = frame[list(self.train_factors_)]  # other columns do not define combinations
        numbers, names = input_validation.number_combinations(
            combinations, frame, self.binary_factors_
        )
        if predicted is None:
            new_factors = frame.groupby(numbers).first()
            error = failure_ranking.rarity(new_factors, self.train_factors_)
            signal = failure_ranking.rarity(self.train_factors_, self.train_factors_, own=1)
        else:
            error = _mean_by_group(self.targets_.errors(predicted, y).mean(axis=1), numbers)
            signal = self.errors_
        is_known = ~np.isnan(self.outcomes_)
        probability = failure_ranking.probabilities(
            signal[is_known], self.outcomes_[is_known], error
        )
        ranking = pd.DataFrame({"combination": names, "error": error, "probability": probability})
        self.ranking_ = ranking.sort_values("error", ascending=False, ignore_index=True)
        basis = "support" if predicted is None else self.layer_
        return self.ranking_.assign(probability_of=self.probability_of_, basis=basis)

    def evaluate(self, outcomes: Any) -> dict[str, float]:
        """AUROC, rank correlation and calibration of the last ranking, given outcomes."""
        check_is_fitted(
            self, "ranking_", msg="call rank before evaluate: there is no ranking to evaluate"
        )
        return failure_ranking.evaluate(self.ranking_, outcomes)

    @property
    def classes_(self) -> dict[str, tuple[Any, ...]]:
        """The values of every factor of names, in the order of `predict_proba`."""
        check_is_fitted(self, "layer_")
        return {factor.name: factor.values for factor in self.targets_.factors if factor.values}

    @property
    def coef_(self) -> np.ndarray:
        """The weights of the chosen layer in the model's own units: target columns x features."""
        check_is_fitted(self, "layer_")
        return self.probe_.decode.weights.T

    @property
    def intercept_(self) -> np.ndarray:
        """The constants of the target columns."""
        check_is_fitted(self, "layer_")
        return self.probe_.decode.constant

    @property
    def directions_(self) -> dict[str, np.ndarray]:
        """The rows of `coef_` by factor: values x features, or 1 x features for numbers."""
        return {factor.name: self.coef_[factor.columns] for factor in self.targets_.factors}

    def save(self, path: Any) -> Path:
        """Write the fitted probe to PATH, which ends in .safetensors, and a .json beside it."""
        check_is_fitted(self, "layer_")
        return saved_probe.save(self, path)

    @classmethod
    def load(cls, path: Any) -> Decodability:
        """A fitted probe from the files that `save` wrote."""
        return saved_probe.load(cls(), path)

    def to_frame(self, column: str = "score", split: str = "held out") -> pd.DataFrame:
        """One column of `scores_` as a table of layers x factors."""
        check_is_fitted(self, "layer_")
        return report.wide(self.scores_, column, split)

    def plot(self, column: str | None = None) -> Any:
        """Scores by layer as a Plotly figure, one line per factor."""
        check_is_fitted(self, "layer_")
        return report.plot(self.scores_, column)

    def _check_options(self) -> None:
        require(
            self.kind in ("auto", "ridge", "logistic"),
            f"kind must be 'auto', 'ridge' or 'logistic', got {self.kind!r}",
        )
        require(isinstance(self.folds, int), f"folds must be a whole number, got {self.folds!r}")
        require(
            self.folds >= 3,
            f"folds must be at least 3, got {self.folds}: one is scored, one chooses the penalty, "
            "and the others are fitted on",
        )
        require(
            self.layers in ("best", "all"), f"layers must be 'best' or 'all', got {self.layers!r}"
        )
        require(self.edition in (1, 2), f"edition must be 1 or 2, got {self.edition!r}")
        require(
            self.edition == 2 or self.kind != "auto",
            "edition=1 needs kind='ridge' or kind='logistic'",
        )
        num = self.num_permutations
        require(
            isinstance(num, int) and (num == 0 or num >= MIN_PERMUTATIONS),
            f"num_permutations must be at least {MIN_PERMUTATIONS}, or 0 for no control, got "
            f"{num!r}",
        )
        require(
            len(self.penalties) > 0 and min(self.penalties) > 0,
            f"penalties must be positive numbers, got {self.penalties!r}",
        )

    def _names(self, frame: pd.DataFrame) -> list[str]:
        """The factors of names."""
        if self.kind == "logistic":
            return list(frame)
        if self.edition == 1:
            booleans = [name for name in frame if pd.api.types.is_bool_dtype(frame[name])]
            numeric = [name for name in frame if pd.api.types.is_numeric_dtype(frame[name])]
            return [name for name in frame if name not in numeric and name not in booleans]
        return input_validation.factors_of_names(frame, self.names)

    def _data(self, samples: _Samples) -> Data:
        targets = self.targets_
        y = targets.encode(samples.frame)
        self.is_logistic_ = [
            bool(factor.values) and self.kind != "ridge" for factor in targets.factors
        ]
        control = None
        if self.num_permutations:
            control = Control(
                targets,
                y,
                samples.numbers,
                samples.held,
                samples.weights,
                self.num_permutations,
                self.seed,
                self.is_logistic_,
            )
        return Data(
            targets,
            y,
            samples.numbers,
            samples.roles,
            samples.weights,
            control,
            self.is_logistic_,
            tuple(sorted(self.penalties)),
            make_algebra(self.device),
        )

    def _probe_layers(
        self, layers: dict[str, np.ndarray], baselines: dict[str, np.ndarray], data: Data
    ) -> dict[str, LayerResult]:
        """Probe all layers and the baseline, and set scores, verdicts and notes."""
        threads = ThreadpoolController()
        results = {}
        nonlinear = {}
        every = layers | baselines
        with Meter("probing, layers", len(every), self.progress) as meter:
            for name, x in every.items():
                max_threads = 1 if x.shape[1] < MIN_MULTITHREADED_WIDTH else None
                with threads.limit(limits=max_threads):
                    if data.control is None:
                        results[name] = probe_layer(x, data)
                    else:
                        scorer = NonlinearScorer(data)
                        results[name] = probe_layer(x, data, scorer.add)
                        nonlinear[name] = scorer.result()
                meter.advance()
        summary = report.summarize(results, nonlinear, set(baselines), data)
        self.scores_ = summary.scores
        self.verdicts_ = summary.verdicts
        self.sentence_ = summary.sentence
        self.notes_ = summary.notes
        self.constant_features_ = {name: results[name].num_constant for name in layers}
        return {name: results[name] for name in layers}

    def _probe_first_edition(
        self, layers: dict[str, np.ndarray], samples: _Samples
    ) -> dict[str, Any]:
        from recombine.probe import first_edition

        threads = ThreadpoolController()
        self.is_logistic_ = [self.kind == "logistic"] * len(self.targets_.factors)
        y = self.targets_.encode(samples.frame)
        results = {}
        for name, x in layers.items():
            max_threads = 1 if x.shape[1] < MIN_MULTITHREADED_WIDTH else None
            with threads.limit(limits=max_threads):
                results[name] = first_edition.probe_layer(
                    x, y, samples.numbers, samples.roles, self.targets_, self.kind
                )
        by_layer = pd.concat({name: each.scores for name, each in results.items()}, names=["layer"])
        self.scores_ = by_layer.reset_index(level=0).reset_index(drop=True)
        return results

    def _note_class_ids(self, frame: pd.DataFrame) -> None:
        """Note factors of numbers that may be meant as names."""
        ids = [] if self.kind == "logistic" else input_validation.class_ids(frame, self.names)
        if ids:
            note = (
                f"{', '.join(ids)}: whole numbers are probed as numbers. If they are class ids, "
                f"set names={ids!r}; if not, set names=()."
            )
            self.notes_.append(note)
            if self.progress:
                say(note)

    def _choose_layer(
        self, results: dict[str, Any], widths: dict[str, int], is_joined: bool
    ) -> None:
        self.layer_ = ALL if is_joined else min(results, key=lambda name: _error(results[name]))
        self.probe_ = results[self.layer_]
        used_layers = list(widths) if is_joined else [self.layer_]
        self.widths_ = {name: widths[name] for name in used_layers}
        self.n_features_in_ = sum(self.widths_.values())

    def _store_outcomes(self, samples: _Samples) -> None:
        """Store factors, errors and outcomes of the combinations that were fitted on."""
        frame: Any = samples.frame
        held = samples.held
        if samples.outcomes is None:
            outcome = self.probe_.is_misread.astype(float)
            self.probability_of_ = "misreading"
        else:
            outcome = samples.outcomes
            self.probability_of_ = "failure"
        train_numbers = samples.numbers[~held]
        self.train_factors_ = frame[~held].groupby(train_numbers).first()
        by_sample: Any = pd.DataFrame({"error": self.probe_.errors, "outcome": outcome})[~held]
        by_combination = by_sample.groupby(train_numbers).mean()
        self.errors_ = by_combination["error"].to_numpy()
        self.outcomes_ = by_combination["outcome"].to_numpy()
        require(
            not np.isnan(self.outcomes_).all(),
            "outcomes are unknown for all combinations that the probe is fitted on: "
            "provide some, or leave outcomes out",
        )

    def _decode(self, activations: Any, for_ranking: bool = False) -> np.ndarray:
        """The decoded targets of new samples from the chosen layer: samples x columns.

        Rankings use ridge regressions for all factors: their errors on fitted combinations are
        known from cross-validation.
        """
        check_is_fitted(self, "layer_")
        needed = ", ".join(self.widths_)
        if not input_validation.is_by_layer(activations):
            require(
                len(self.widths_) == 1,
                f"one array does not distinguish layers: provide a dict with {needed}",
            )
            activations = {next(iter(self.widths_)): activations}
        layers = input_validation.check_layers(activations)
        for name, width in self.widths_.items():
            require(
                name in layers,
                f"there is no layer {name!r}: the layers are {', '.join(layers)}; provide {needed}",
            )
            require(
                layers[name].shape[1] == width,
                f"layer {name!r} has {layers[name].shape[1]} features, and had {width} when the "
                "probe was fitted: provide the same layer of the same model",
            )
        x = input_validation.join_layers({name: layers[name] for name in self.widths_})
        if self.edition == 1:
            return self.probe_.decode(x)
        decode = self.probe_.ridge_decode if for_ranking else self.probe_.decode
        return self.targets_.probabilities(decode(x), self.is_logistic_)


def _baseline_layers(
    baseline: Any, num_samples: int, layers: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The layers of the baseline, with names that no layer has."""
    if baseline is None:
        return {}
    checked = input_validation.check_layers(baseline)
    for name, layer in checked.items():
        require(
            len(layer) == num_samples,
            f"the baseline {name!r} has {len(layer)} samples and the activations have "
            f"{num_samples}: provide the same samples",
        )
    named = {
        BASELINE if len(checked) == 1 else f"{BASELINE} {name}": layer
        for name, layer in checked.items()
    }
    taken = sorted(set(named) & set(layers))
    require(not taken, f"a layer and the baseline are both named {taken[:1]}: rename the layer")
    return named


def _held_out_samples(held_out: Any, num_samples: int) -> np.ndarray:
    if held_out is None:
        return np.zeros(num_samples, bool)
    held = input_validation.as_flags(held_out, "held_out", num_samples) == 1
    require(
        0 < held.sum() < num_samples,
        "held_out must be true for some combinations and false for others",
    )
    return held


def _error(result: Any) -> float:
    return float(np.nanmean(result.errors))


def _mean_by_group(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return np.bincount(groups, values) / np.bincount(groups)
