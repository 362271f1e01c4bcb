"""Ridge probes from running sums, for activations that do not fit in memory.

`Decodability.partial_fit` adds batches. Every layer keeps sums of products by fold and role, never
a sample, so memory does not grow with their number: at most 3 matrices of features x features per
fold. A combination's fold follows from a hash of its name. The order of batches therefore changes
which samples are reserved for the scores of seen combinations, and nothing else.

Scores are R2, for names that of their one-hot columns. Their intervals are over folds.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require
from recombine.probe import input_validation
from recombine.probe.algebra import Algebra
from recombine.probe.intervals import r2_interval
from recombine.probe.layer_probe import MAX_ERROR_GAIN, is_at_edge
from recombine.probe.ridge import (
    NO_FOLD,
    LinearMap,
    Moments,
    Ridge,
    constant_features,
    precision_of,
)
from recombine.probe.scores import MIN_VARIANCE
from recombine.probe.split import RESERVE_EVERY
from recombine.probe.targets import Factor, Targets, check_number_of_values, sorted_values

ROUNDING = 1e-24  # of a variance, relative to the squared mean
MIN_BLOCK = 512  # samples that are collected before they are added to the sums
FITTED, RESERVED, HELD_OUT = "fitted", "reserved", "held out"


@dataclasses.dataclass
class Sums:
    """Weighted sums over samples: x, y and y squared, and the products x xᵀ and x yᵀ."""

    n: float
    x: np.ndarray
    y: np.ndarray
    squared: np.ndarray
    xx: np.ndarray
    xy: np.ndarray

    @classmethod
    def empty(cls, width: int) -> Sums:
        """Sums over no samples, for this number of features."""
        zeros = np.zeros
        return cls(0.0, zeros(width), zeros(0), zeros(0), zeros((width, width)), zeros((width, 0)))

    def add(self, h: np.ndarray, y: np.ndarray, weights: np.ndarray) -> None:
        """Add samples: features, targets and weights."""
        self.widen(y.shape[1])
        weighted = h * weights[:, None]
        self.n += float(weights.sum())
        self.x += weighted.sum(axis=0)
        self.y += weights @ y
        self.squared += weights @ y**2
        self.xx += weighted.T @ h
        self.xy += weighted.T @ y

    def widen(self, num_columns: int) -> None:
        """Add target columns, which were 0 in all samples so far."""
        more = num_columns - len(self.y)
        if more > 0:
            self.y, self.squared = np.pad(self.y, (0, more)), np.pad(self.squared, (0, more))
            self.xy = np.pad(self.xy, ((0, 0), (0, more)))

    def ordered(self, columns: Sequence[int]) -> Sums:
        """The same sums with the target columns in this order."""
        self.widen(max(columns) + 1)
        chosen = list(columns)
        y, squared = self.y[chosen], self.squared[chosen]
        return Sums(self.n, self.x, y, squared, self.xx, self.xy[:, chosen])

    def moments(self) -> Moments:
        """The sums that a ridge regression needs."""
        return Moments(np.asarray(self.n), self.x, self.y, self.xx, self.xy)

    def missed(self, fitted: LinearMap) -> np.ndarray:
        """The summed squared errors of a map, for every target column."""
        weights, constant = fitted
        missed = (weights * (self.xx @ weights)).sum(axis=0) + self.squared
        missed -= 2 * (weights * self.xy).sum(axis=0)
        missed += constant * (self.n * constant + 2 * (self.x @ weights) - 2 * self.y)
        return np.maximum(missed, 0)


Parts = tuple[Sums, ...]  # of one fold


class LayerSums:
    """The sums of one layer, by fold and role. A mean of the first batch is removed."""

    def __init__(self, first: np.ndarray):
        self.shift = np.mean(first, axis=0, dtype=float)
        self.precision = 0.0
        self.sums: dict[tuple[int, str], Sums] = {}
        self._waiting: dict[tuple[int, str], list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}

    @property
    def width(self) -> int:
        """The number of features."""
        return len(self.shift)

    def add(self, key: tuple[int, str], x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> None:
        """Add samples of one fold and role."""
        self.precision = max(self.precision, precision_of(x))
        waiting = self._waiting.setdefault(key, [])
        waiting.append((x, y, weights))
        if sum(len(part[0]) for part in waiting) >= MIN_BLOCK:
            self._flush(key)

    def by_role(self, role: str, num_folds: int, columns: Sequence[int]) -> list[Sums]:
        """The sums of every fold for one role, with target columns in this order."""
        for key in list(self._waiting):
            self._flush(key)
        empty = Sums.empty(self.width)
        return [self.sums.get((fold, role), empty).ordered(columns) for fold in range(num_folds)]

    def _flush(self, key: tuple[int, str]) -> None:
        parts = self._waiting.pop(key)
        num_columns = max(y.shape[1] for _, y, _ in parts)
        x = np.concatenate([x for x, _, _ in parts]).astype(float) - self.shift
        y = [np.pad(y, ((0, 0), (0, num_columns - y.shape[1]))) for _, y, _ in parts]
        sums = self.sums.setdefault(key, Sums.empty(self.width))
        sums.add(x, np.concatenate(y), np.concatenate([weights for _, _, weights in parts]))


class TargetColumns:
    """The target columns of all factors. A new value of a factor of names is a new column."""

    def __init__(self, frame: Any, names: Any):
        self.options = names
        self.named = input_validation.factors_of_names(frame, names)
        self.values: dict[str, dict[Any, int]] = {str(name): {} for name in frame}
        self.num = 0
        self.offset = {
            name: 0.0 if name in self.named else float(frame[name].mean()) for name in self.values
        }
        self.combinations_of_value: dict[str, set[tuple[int, int]]] = {n: set() for n in self.named}

    def check(self, frame: pd.DataFrame) -> None:
        """Refuse a batch with other factors, or with names where there were numbers."""
        require(
            set(map(str, frame)) == set(self.values),
            f"the factors of this batch are {', '.join(map(str, frame))}, and those of earlier "
            f"batches {', '.join(self.values)}: provide the same factors",
        )
        named = input_validation.factors_of_names(frame, self.options)
        for name in self.values:
            require(
                (name in named) == (name in self.named),
                f"factor {name!r} has names in one batch and numbers in another: provide the same "
                "type in every batch",
            )
        for name in self.named:
            num_values = len(set(self.values[name]) | set(frame[name].unique()))
            check_number_of_values(name, frame[name], num_values)

    def encode(self, frame: Any, numbers: np.ndarray) -> np.ndarray:
        """The targets of a batch, without the offsets: samples x columns."""
        code_of = {}
        for name, known in self.values.items():
            values = frame[name].unique() if name in self.named else [""]
            for value in values:
                if value not in known:
                    known[value] = self.num
                    self.num += 1
            if name in self.named:
                code_of[name] = frame[name].map(known).to_numpy(int)
                pairs = zip(numbers.tolist(), code_of[name].tolist(), strict=True)
                self.combinations_of_value[name].update(pairs)
        y = np.zeros((len(frame), self.num))
        for name, known in self.values.items():
            if name in self.named:
                y[np.arange(len(frame)), code_of[name]] = 1
            else:
                y[:, known[""]] = frame[name].to_numpy(float) - self.offset[name]
        return y

    def ordered(self) -> tuple[list[Factor], list[int], np.ndarray]:
        """The factors with sorted values, their columns here, and the offset of every column."""
        factors: list[Factor] = []
        columns: list[int] = []
        offsets: list[float] = []
        for name, known in self.values.items():
            values = sorted_values(known) if name in self.named else ()
            start = len(columns)
            columns += [known[value] for value in values or ("",)]
            offsets += [self.offset[name]] * (len(columns) - start)
            factors.append(Factor(name, slice(start, len(columns)), values))
        return factors, columns, np.array(offsets)


class Combinations:
    """The combinations of all batches: their number, fold, role and first row of factors."""

    def __init__(self, num_folds: int, seed: int):
        self.num_folds = num_folds
        self.seed = seed
        self.numbers: dict[str, int] = {}
        self.rows: list[dict[Any, Any]] = []
        self.is_named: bool | None = None  # whether the user names combinations
        self.folds: list[int] = []
        self.is_held_out: list[bool] = []
        self.sizes: list[int] = []

    def number(self, frame: pd.DataFrame, names: Any, held: np.ndarray) -> np.ndarray:
        """The number of every sample's combination; new combinations get the next ones."""
        is_named = names is not None
        require(
            self.is_named in (None, is_named),
            "one batch names its combinations and another does not: name them in all batches or "
            "in none",
        )
        own, listed = input_validation.number_combinations(names, frame, binary_factors=False)
        first = np.unique(own, return_index=True)[1]
        keys = listed if names is not None else [_key(frame.iloc[i]) for i in first]
        num_held, num_samples = np.bincount(own, held), np.bincount(own)
        is_split = (num_held > 0) & (num_held < num_samples)
        for i, key in enumerate(keys):
            known = self.numbers.get(key)
            is_same = known is None or self.is_held_out[known] == (num_held[i] > 0)
            if is_split[i] or not is_same:
                raise InputError(
                    f"the combination {key!r} is held out in some samples and not in others: hold "
                    "out all of its samples or none"
                )
        self.is_named = is_named
        for i, key in zip(first, keys, strict=True):
            if key not in self.numbers:
                self.numbers[key] = len(self.numbers)
                self.rows.append(frame.iloc[i].to_dict())
                self.folds.append(fold_of(key, self.seed, self.num_folds))
                self.is_held_out.append(bool(held[i]))
                self.sizes.append(0)
        return np.array([self.numbers[key] for key in keys])[own]

    def fitted_factors(self) -> pd.DataFrame:
        """The factors of the combinations that probes are fitted on."""
        known = zip(self.rows, self.is_held_out, strict=True)
        return pd.DataFrame([row for row, is_held_out in known if not is_held_out])

    def reserve(self, numbers: np.ndarray) -> np.ndarray:
        """Which samples are reserved: the second of a combination, and every fifth from there."""
        position = pd.Series(numbers).groupby(numbers).cumcount().to_numpy()
        position = position + np.array(self.sizes)[numbers]
        for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
            self.sizes[number] += int(count)
        return (position % RESERVE_EVERY == 1) & ~np.array(self.is_held_out)[numbers]


