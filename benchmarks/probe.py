"""How long ridge decodability of 50,000 x 4,096 activations with 16 factors takes, and how much memory.

    python benchmarks/probe.py [SAMPLES FEATURES FACTORS]

Against scikit-learn in the same run: one of its fits per target, fold and penalty, of which two are timed and the
rest counted. The readings are compared, so that both solve the same problem.
"""

import resource
import sys
import time

import numpy as np
from sklearn.linear_model import Ridge as Plain

from recombine.probe import Decodability
from recombine.probe.ridge import Ridge

TIMED = 2  # of scikit-learn's fits


def main(num_samples: int = 50_000, width: int = 4096, num_factors: int = 16) -> None:
    rng = np.random.default_rng(0)
    combinations = rng.integers(500, size=num_samples)
    factors = rng.integers(0, 2, size=(500, num_factors)).astype(float)[combinations]
    activations = rng.standard_normal((num_samples, width), dtype=np.float32)
    parts = rng.standard_normal((num_factors, width), dtype=np.float32)
    for rows in np.array_split(
        np.arange(num_samples), 50
    ):  # a second copy would hide what the probe needs
        activations[rows] += factors[rows].astype(np.float32) @ parts
    before = peak()
    clock, busy = time.perf_counter(), time.process_time()
    probe = Decodability().fit(activations, factors, combinations, held_out=combinations < 100)
    ours, busy = time.perf_counter() - clock, time.process_time() - busy
    told = f"{ours:.1f} s, {busy:.1f} s of a core"  # the second is less than cores x the first where others work, too
    print(
        f"{num_samples} x {width}, {num_factors} factors and as many shuffled: {told}", flush=True
    )
    print(
        f"memory beyond the activations ({activations.nbytes / 1e9:.2f} GB): {peak() - before:.2f} GB"
    )
    print(
        f"held out: mean R2 {probe.scores_[probe.scores_['split'] == 'held out']['score'].mean():.4f}"
    )
    folds = np.where(combinations < 100, -1, combinations % 5)
    fitted = folds >= 0
    clock = time.perf_counter()
    weight = 1e-3 * fitted.sum() * activations[fitted].var(axis=0, dtype=float).mean()
    plain = [Plain(alpha=weight).fit(activations[fitted], factors[fitted, i]) for i in range(TIMED)]
    theirs = (time.perf_counter() - clock) / TIMED
    fits = num_factors * 2 * (5 * len(Ridge.penalties) + 1)
    print(
        f"scikit-learn: {theirs:.1f} s a target, fold and penalty; {fits} of them {theirs * fits / 60:.0f} min"
    )
    clock = time.perf_counter()
    Plain(alpha=weight).fit(activations[fitted], factors[fitted])
    once = time.perf_counter() - clock
    fits = 5 * len(Ridge.penalties) + 1
    print(
        f"scikit-learn, all targets at once: {once:.1f} s a fold and penalty; {fits} of them {once * fits / 60:.0f} min"
    )
    read = Ridge(activations, factors, folds).fit(frozenset(), 1e-3)(activations[:1000])
    off = max(
        np.abs(read[:, i] - one.predict(activations[:1000])).max() for i, one in enumerate(plain)
    )
    print(f"largest difference of readings: {off:.1e}")


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # GB; Linux counts in kB


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
