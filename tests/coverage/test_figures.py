"""The figures of a coverage page."""

import numpy as np
import pandas as pd
import pytest

from recombine.coverage import Coverage, figures
from tests.coverage.test_page import TOYS


@pytest.fixture
def coverage() -> Coverage:
    return Coverage(TOYS, ["shape", "colour", "size"])


def test_pairs_in_no_combination_are_crossed_but_not_two_values_of_a_factor(coverage):
    heat, crosses = figures.pairs(coverage).data
    z = np.array(heat.z, float)
    names = coverage.modules.names
    crossed = {frozenset((names[x], names[y])) for x, y in zip(crosses.x, crosses.y, strict=True)}
    assert frozenset(("shape=ball", "size=l")) in crossed
    assert frozenset(("shape=cone", "size=s")) in crossed
    assert frozenset(("shape=ball", "shape=cone")) not in crossed, "two values of one factor"
    assert len(crosses.x) + np.isfinite(z).sum() == 2 * (4 * 3 + 4 * 3 + 3 * 3)
    assert z[names.index("shape=ball"), names.index("size=s")] == 2


def test_groups_differ_in_color_and_symbol_and_links_stay_within_a_group(coverage):
    drawn = figures.groups(coverage)
    links, *groups = drawn.data
    assert len(groups) == 2
    assert len(drawn.layout.annotations) == 10
    assert len({(group.marker.color, group.marker.symbol) for group in groups}) == 2
    group_at = {
        point: number
        for number, group in enumerate(groups)
        for point in zip(group.x, group.y, strict=True)
    }
    ends = [point for point in zip(links.x, links.y, strict=True) if point[0] is not None]
    assert len(ends) == 2 * (4 * 3 + 1 * 2 * 2 + 1)
    assert all(group_at[ends[i]] == group_at[ends[i + 1]] for i in range(0, len(ends), 2))


def test_of_many_values_the_rarest_are_drawn():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 80, 500), "b": rng.integers(0, 5, 500)})
    coverage = Coverage(frame, ["a", "b"])
    drawn = figures.pairs(coverage)
    assert len(drawn.layout.xaxis.ticktext) == figures.MAX_VALUES
    assert "the 60 rarest of 85 values" in drawn.layout.title.text
    assert not figures.groups(coverage).layout.annotations, "too many names"


def test_long_names_are_shortened():
    names = ["a very long name, longer than any label", "a very long name, longer than any other"]
    table = pd.DataFrame({"first": [*names, "short"], "second": list("xyx")})
    coverage = Coverage(table, ["first", "second"])
    drawn = figures.pairs(coverage)
    assert max(map(len, drawn.layout.yaxis.ticktext)) <= figures.MAX_LABEL_LENGTH
    assert drawn.data[0].colorbar.dtick == 1, "there are no half combinations"
    rarest = figures.rarest(coverage.result(0))
    (bars,) = (trace for trace in rarest.data if trace.type == "bar")
    assert len(set(bars.x)) == 5, "names that would be shortened alike keep their own bars"
