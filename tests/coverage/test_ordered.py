import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from recombine.basics.errors import InputError
from recombine.cli.main import app
from recombine.coverage import ordered

CHAINS = pd.DataFrame({"steps": ["a;b;c", "a;b", "b;c", "a;b;c", "c"]})


def test_missing_neighbors_and_positions_by_hand():
    result, lines = ordered.answer(CHAINS, "steps")
    assert result["examples"] == 5
    assert result["chains"] == 4
    assert result["lengths"] == {"1": 1, "2": 2, "3": 1}
    # No module follows itself, so 6 pairs are possible; a -> b and b -> c occur.
    assert result["neighbors"]["possible"] == 6
    assert result["neighbors"]["first"] == [["a", "c"], ["b", "a"], ["c", "a"], ["c", "b"]]
    assert result["positions"]["first"] == [[2, "a"], [3, "a"], [3, "b"]]
    assert "  a -> c" in lines
    assert "  b at position 3" in lines


def test_evidence_counts_distinct_chains():
    # a -> b is in two distinct chains, b -> c in two; a at position 1 in two, c at 3 in one.
    result, _ = ordered.answer(CHAINS, "steps", evidence=2)
    assert result["neighbors"]["missing"] == 4
    assert [3, "c"] in result["positions"]["first"]
    assert [1, "a"] not in result["positions"]["first"]
    assert ordered.answer(CHAINS, "steps", evidence=3)[0]["neighbors"]["missing"] == 6


def test_held_out_chains_say_what_is_new():
    test = pd.DataFrame({"steps": ["a;b", "c;a", "b;c;b;c", "c;b;d"]})
    result, _ = ordered.answer(CHAINS, "steps", held_out=test)
    assert result["held_out"] == {
        "chains": 4,
        "in_training": 1,
        "new_modules": 1,
        "new_neighbors": 3,
        "new_positions": 3,
        "longer": 1,
    }


def test_columns_in_order_are_the_same_as_one_column():
    columns = pd.DataFrame([["a", "b", "c"], ["a", "b", None], ["b", "c", None], ["c", None, ""]])
    columns.columns = ["s1", "s2", "s3"]
    by_columns, _ = ordered.answer(columns, "s1,s2,s3")
    by_text, _ = ordered.answer(CHAINS.drop_duplicates(), "steps")
    assert by_columns == by_text


def test_a_repetition_makes_every_pair_possible():
    result, _ = ordered.answer(pd.DataFrame({"steps": ["a;a", "b"]}), "steps")
    assert result["neighbors"]["possible"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((CHAINS, "step"), "no column 'step'"),
        ((pd.DataFrame({"steps": [None]}), "steps"), "has no chains"),
        ((pd.DataFrame({"a": ["x"], "b": [None], "c": ["y"]}), "a,b,c"), "row 1 has an empty cell"),
        ((CHAINS, "steps", ";", None, 0), "--evidence must be at least 1"),
        (("missing.csv", "steps"), "cannot read missing.csv"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        ordered.answer(*arguments)
    assert "\n" not in str(caught.value)


def test_the_command(tmp_path):
    path = tmp_path / "chains.csv"
    CHAINS.to_csv(path, index=False)
    command = ["coverage", str(path), "--factors", "steps", "--ordered", "--evidence", "2"]
    printed = CliRunner().invoke(app, [*command, "--json"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout)["neighbors"]["missing"] == 4
    assert (
        "4 of 6 neighbors occur in fewer than 2 chains" in CliRunner().invoke(app, command).stdout
    )