def fold_of(key: str, seed: int, num_folds: int) -> int:
    """The fold of a combination, from a hash of its name."""
    digest = hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % num_folds


def _key(row: pd.Series) -> str:
    """The name of a combination of factors, the same in every batch."""
    cells = []
    for name, value in sorted(row.items(), key=lambda cell: str(cell[0])):
        is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        cells.append(f"{name}={float(value)!r}" if is_number else f"{name}={value}")
    return ", ".join(cells)


class SumsResult(NamedTuple):
    """The probes of one layer. `errors` has the mean over factors only."""

    rows: list[dict[str, Any]]  # of `scores_`
    decode: LinearMap
    ridge_decode: LinearMap
    errors: np.ndarray
    factor_errors: np.ndarray
    penalties: np.ndarray
    is_at_edge: np.ndarray
    num_constant: int


class RunningSums:
    """Everything that `partial_fit` keeps of the batches so far."""

    def __init__(self, num_folds: int, seed: int, names: Any):
        self.names = names
        self.combinations = Combinations(num_folds, seed)
        self.layers: dict[str, LayerSums] = {}
        self.targets: TargetColumns | None = None

    def add(
        self,
        layers: dict[str, np.ndarray],
        frame: pd.DataFrame,
        combinations: Any,
        held: np.ndarray,
        weights: np.ndarray,
    ) -> None:
        """Add a batch. Nothing changes if it is refused."""
        if self.layers:
            self._check_layers(layers)
        targets = self.targets or TargetColumns(frame, self.names)
        targets.check(frame)
        numbers = self.combinations.number(frame, combinations, held)
        self.targets = targets
        y = targets.encode(frame, numbers)
        is_reserved = self.combinations.reserve(numbers)
        folds = np.array(self.combinations.folds)[numbers]
        role = np.where(held, HELD_OUT, np.where(is_reserved, RESERVED, FITTED))
        for name, x in layers.items():
            layer = self.layers.setdefault(name, LayerSums(x))
            for fold, kind in sorted(set(zip(folds.tolist(), role.tolist(), strict=True))):
                rows = (folds == fold) & (role == kind)
                layer.add((fold, kind), x[rows], y[rows], weights[rows])

    def probe(self, penalties: tuple[float, ...], algebra: Algebra) -> dict[str, SumsResult]:
        """Fit and score the probes of all layers."""
        self._check_folds()
        targets, columns, offsets = self._make_targets()
        self.fitted_targets = targets
        results = {}
        for name, layer in self.layers.items():
            probe = _LayerProbe(layer, self.combinations, targets, columns, penalties, algebra)
            results[name] = probe.result(offsets)
        return results

    def _check_layers(self, layers: dict[str, np.ndarray]) -> None:
        widths = {name: layer.width for name, layer in self.layers.items()}
        own = {name: x.shape[1] for name, x in layers.items()}
        require(
            own == widths,
            f"this batch has the layers (with features) {own}, and earlier batches {widths}: "
            "provide the same layers of the same model",
        )

    def _check_folds(self) -> None:
        combinations = self.combinations
        known = zip(combinations.folds, combinations.is_held_out, strict=True)
        used = {fold for fold, is_held_out in known if not is_held_out}
        for fold in range(combinations.num_folds):
            require(
                fold in used,
                f"fold {fold} of {combinations.num_folds} has no combination (folds follow from a "
                "hash of the combination's name): provide more combinations, or set fewer folds "
                "or another seed",
            )

    def _make_targets(self) -> tuple[Targets, list[int], np.ndarray]:
        """The targets, their columns in the sums, and the offset of every column."""
        kept: Any = self.targets
        factors, columns, offsets = kept.ordered()
        layer = next(iter(self.layers.values()))
        num_folds = self.combinations.num_folds
        parts = [
            *layer.by_role(FITTED, num_folds, columns),
            *layer.by_role(RESERVED, num_folds, columns),
        ]
        n = sum(part.n for part in parts)
        mean: Any = sum(part.y for part in parts) / n
        spread = np.maximum(sum(part.squared for part in parts) / n - mean**2, 0)
        variance = np.array([spread[factor.columns].sum() for factor in factors])
        for factor, of_factor in zip(factors, variance, strict=True):
            _check_values(factor, mean[factor.columns], kept.combinations_of_value)
            rounding = ROUNDING * float(offsets[factor.columns.start]) ** 2
            varies = len(factor.values) > 1 if factor.values else of_factor > rounding
            require(
                varies,
                f"factor {factor.name!r} has one value in all samples that probes are fitted on, "
                "so it cannot be learned: leave this factor out",
            )
        return Targets.of(factors, variance), columns, offsets


