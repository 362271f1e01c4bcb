"""Error rates of the probe: coverage of its intervals, and verdicts on data whose truth is known.

    python benchmarks/probe_errors.py coverage [REPETITIONS]
    python benchmarks/probe_errors.py verdicts [REPETITIONS]

Coverage: every combination has its own random deviation, and a fitted probe is scored on 20 or 100
held-out combinations. Its true score is that on 3,000 others. Verdicts: a factor that the layer
does not have (any verdict but absent or undecided is wrong), and the networks of
`tests/probe/known_truth.py`.
"""

import sys
from collections import Counter

import numpy as np
import pandas as pd

from recombine.probe import Decodability
from tests.probe.known_truth import activations, grid

NUM_FITTED = 60  # combinations
NUM_OTHERS = 3000  # combinations of the true score
NUM_SAMPLES = 12  # of every combination
WIDTH = 8
DEVIATIONS = {"few mistakes": 0.5, "many mistakes": 1.3}  # of a combination, relative to a value


def coverage(num_repetitions: int = 400) -> None:
    """Print the coverage of 95% intervals of accuracy, balanced accuracy and R2."""
    for num_held_out in (20, 100):
        for name, deviation in DEVIATIONS.items():
            covered = Counter()
            for seed in range(num_repetitions):
                covered.update(covers(seed, num_held_out, deviation))
            shares = {key: round(covered[key] / num_repetitions, 3) for key in sorted(covered)}
            print(f"{num_held_out} combinations, {name}: {shares}", flush=True)


def covers(seed: int, num_held_out: int, deviation: float) -> dict[str, bool]:
    """Whether the intervals of one data set contain the true scores."""
    rng = np.random.default_rng(seed)
    num = NUM_FITTED + num_held_out + NUM_OTHERS
    value = rng.choice(3, num, p=(0.5, 0.35, 0.15))
    number = rng.normal(size=num)
    directions = rng.normal(size=(4, WIDTH))
    center = directions[value] + number[:, None] * directions[3]
    center = center + deviation * rng.normal(size=center.shape)
    combination = np.arange(num).repeat(NUM_SAMPLES)
    x = center[combination] + 0.5 * rng.normal(size=(len(combination), WIDTH))
    table = pd.DataFrame(
        {"name": np.array(list("abc"))[value], "number": number}, index=np.arange(num)
    )
    rows = table.loc[combination].reset_index(drop=True)
    is_used = combination < NUM_FITTED + num_held_out
    probe = Decodability(num_permutations=0, folds=3, penalties=(1e-3, 1e-1), progress=False)
    held_out = combination[is_used] >= NUM_FITTED
    probe.fit(x[is_used], rows[is_used].reset_index(drop=True), combination[is_used], held_out)
    predicted = probe.predict(x[~is_used])
    truth = rows[~is_used].reset_index(drop=True)
    scores = probe.scores_[probe.scores_["split"] == "held out"].set_index("factor")
    is_hit = (predicted["name"] == truth["name"]).groupby(truth["name"]).mean()
    accuracy = (predicted["name"] == truth["name"]).mean()
    missed = ((predicted["number"] - truth["number"]) ** 2).mean()
    r2 = 1 - missed / truth["number"].var(ddof=0)
    low, high = scores.loc["name", ["balanced_low", "balanced_high"]]
    return {
        "accuracy": bool(scores.at["name", "low"] <= accuracy <= scores.at["name", "high"]),
        "balanced accuracy": bool(low <= is_hit.mean() <= high),
        "r2": bool(scores.at["number", "low"] <= r2 <= scores.at["number", "high"]),
    }


def verdicts(num_repetitions: int = 400) -> None:
    """Print how often every verdict is given, by the truth."""
    counts = Counter(null_verdict(seed) for seed in range(num_repetitions))
    print(f"a factor that the layer does not have: {dict(counts)}", flush=True)
    for kind in ("composed", "memorized", "not linear", "absent"):
        counts = Counter(known_verdict(kind, seed) for seed in range(num_repetitions // 8))
        print(f"the bit is {kind}: {dict(counts)}", flush=True)


def null_verdict(seed: int) -> str:
    """The verdict on a factor that is drawn at random for every combination."""
    rng = np.random.default_rng(seed)
    rows = grid(seed, num_samples=8)[["shape", "color"]]
    number = rows.groupby(list(rows)).ngroup()
    rows["null"] = pd.Series(rng.choice(["u", "v", "w"], number.max() + 1))[number].to_numpy()
    x = rng.normal(size=(len(rows), 12))
    if seed % 2:  # the layer has another factor
        x = x + np.eye(4)[rows["shape"].astype(int)] @ rng.normal(size=(4, 12))
    probe = Decodability(progress=False, folds=4).fit(x, rows, number)
    return probe.verdicts_.set_index("factor").at["null", "verdict"]


def known_verdict(kind: str, seed: int) -> str:
    """The verdict on the bit of a network that has it in a known way."""
    rows = grid(seed)
    probe = Decodability(progress=False).fit(activations(kind, rows, seed), rows)
    return probe.verdicts_.set_index("factor").at["bit", "verdict"]


if __name__ == "__main__":
    {"coverage": coverage, "verdicts": verdicts}[sys.argv[1]](*map(int, sys.argv[2:]))
