from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.limits import ambiguity
from recombine.sweeps.run import describe, identity, structure

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "ambiguity.parquet"
# R2 on train and on unseen tasks, by what is told: of the student, of the best predictor, and of the bet.
HIDDEN = {0: (1, 1, 1), 0.5: (0.5, 0.52, 0.4), 1: (0, 0, 0)}
PAIRS = {1: (0.5, 1, 1), 2: (0.9, 1, 1)}


def rows_of(hidden, pairs, num_seeds=3):
    """Rows of the tiny sweep with made-up scores, a little better with every seed."""
    made = []
    for run in ambiguity.runs("tiny"):
        shown = isinstance(run.encoding, rc.Hidden)
        student, best, bet = (
            hidden[run.encoding.frac_hidden] if shown else pairs[run.encoding.num_pairs]
        )
        for seed in range(num_seeds):
            row = {"run": f"{identity(run)}-{seed}", "step": 20, **describe(run), "seed": seed}
            for side in ("seen", "test"):
                row |= {f"{side}/r2": student + 0.001 * seed}
                row |= {f"BayesCeiling/{side}/all/r2": best, f"BayesCeiling/{side}/train/r2": bet}
            made.append(row)
    return pd.DataFrame(made)


def claims_of(rows):
    return {claim.name: claim for claim in ambiguity.claims(rows)}


def verdicts(rows):
    return {name: claim.verdict for name, claim in claims_of(rows).items()}


def test_all_fractions_are_one_program_and_every_number_of_pairs_another():
    runs = ambiguity.runs("full")
    assert len(set(map(structure, runs))) == 7
    cells = {(run.encoding, run.seed) for run in runs}
    assert len(cells) == len(runs) == (7 + 6) * 3
    assert {run.family.weights for run in runs} == {"khot"}, "or tasks could not be listed"
    assert len(runs[0].family.tasks()) == 696


def test_a_student_as_good_as_the_best_reproduces_everything():
    claims = claims_of(rows_of(HIDDEN, PAIRS))
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    assert claims["unseen tasks"].measured == pytest.approx(0.02 - 0.001)
    assert claims["no bet"].measured == pytest.approx(0.1 + 0.001)
    # 0.85 of 0.9, where the curve from 1 to 2 pairs is 7/8 of its way up, on a logarithmic axis.
    assert claims["pairs"].measured == pytest.approx(2 ** (7 / 8), abs=1e-3)
    low, high = claims["unseen tasks"].interval
    assert 0.0179 < low < claims["unseen tasks"].measured < high < 0.0201


def test_each_claim_can_fail_alone():
    def failing(hidden=None, pairs=None):
        found = verdicts(rows_of(HIDDEN | (hidden or {}), PAIRS | (pairs or {})))
        return {name for name, verdict in found.items() if verdict == "not reproduced"}

    assert failing({0.5: (0.5, 0.6, 0.4)}) == {"unseen tasks"}
    assert failing({0.5: (0.5, 0.5, 0.6)}) == {"train tasks", "no bet"}
    assert failing(pairs={1: (0.88, 1, 1)}) == {"pairs"}, "one pair is enough for this student"
    assert failing(pairs={2: (0.9, 0.8, 0.8)}) == {"pairs"}, "information is missing"
    assert failing(pairs={1: (0.0, 1, 1), 2: (0.4, 1, 1)}) == {"pairs"}, (
        "a student that learned nothing shows nothing"
    )
    everything = set(verdicts(rows_of(HIDDEN, PAIRS)))
    assert failing({1: (0.6, 0.6, 0.6)}) == everything, "who knows untold tasks has other sources"


def test_missing_cells_are_not_yet_run():
    rows = rows_of(HIDDEN, PAIRS)
    assert set(verdicts(None).values()) == {"not yet run"}
    paired = rows[rows["encoding"] == "FewShot"].dropna(axis=1, how="all")
    assert set(verdicts(paired).values()) == {"not yet run"}
    shown = verdicts(rows[rows["encoding"] == "Hidden"].dropna(axis=1, how="all"))
    assert [name for name, verdict in shown.items() if verdict == "not yet run"] == ["pairs"]
    half = verdicts(rows[rows["encoding.frac_hidden"] == 1])
    assert [name for name, verdict in half.items() if verdict != "not yet run"] == ["nothing told"]
    one_seed = rows[(rows["seed"] == 0) | (rows["encoding.frac_hidden"] == 0.5)]
    assert verdicts(one_seed)["pairs"] == "not yet run", "two of three seeds have no pairs yet"


def test_tiny_runs_end_to_end():
    rows = rc.train(ambiguity.runs("tiny"))
    found = ambiguity.summary(rows)
    assert found["0% hidden: best"] == found["pairs = 1: best"] == pytest.approx(1, abs=1e-4)
    assert found["pairs = 0: student"] == found["100% hidden: student"]
    assert found["100% hidden: best"] < found["50% hidden: best"] < 0.9
    seen, test, pairs = ambiguity.figures(rows).values()
    assert len({trace.name for trace in seen.data}) == len({trace.name for trace in test.data}) == 3
    assert list(pairs.layout.xaxis.categoryarray) == ["0", "1", "2"]
    assert {name for name, claim in claims_of(rows).items() if claim.holds is not None} == set(
        claims_of(rows)
    )
    assert set(verdicts(rows).values()) == {"not yet run"}, "one seed has no interval"


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert set(rows["run"]) == set(map(identity, ambiguity.runs(table.meta()["scale"])))
    assert not rows["diverged"].any()
    best = rows[[f"BayesCeiling/{side}/all/r2" for side in ("seen", "test")]]
    assert np.allclose(
        best[(rows["encoding"] == "FewShot") | (rows["encoding.frac_hidden"] == 0)], 1, atol=1e-3
    )
    assert verdicts(rows) == {
        "train tasks": "reproduced",
        "unseen tasks": "not reproduced",  # it falls behind by .08: it partly bets on train tasks
        "no bet": "reproduced",
        "pairs": "reproduced",
        "nothing told": "reproduced",
    }