def _check_values(
    factor: Factor, weight: np.ndarray, combinations_of_value: dict[str, set[tuple[int, int]]]
) -> None:
    """Refuse values that only held-out samples have, and values without a second combination."""
    if not factor.values:
        return
    unknown = [str(value) for value, w in zip(factor.values, weight, strict=True) if w == 0]
    require(
        not unknown,
        f"factor {factor.name!r} is {unknown[:1]} only in held-out combinations, so no probe can "
        "learn to decode it: leave these samples out",
    )
    counts = Counter(column for _, column in combinations_of_value[factor.name])
    input_validation.require_shared_value(factor.name, max(counts.values()))


class _MomentRidge(Ridge):
    """The ridge regressions of a layer from the sums of its folds."""

    def __init__(self, layer: LayerSums, folds: list[Sums], algebra: Algebra):
        self.shift = layer.shift
        self.precision = layer.precision
        self.algebra = algebra
        self.one_hot = ()
        self.is_wide = False
        self.basis = None
        self.fold_moments = [sums.moments()._replace(xx=algebra.matrix(sums.xx)) for sums in folds]
        self.total = Moments(*(sum(parts) for parts in zip(*self.fold_moments, strict=True)))
        self._last_system = None


class _LayerProbe:
    """Nested cross-validation of one layer, the same as that of `fit`, from sums."""

    def __init__(
        self,
        layer: LayerSums,
        combinations: Combinations,
        targets: Targets,
        columns: Sequence[int],
        penalties: tuple[float, ...],
        algebra: Algebra,
    ):
        num_folds = combinations.num_folds
        self.folds = range(num_folds)
        self.targets = targets
        self.penalties = penalties
        fitted = layer.by_role(FITTED, num_folds, columns)
        self.reserved = layer.by_role(RESERVED, num_folds, columns)
        self.whole = list(zip(fitted, self.reserved, strict=True))
        self.held_out = layer.by_role(HELD_OUT, num_folds, columns)
        self.ridge = _MomentRidge(layer, fitted, algebra)
        self._maps: dict[frozenset[int], list[LinearMap]] = {}

    def result(self, offsets: np.ndarray) -> SumsResult:
        """Scores, and the map of the whole data in the model's own units."""
        errors = self._penalty_errors(NO_FOLD)
        chosen = errors.argmin(axis=0)
        fitted = self.ridge.in_model_units(self._map(NO_FOLD, chosen))
        decode = LinearMap(fitted.weights, fitted.constant + offsets)
        left_out = [self._map(frozenset({fold}), chosen) for fold in self.folds]
        factor_errors = self._errors(left_out, self.whole).sum(axis=0)
        factor_errors /= sum(_weight(parts) for parts in self.whole)
        chosen_penalties = np.array(self.penalties)[chosen]
        return SumsResult(
            rows=self._rows(chosen_penalties),
            decode=decode,
            ridge_decode=decode,
            errors=np.array([factor_errors.mean()]),
            factor_errors=factor_errors,
            penalties=chosen_penalties,
            is_at_edge=is_at_edge(errors),
            num_constant=constant_features(self.ridge),
        )

    def _fits(self, without: frozenset[int]) -> list[LinearMap]:
        if without not in self._maps:
            self._maps[without] = self.ridge.fit(without, self.penalties)
        return self._maps[without]

    def _map(self, without: frozenset[int], chosen: np.ndarray) -> LinearMap:
        """One map with the chosen penalty of every factor."""
        maps = self._fits(without)
        weights, constant = maps[0].weights.copy(), maps[0].constant.copy()
        for factor, penalty_index in zip(self.targets.factors, chosen, strict=True):
            weights[:, factor.columns] = maps[penalty_index].weights[:, factor.columns]
            constant[factor.columns] = maps[penalty_index].constant[factor.columns]
        return LinearMap(weights, constant)

    def _errors(self, maps: list[LinearMap], sums: Sequence[Parts]) -> np.ndarray:
        """The summed error of every map on its sums: maps x factors."""
        missed = [_missed(parts, fitted) for fitted, parts in zip(maps, sums, strict=True)]
        by_factor = [[each[f.columns].sum() for f in self.targets.factors] for each in missed]
        return np.array(by_factor) / self.targets.variance

    def _penalty_errors(self, without: frozenset[int]) -> np.ndarray:
        """Cross-validated errors on the folds that remain: penalties x factors."""
        remaining = [fold for fold in self.folds if fold not in without]
        total: Any = 0.0
        for fold in remaining:
            maps = self._fits(without | {fold})
            total = total + self._errors(maps, [self.whole[fold]] * len(maps))
        return total / sum(_weight(self.whole[fold]) for fold in remaining)

    def _seen_choice(self, without: frozenset[int], tuning: Sums, chosen: np.ndarray) -> np.ndarray:
        """The best penalties for seen combinations; the given ones where they are as good."""
        if tuning.n == 0:
            return chosen
        maps = self._fits(without)
        errors = self._errors(maps, [(tuning,)] * len(maps)) / tuning.n
        present_errors = errors[chosen, np.arange(len(chosen))]
        is_as_good = present_errors <= errors.min(axis=0) + MAX_ERROR_GAIN
        return np.where(is_as_good, chosen, errors.argmin(axis=0))

    def _rows(self, penalties: np.ndarray) -> list[dict[str, Any]]:
        """The rows of `scores_`."""
        scored = {HELD_OUT: self._scored(is_seen=False), "seen": self._scored(is_seen=True)}
        rows = []
        for i, factor in enumerate(self.targets.factors):
            for side in ("seen", HELD_OUT):
                parts = [each for each in scored[side] if _weight(each[1]) > 0]
                if parts:
                    rows.append(_row(factor, side, parts, float(penalties[i])))
        return rows

    def _scored(self, is_seen: bool) -> list[tuple[LinearMap, Parts]]:
        """The maps of all evaluations, and the sums that they are scored on."""
        num = len(self.folds)
        if any(part.n for part in self.held_out):
            chosen = self._penalty_errors(NO_FOLD).argmin(axis=0)
            if is_seen:
                chosen = self._seen_choice(NO_FOLD, self.reserved[0], chosen)
            parts = self.reserved[1:] if is_seen else self.held_out
            return [(self._map(NO_FOLD, chosen), (part,)) for part in parts]
        scored = []
        for fold in self.folds:
            without = frozenset({fold})
            chosen = self._penalty_errors(without).argmin(axis=0)
            if is_seen:
                chosen = self._seen_choice(without, self.reserved[(fold + 2) % num], chosen)
            parts = (self.reserved[(fold + 1) % num],) if is_seen else self.whole[fold]
            scored.append((self._map(without, chosen), parts))
        return scored


