"""Time ridge decodability of 50,000 x 4,096 activations with 16 factors, and its memory.

    python benchmarks/probe.py [SAMPLES FEATURES FACTORS]

The scores and the 200 draws of the control are timed, and compared with scikit-learn, which fits
all targets at once for every fold and penalty: one of these fits is timed, and the total is
extrapolated. The predictions are compared too, to show that both solve the same problem.
"""

import resource
import sys
import time
from typing import Any

import numpy as np
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.preprocessing import StandardScaler

from recombine.probe import Decodability
from recombine.probe.ridge import PENALTIES, Ridge

NUM_COMBINATIONS = 500
NUM_HELD_OUT = 100
NUM_FOLDS = 5
PENALTY = 1e-3


def main(num_samples: int = 50_000, width: int = 4096, num_factors: int = 16) -> None:
    rng = np.random.default_rng(0)
    combinations = rng.integers(NUM_COMBINATIONS, size=num_samples)
    factors = rng.integers(0, 2, size=(NUM_COMBINATIONS, num_factors)).astype(float)[combinations]
    activations = _activations(rng, factors, width)
    for values in (factors.astype(bool), factors):  # names, then numbers
        for num_permutations in (0, 200):
            _time_probe(activations, values, combinations, num_permutations)
    folds = np.where(combinations < NUM_HELD_OUT, -1, combinations % NUM_FOLDS)
    _time_sklearn(activations, factors, folds)


def _activations(rng: np.random.Generator, factors: np.ndarray, width: int) -> np.ndarray:
    """A linear code of the factors plus noise: (samples, width)."""
    num_samples, num_factors = factors.shape
    activations = rng.standard_normal((num_samples, width), dtype=np.float32)
    directions = rng.standard_normal((num_factors, width), dtype=np.float32)
    # In parts: a second copy would hide the memory of the probe.
    for rows in np.array_split(np.arange(num_samples), 50):
        activations[rows] += factors[rows].astype(np.float32) @ directions
    return activations


def _time_probe(
    activations: np.ndarray, factors: Any, combinations: np.ndarray, num_permutations: int
) -> None:
    memory = peak_memory()
    start = time.perf_counter()
    cpu_start = time.process_time()
    held_out = combinations < NUM_HELD_OUT
    probe = Decodability(num_permutations=num_permutations, progress=False)
    probe.fit(activations, factors, combinations, held_out=held_out)
    seconds = time.perf_counter() - start
    # Less than the number of cores x the first, if other processes run.
    cpu_seconds = time.process_time() - cpu_start
    num_samples, width = activations.shape
    print(
        f"{num_samples} x {width}, {factors.shape[1]} factors of {factors.dtype}, "
        f"{num_permutations} draws: "
        f"{seconds:.1f} s, {cpu_seconds:.1f} s of CPU time",
        flush=True,
    )
    size = activations.nbytes / 1e9
    print(f"memory beyond the activations ({size:.2f} GB): {peak_memory() - memory:.2f} GB")
    scores = probe.scores_[probe.scores_["split"] == "held out"]["score"]
    print(f"held out: mean score {scores.mean():.4f}")


def _time_sklearn(activations: np.ndarray, factors: np.ndarray, folds: np.ndarray) -> None:
    fitted = np.flatnonzero(folds >= 0)
    num_fits = NUM_FOLDS * len(PENALTIES) + 1
    start = time.perf_counter()
    cpu_start = time.process_time()
    standardized = StandardScaler().fit(activations[fitted])
    model = SklearnRidge(alpha=PENALTY * len(fitted))
    model.fit(standardized.transform(activations[fitted]), factors[fitted])
    seconds = time.perf_counter() - start
    cpu_seconds = time.process_time() - cpu_start
    print(
        f"scikit-learn, all targets at once: {seconds:.1f} s ({cpu_seconds:.1f} s of CPU time) per "
        f"fold and penalty; {num_fits} of them take {seconds * num_fits / 60:.0f} min "
        f"({cpu_seconds * num_fits / 60:.1f} min of CPU time)"
    )
    few = activations[:1000]
    ridge = Ridge(activations, factors, folds)
    predictions = ridge.in_model_units(ridge.fit(frozenset(), [PENALTY])[0])(few)
    expected = model.predict(standardized.transform(few))
    print(f"largest difference of predictions: {np.abs(predictions - expected).max():.1e}")


def peak_memory() -> float:
    """The peak memory of this process in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # Linux counts in kB


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
