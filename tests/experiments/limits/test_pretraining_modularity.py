import math

import numpy as np
import pandas as pd
import pytest

from recombine.experiments.limits import pretraining_modularity
from recombine.experiments.limits.pretraining_modularity import (
    LONGER,
    OTHER,
    PRETRAINED,
    SCRATCH,
    clustered_difference,
    student,
)
from recombine.experiments.plots import figures_of
from tests.experiments.neutral import FAILED, claims_of


def rows_of(shares=(0.2, 0.8, 0.2, 0.4), random=0.0, overlap=0.1, helped=0.2):
    """Made-up rows; `shares` are those of modules with an own subnetwork, for each start."""
    rows = []
    for cell, share in zip(pretraining_modularity.cells("small"), shares, strict=True):
        is_pretrained = cell["start"] == PRETRAINED
        for seed in range(8):
            for module in range(10):
                is_own = module < round(10 * share) + (seed % 2)
                rows.append(
                    cell
                    | {
                        "run": cell["start"],
                        "step": len(rows),
                        "seed": seed,
                        "module": module,
                        "test/r2": 0.5 + helped * is_pretrained + 0.01 * seed,
                        "student": 0.9,
                        "subnetwork": 0.9,
                        "ablation": -0.5 if is_own else -0.1,
                        "random subnetwork": 0.9,
                        "random ablation": -random,
                        "size": 0.1,
                        "overlap": 0.3 - overlap * is_pretrained + 0.01 * seed,
                    }
                )
    return pd.DataFrame(rows)


def failing(**changes):
    judged = claims_of(pretraining_modularity, rows_of(**changes))
    return {claim.name for claim in judged if claim.verdict in FAILED}


def test_each_claim_can_fail():
    judged = claims_of(pretraining_modularity, rows_of())
    assert {claim.verdict for claim in judged} == {"reproduced"}
    assert {"more consistent", "ablation"} <= failing(shares=(0.5, 0.2, 0.2, 0.2))
    assert failing(shares=(0.2, 0.6, 0.8, 0.2)) == {"more consistent"}, "another teacher helps, too"
    assert failing(shares=(0.2, 0.6, 0.2, 0.8)) == {"more consistent"}, "more steps help, too"
    assert failing(random=0.5) == {"random masks"}
    assert failing(overlap=-0.1) == {"overlap"}
    assert failing(helped=-0.2) == {"pretraining helps"}


def test_standard_errors_are_clustered_by_student():
    """Repeating every module changes nothing: its rows are not independent."""
    rows = pretraining_modularity.prepare(rows_of())
    rng = np.random.default_rng(0)
    rows["score"] = rng.normal(size=len(rows))
    once = clustered_difference(rows, "score", PRETRAINED, SCRATCH)
    twice = clustered_difference(pd.concat([rows, rows]), "score", PRETRAINED, SCRATCH)
    assert once.interval == pytest.approx(twice.interval)
    means = rows.groupby(["start", "seed"])["score"].mean()
    first, second = means[PRETRAINED].to_numpy(), means[SCRATCH].to_numpy()
    error = math.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 8)
    low, high = once.interval
    quantile = 2.1448  # of t with 14 degrees of freedom
    assert high - low == pytest.approx(2 * quantile * error, rel=1e-4)
    one_seed = rows[rows["seed"] == 0]
    assert math.isnan(clustered_difference(one_seed, "score", PRETRAINED, SCRATCH).value)


def test_starts_differ_in_the_teacher_and_in_the_steps():
    runs = {start: student("small", start, 3) for start in (SCRATCH, PRETRAINED, OTHER, LONGER)}
    assert runs[SCRATCH].start is None
    assert runs[PRETRAINED].start.seed == 3
    assert runs[OTHER].start.seed not in range(2000)
    assert runs[OTHER].start.family == runs[OTHER].family
    total = runs[PRETRAINED].num_steps + runs[PRETRAINED].start.num_steps
    assert runs[LONGER].num_steps == total
    assert len({run.frac_test for run in runs.values()}) == 1


def check_tiny(rows):
    assert len(rows) == 2 * 3 * 6
    scores = rows.groupby("start")["student"].mean()
    assert scores[PRETRAINED] > scores[SCRATCH], "it was trained for twice as many steps"
    assert len(figures_of(pretraining_modularity, rows)) == 3