def _row(
    factor: Factor, side: str, scored: list[tuple[LinearMap, Parts]], penalty: float
) -> dict[str, Any]:
    """One row of `scores_`, with the columns of `fit`."""
    columns = factor.columns
    n = np.array([_weight(parts) for _, parts in scored])
    missed = np.array([_missed(parts, fitted)[columns].sum() for fitted, parts in scored])
    first = np.array([sum(part.y[columns] for part in parts) for _, parts in scored])
    second = np.array([sum(part.squared[columns].sum() for part in parts) for _, parts in scored])
    score = float(_r2(n.sum(), missed.sum(), first.sum(axis=0), second.sum()))
    left_out = _r2(
        n.sum() - n, missed.sum() - missed, first.sum(axis=0) - first, second.sum() - second
    )
    low, high = r2_interval(score, np.atleast_1d(left_out))
    unknown = dict.fromkeys(
        ("shuffled", "balanced_accuracy", "balanced_low", "balanced_high"), np.nan
    )
    untested = dict.fromkeys(("p_value", "p_corrected", "selectivity"), np.nan)
    row = {"factor": factor.name, "split": side, "measure": "r2", "score": score}
    row |= {"low": low, "high": high} | unknown | {"majority": 0.0} | untested
    return row | {"penalty": penalty, "verdict": ""}


def _r2(n: Any, missed: Any, first: np.ndarray, second: Any) -> np.ndarray:
    """R2 over the columns of a factor; the last axis of `first` is the column."""
    count = np.maximum(n, np.finfo(float).tiny)
    spread = second - (first**2).sum(axis=-1) / count
    varies = spread > MIN_VARIANCE * count
    return np.where(varies, 1 - missed / np.where(varies, spread, 1), np.nan)


def _weight(parts: Parts) -> float:
    return sum(part.n for part in parts)


def _missed(parts: Parts, fitted: LinearMap) -> np.ndarray:
    return np.stack([part.missed(fitted) for part in parts]).sum(axis=0)
