import numpy as np
import pandas as pd
import pytest

from recombine.experiments.limits import subsequence
from recombine.experiments.limits._lookup_table import LookupTable
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import FAILED, claims_of


def rows_of(absolute=0.1, rotary=0.4, seen=1.0, offset=None):
    """Rows of the full sweep with these accuracies on the longest lists."""
    rows = []
    for run in subsequence.runs("full"):
        row = {"run": identity(run), "step": run.num_steps, **describe(run), "seen/accuracy": seen}
        others = {"rotary": rotary, "random_offset": absolute if offset is None else offset}
        accuracy = others.get(run.model.positions, absolute)
        for length in range(6, 11):
            row[f"test/length={length}/accuracy"] = accuracy + 0.001 * run.seed
        rows.append(row)
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(subsequence, rows)}


def test_claims_and_the_lookup_tables():
    """The lookup tables of the full family are computed here, not planted."""
    verdict_of = verdicts(rows_of())
    assert len(verdict_of) == 6
    assert verdict_of.pop("composition") == "not reproduced", (
        "rotary positions stay below the table"
    )
    assert set(verdict_of.values()) == {"reproduced"}
    accuracy = subsequence.lookup_accuracy(subsequence.FAMILIES["full"])
    for reach, counted in subsequence.COUNTED.items():
        computed = [accuracy[reach, length] for length in counted]
        np.testing.assert_allclose(computed, list(counted.values()), atol=0.03)


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({}, {"composition"}),
        ({"absolute": 0.6, "rotary": 0.95}, {"collapse"}),
        ({"rotary": 0.15}, {"positions", "composition"}),
        ({"rotary": 0.95}, {"collapse"}),
        ({"seen": 0.5}, {"in distribution", "collapse", "positions", "composition"}),
    ],
)
def test_each_claim_can_fail(changes, failing, monkeypatch):
    verdict_of = verdicts_with_planted_tables(monkeypatch, **changes)
    assert {name for name, verdict in verdict_of.items() if verdict in FAILED} == failing


def test_a_collapse_is_confounded_if_positions_explain_it(monkeypatch):
    assert verdicts_with_planted_tables(monkeypatch)["collapse"] == "reproduced"
    assert verdicts_with_planted_tables(monkeypatch, rotary=0.95)["collapse"] == "confounded"
    assert verdicts_with_planted_tables(monkeypatch, offset=0.95)["collapse"] == "confounded"


def verdicts_with_planted_tables(monkeypatch, **changes):
    planted = {
        (reach, length): value
        for reach, by_length in subsequence.COUNTED.items()
        for length, value in by_length.items()
    }
    monkeypatch.setattr(subsequence, "lookup_accuracy", lambda family: planted)
    return verdicts(rows_of(**changes))


def test_a_lookup_table_by_hand():
    # Decisions depend on the next word alone: take a word that is followed by 1.
    lists = np.array([[2, 1, 0], [3, 1, 2], [2, 2, 1]])
    answers = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    table = LookupTable(1).fit(lists, answers)
    assert table.score(lists, answers) == 1
    assert table.predict(np.array([[3, 1, 2, 1]])).tolist() == [[1, 0, 0, 0]], (
        "a new window falls back to the majority of its element"
    )


def check_tiny(rows):
    drawn = figures_of(subsequence, rows)["length"]
    assert {"lookup table, ±1", "lookup table, ±2", "rotary positions"} <= {
        trace.name for trace in drawn.data
    }
    assert {claim.verdict for claim in claims_of(subsequence, rows)} == {"not yet run"}
