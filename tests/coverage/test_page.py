"""The answer of `recombine coverage`: lines for the terminal, and the page."""

import itertools
import json
import re

import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.coverage import Coverage, page

EVIL = "</script><b>red</b>"
TOYS = pd.DataFrame(
    [
        *itertools.product(["ball", "cube"], ["red", "blue"], "sm"),
        ("cone", EVIL, "l"),
        ("disc", EVIL, "l"),
    ],
    columns=["shape", "colour", "size"],
)


@pytest.fixture
def toys(tmp_path):
    TOYS.to_csv(tmp_path / "toys.csv", index=False)
    return tmp_path / "toys.csv"


def test_the_answer_is_text_and_plain_values(toys):
    result, lines = page.answer(toys, "shape, colour,size", 5)
    assert result["connected"] is False
    assert lines[0] == "10 examples cover 10 of 36 possible combinations; 26 are missing"
    assert "NO   connected: shared combinations link all values" in lines
    assert "yes  compositional: every value occurs" in lines
    assert "to connect all values: 1 suggestion, the fewest possible" in lines
    assert len([line for line in lines if line.startswith("  ")]) == len(result["suggestions"]) == 5


def test_optimality_is_not_overstated():
    diagonal = Coverage(pd.DataFrame([(i, i) for i in range(6)], columns=["a", "b"]), ["a", "b"])
    assert page.optimality(diagonal.result(2)) == [
        "to connect all values: 2 suggestions, not enough: at least 5 are needed",
        "to connect and span all values: 2 suggestions, not enough: at least 5 are needed",
    ]
    goal = {
        "name": "lift",
        "suggested": 3,
        "needed": 3,
        "met": True,
        "share": 0.99999,
        "optimal": False,
    }
    assert page.optimality({"goals": [goal]}) == [
        "to make rare values more frequent: 3 suggestions, at least 99.9% of the optimal gain"
    ]


def test_the_page_is_complete_and_escaped(toys, tmp_path):
    result, lines = page.answer(toys, "shape,colour,size", 5, tmp_path / "page.html")
    assert lines[-1] == f"Report: {tmp_path / 'page.html'}"
    text = (tmp_path / "page.html").read_text()
    assert EVIL not in text
    assert len(re.findall("✗ no", text)) == 3
    assert "✓ yes" in text
    body = text.split("<tbody>")[1].split("</tbody>")[0]
    assert len(re.findall("<tr>", body)) == len(result["suggestions"])
    assert "<h2>What to add</h2>" in text
    figures = re.findall(r'<script type="application/json" id="figure\d">(.*?)</script>', text)
    assert [len(json.loads(figure)["data"]) for figure in figures] == [2, 3, 2]
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text), "nothing else is loaded"


def test_an_unwritable_page_raises_an_error(toys, tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        page.answer(toys, "shape,colour", 5, tmp_path)
    with pytest.raises(InputError, match="cannot write the report"):
        page.answer(toys, "shape,colour", 5, toys / "page.html")
