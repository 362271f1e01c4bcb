import itertools
import json
import re

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.coverage import Coverage, page

EVIL = "</script><b>red</b>"


@pytest.fixture
def toys(tmp_path):
    rows = [
        *itertools.product(["ball", "cube"], ["red", "blue"], "sm"),
        ("cone", EVIL, "l"),
        ("disc", EVIL, "l"),
    ]
    pd.DataFrame(rows, columns=["shape", "colour", "size"]).to_csv(
        tmp_path / "toys.csv", index=False
    )
    return tmp_path / "toys.csv"


def test_the_command_answers_in_words_and_in_values(toys):
    result, lines = page.answer(toys, "shape, colour,size", 5)
    assert result["connected"] is False
    assert lines[0] == "10 examples of 10 combinations; 26 of 36 are missing"
    assert "NO   connected: shared combinations link all values" in lines
    assert "yes  compositional: every value occurs" in lines
    assert "to connect, 1 of them: optimal, no fewer can" in lines
    assert len([line for line in lines if line.startswith("  ")]) == len(result["suggestions"]) == 5


def test_words_do_not_promise_too_much():
    diagonal = Coverage(pd.DataFrame([(i, i) for i in range(6)], columns=["a", "b"]), ["a", "b"])
    assert page.proofs(diagonal.result(2)) == [
        "to connect, 2 of them: no fewer than 5 can; it takes more than these",
        "to connect and span, 2 of them: no fewer than 5 can; it takes more than these",
    ]
    goal = {
        "name": "lift",
        "suggested": 3,
        "needed": 3,
        "met": True,
        "share": 0.99999,
        "optimal": False,
    }
    assert page.proofs({"goals": [goal]}) == [
        "to lift rare values, 3 of them: at least 99.9% of the optimum"
    ]


def test_the_page_is_whole_and_safe(toys, tmp_path):
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
    assert [len(json.loads(one)["data"]) for one in figures] == [2, 3, 2]
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text), (
        "nothing is loaded from elsewhere"
    )


def test_pairs_that_never_meet_are_crossed_and_rivals_are_not(toys):
    coverage = Coverage(toys, ["shape", "colour", "size"])
    heat, crosses = page.meeting(coverage).data
    z = np.array(heat.z, float)
    names = coverage.modules.names
    crossed = {frozenset((names[x], names[y])) for x, y in zip(crosses.x, crosses.y, strict=True)}
    assert frozenset(("shape=ball", "size=l")) in crossed
    assert frozenset(("shape=cone", "size=s")) in crossed
    assert frozenset(("shape=ball", "shape=cone")) not in crossed, "two values of one factor"
    assert len(crosses.x) + np.isfinite(z).sum() == 2 * (4 * 3 + 4 * 3 + 3 * 3)
    assert z[names.index("shape=ball"), names.index("size=s")] == 2


def test_groups_differ_in_colour_and_symbol_and_edges_stay_within(toys):
    drawn = page.groups(Coverage(toys, ["shape", "colour", "size"]))
    edges, *groups = drawn.data
    assert len(groups) == 2
    assert len(drawn.layout.annotations) == 10
    assert len({(group.marker.color, group.marker.symbol) for group in groups}) == 2
    where = {
        (x, y): n for n, group in enumerate(groups) for x, y in zip(group.x, group.y, strict=True)
    }
    ends = [end for end in zip(edges.x, edges.y, strict=True) if end[0] is not None]
    assert len(ends) == 2 * (4 * 3 + 1 * 2 * 2 + 1)
    assert all(where[ends[i]] == where[ends[i + 1]] for i in range(0, len(ends), 2))


def test_many_values_are_cut_to_the_rarest():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 80, 500), "b": rng.integers(0, 5, 500)})
    coverage = Coverage(frame, ["a", "b"])
    drawn = page.meeting(coverage)
    assert len(drawn.layout.xaxis.ticktext) == page.DRAWN
    assert "the 60 rarest of 85 values" in drawn.layout.title.text
    assert not page.groups(coverage).layout.annotations, "no room for so many names"


def test_a_page_that_cannot_be_written_is_told(toys, tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        page.answer(toys, "shape,colour", 5, tmp_path)
    with pytest.raises(InputError, match="cannot write the report"):
        page.answer(toys, "shape,colour", 5, toys / "page.html")


def test_long_names_leave_the_matrix_its_room(tmp_path):
    long = ["a very long name, longer than any label", "a very long name, longer than any other"]
    pd.DataFrame({"one": [*long, "short"], "other": list("xyx")}).to_csv(
        tmp_path / "t.csv", index=False
    )
    coverage = Coverage(tmp_path / "t.csv", ["one", "other"])
    heat = page.meeting(coverage)
    assert max(map(len, heat.layout.yaxis.ticktext)) <= page.NAME
    assert heat.data[0].colorbar.dtick == 1, "there is no half of a combination"
    (bars,) = (one for one in page.rarest(coverage, coverage.result(0)).data if one.type == "bar")
    assert len(set(bars.x)) == 5, "names that are cut alike keep bars of their own"
