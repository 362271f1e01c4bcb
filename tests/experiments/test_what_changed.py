"""The reasons on the page of verdicts before and after."""

import pytest

from benchmarks.what_changed import page, reasons

REJUDGED = {
    "statement": "S",
    "ours": False,
    "verdict": "reproduced",
    "interval": [0.1, 0.2],
    "interval_kind": "range over seeds",
    "seeds": 3,
    "threshold": "above 0",
    "columns": ["test/r2", "P/pre2/test/r2"],
}
BEFORE = {
    "experiment": "made",
    "name": "width",
    "statement": "S",
    "ours": False,
    "measured": 0.15,
    "interval": [0.1, 0.2],
    "verdict": "reproduced",
    "recipe": "Fast",
    "rejudged": REJUDGED,
}
AFTER = BEFORE | REJUDGED | {"recipe": "Fast"}
SAME = ("a", "a")


@pytest.mark.parametrize(
    ("before", "after", "sets", "expected"),
    [
        ({}, {}, SAME, []),
        ({"verdict": "better"}, {}, SAME, ["word"]),
        ({"verdict": "not reproduced"}, {}, SAME, ["rule: judged on the range over seeds"]),
        ({}, {"verdict": "inconclusive"}, SAME, ["rows"]),
        ({}, {"verdict": "inconclusive", "recipe": "Paper"}, SAME, ["recipe"]),
        ({}, {"verdict": "inconclusive", "seeds": 8}, ("a", "b"), ["set", "seeds: 3 → 8"]),
        ({}, {"verdict": "confounded", "columns": ["P/pre1/test/r2"]}, SAME, ["layer"]),
        ({}, {"verdict": "confounded", "threshold": "above 1"}, SAME, ["rule: above 1"]),
        ({}, {"verdict": "confounded", "threshold": "above 1", "measured": 2}, SAME, ["claim"]),
        ({}, {"verdict": "confounded", "statement": "T", "threshold": "x"}, SAME, ["claim"]),
        (
            {},
            {"verdict": "confounded", "threshold": "above 1", "seeds": 8},
            SAME,
            ["seeds: 3 → 8", "claim"],
        ),
        ({}, {"recipe": "Paper"}, ("a", "b"), []),
    ],
)
def test_reasons(before, after, sets, expected):
    assert reasons(BEFORE | before, AFTER | after, sets) == expected


@pytest.mark.parametrize(
    ("rejudged", "expected"),
    [
        (
            {"verdict": "inconclusive"},
            "rule: the range over seeds crosses the threshold",
        ),
        ({"verdict": "not judged", "seeds": 2}, "rule: 2 seeds"),
    ],
)
def test_a_changed_rule_and_a_changed_table_have_different_reasons(rejudged, expected):
    before = BEFORE | {"rejudged": REJUDGED | rejudged}
    after = AFTER | rejudged
    assert reasons(before, after, SAME) == [expected]
    trained_again = after | {"verdict": "reproduced", "recipe": "Paper", "seeds": 8}
    assert reasons(before, trained_again, SAME)[:2] == [expected, "recipe"]


def test_every_claim_is_on_the_page_once():
    new = AFTER | {"name": "new"}
    gone = BEFORE | {"name": "gone"}
    failed = AFTER | {"verdict": "not reproduced", "recipe": "Paper"}
    before = {"claims": [BEFORE, gone], "sets": {"made": "a"}}
    text = page(before, [failed, new], {"made": "a"})
    assert "## Verdicts that changed: 1\n" in text
    assert (
        "| reproduced: 0.1500 [0.1000, 0.2000] | not reproduced: 0.1500 [single seeds: 0.1000"
        in text
    )
    assert "| recipe |" in text
    assert "## New claims: 1\n\n- made: new: reproduced" in text
    assert "## Claims that are gone: 1\n\n- made: gone: reproduced" in text
