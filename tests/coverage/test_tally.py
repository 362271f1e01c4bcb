import re

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.coverage import tally

FACTORS = ["shape", "colour", "size"]


def toys(num: int = 5_000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "number": np.arange(num),
            "shape": rng.choice(["ball", "cube", "cone"], num),
            "colour": rng.choice(["red", "blue"], num, p=[0.9, 0.1]),
            "size": rng.integers(0, 12, num),
        }
    )


def told(table: tally.Tally) -> dict:
    rows = table.table.to_pylist()
    return {
        tuple(v for k, v in row.items() if k != tally.EXAMPLES): row[tally.EXAMPLES] for row in rows
    }


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_counts_are_those_of_pandas_however_the_table_comes(kind, tmp_path, monkeypatch):
    frame = toys()
    monkeypatch.setattr(tally, "BLOCK", 4_000)  # many pieces
    monkeypatch.setattr(tally, "ROWS", 700)
    source = tmp_path / f"toys.{kind}"
    if kind == "csv":
        frame.to_csv(source, index=False)
    elif kind == "parquet":
        frame.to_parquet(source)
    found = tally.count(frame if kind == "frame" else source, FACTORS, ";")
    expected = frame.astype({"size": str}).groupby(FACTORS).size().to_dict()
    assert told(found) == expected
    assert (found.num_rows, found.num_skipped) == (5_000, 0)


def test_types_may_change_in_the_middle_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tally, "BLOCK", 200)
    rows = ["a,b"] + ["1,2"] * 100 + ["one,2.5"] * 3 + [" 1 ,"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    found = tally.count(tmp_path / "t.csv", ["b", "a"], ";")
    assert told(found) == {("2", "1"): 100, ("2.5", "one"): 3}
    assert found.num_skipped == 1, "an empty cell"


def test_a_million_rows_take_seconds(tmp_path):
    import time

    import pyarrow as pa
    import pyarrow.csv

    rng = np.random.default_rng(0)
    cells = {name: pa.array(rng.integers(0, 30, 1_000_000)).cast(pa.string()) for name in FACTORS}
    pa.csv.write_csv(pa.table(cells), tmp_path / "t.csv")
    clock = time.perf_counter()
    assert len(tally.count(tmp_path / "t.csv", FACTORS, ";").table) == 27_000
    assert time.perf_counter() - clock < 10, "0.3 s on an idle core"


def test_modules_are_numbered_factor_by_factor_in_a_readers_order():
    frame = pd.DataFrame({"b": ["x10", "x9", "x9"], "a": [10, 9, 10], "constant": ["c"] * 3})
    modules, (coded,) = tally.encode(
        [tally.count(frame, ["b", "a", "constant"], ";")], ["b", "a", "constant"]
    )
    assert modules.names == ["b=x9", "b=x10", "a=9", "a=10"]
    assert modules.constant == ["constant"]
    assert sorted(coded.codes.tolist()) == [[0, 2], [0, 3], [1, 3]]


TEXTS = ["a;b", " b ; a", "c", "c;c;", "", None]
LISTS = [["a", "b"], ["b", "a"], ["c"], ["c"], [], None]


@pytest.mark.parametrize("cells", [TEXTS, LISTS])
def test_sets_know_no_order(cells):
    found = tally.count(pd.DataFrame({"tags": cells}), ["tags"], ";")
    modules, (coded,) = tally.encode([found], ["tags"])
    assert modules.names == ["a", "b", "c"]
    assert coded.codes.tolist() == [[0, 1], [2, -1]]
    assert coded.examples.tolist() == [2, 2]
    assert found.num_skipped == 2


def test_values_of_a_second_table_are_numbered_too():
    first, second = (
        pd.DataFrame({"a": ["x", "y"], "b": values}) for values in (["u", "v"], ["u", "w"])
    )
    modules, coded = tally.encode(
        [tally.count(frame, ["a", "b"], ";") for frame in (first, second)], ["a", "b"]
    )
    assert modules.names == ["a=x", "a=y", "b=u", "b=v", "b=w"]
    assert sorted(coded[1].codes.tolist()) == [[0, 2], [1, 4]]


def wrong(tmp_path) -> dict:
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "head.csv").write_text("a,b\n")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n1,2,3\n")
    (tmp_path / "text.txt").write_text("a,b\n1,2\n")
    (tmp_path / "fake.parquet").write_text("not a table")
    numbers = pd.DataFrame({"a": np.arange(200) / 7, "b": ["u", "v"] * 100})
    return {
        "there is no file": (tmp_path / "none.csv", "ab"),
        "is empty: it needs": (tmp_path / "empty.csv", "ab"),
        "has no rows": (tmp_path / "head.csv", "ab"),
        "cannot be read as a .csv": (tmp_path / "ragged.csv", "ab"),
        "neither a .csv nor a .parquet": (tmp_path / "text.txt", "ab"),
        "cannot be read as a .parquet": (tmp_path / "fake.parquet", "ab"),
        "no column 'colr': did you mean colour?": (toys(), ["colr", "size"]),
        "no column 'zzz': there are colour, number": (toys(), ["zzz", "size"]),
        "named twice": (toys(), ["size", "size"]),
        "several columns 'a'": (pd.DataFrame([[1, 2]], columns=["a", "a"]), "ab"),
        "in each of its 2 rows": (pd.DataFrame({"a": [None, 1], "b": [1, None]}), "ab"),
        "more than one concept": (toys(), ["shape"]),
        "only a has more than one value": (pd.DataFrame({"a": [1, 2], "b": [1, 1]}), "ab"),
        "is it a measurement? bin it": (numbers, "ab"),
        "holds list": (pd.DataFrame({"a": [[1], [2]], "b": [1, 2]}), "ab"),
        "of one kind": (pd.DataFrame({"a": [1, "x", {}], "b": [1, 2, 3]}), "ab"),
    }


def test_mistakes_are_told_in_one_line(tmp_path):
    for words, (source, columns) in wrong(tmp_path).items():
        with pytest.raises(InputError, match=re.escape(words)) as error:
            tally.encode([tally.count(source, list(columns), ";")], list(columns))
        assert "\n" not in str(error.value)


def test_too_many_combinations_or_values_name_the_factor(monkeypatch):
    monkeypatch.setattr(tally, "MAX_COMBINATIONS", 20)
    with pytest.raises(
        InputError, match=r"more than 20 distinct combinations \(size alone has 12 values\)"
    ):
        tally.count(toys(), FACTORS, ";")
    monkeypatch.setattr(tally, "MAX_COMBINATIONS", 1_000)
    monkeypatch.setattr(tally, "MAX_MODULES", 10)
    with pytest.raises(InputError, match=r"17 values are too many \(size has 12\)"):
        tally.encode([tally.count(toys(), FACTORS, ";")], FACTORS)


def test_what_is_no_number_is_put_in_order_as_text():
    values = ["nan", "10", "2"]
    orders = [sorted(order, key=tally._natural(order)) for order in (values, values[::-1])]
    assert orders[0] == orders[1] == ["2", "10", "nan"]
