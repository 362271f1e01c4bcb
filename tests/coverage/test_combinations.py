"""Tables of examples as distinct combinations."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest

from recombine.basics.errors import InputError
from recombine.coverage import combinations
from tests.timing import cpu_seconds

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


def num_examples(counts: combinations.Counts) -> dict[tuple, int]:
    """The number of examples of each combination."""
    number = counts.table.column(combinations.NUM_EXAMPLES).to_pylist()
    values = counts.table.drop_columns(combinations.NUM_EXAMPLES).to_pylist()
    return {tuple(row.values()): num for row, num in zip(values, number, strict=True)}


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_every_kind_of_table_has_the_counts_of_pandas(kind, tmp_path, monkeypatch):
    frame = toys()
    monkeypatch.setattr(combinations, "CSV_BATCH_BYTES", 4_000)  # many batches
    monkeypatch.setattr(combinations, "BATCH_ROWS", 700)
    source = tmp_path / f"toys.{kind}"
    if kind == "csv":
        frame.to_csv(source, index=False)
    elif kind == "parquet":
        frame.to_parquet(source)
    counts = combinations.count(frame if kind == "frame" else source, FACTORS, ";")
    expected = frame.astype({"size": str}).groupby(FACTORS).size().to_dict()
    assert num_examples(counts) == expected
    assert (counts.num_rows, counts.num_skipped) == (5_000, 0)


def test_types_may_change_in_the_middle_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(combinations, "CSV_BATCH_BYTES", 200)
    rows = ["a,b"] + ["1,2"] * 100 + ["one,2.5"] * 3 + [" 1 ,"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    counts = combinations.count(tmp_path / "t.csv", ["b", "a"], ";")
    assert num_examples(counts) == {("2", "1"): 100, ("2.5", "one"): 3}
    assert counts.num_skipped == 1, "an empty cell"


def test_a_million_rows_are_counted_about_as_fast_as_pandas_counts_them(tmp_path):
    rng = np.random.default_rng(0)
    cells = {name: pa.array(rng.integers(0, 30, 1_000_000)).cast(pa.string()) for name in FACTORS}
    path = tmp_path / "t.csv"
    pa.csv.write_csv(pa.table(cells), path)
    assert len(combinations.count(path, FACTORS, ";").table) == 27_000
    seconds = cpu_seconds(lambda: combinations.count(path, FACTORS, ";"))
    assert seconds < 5 * cpu_seconds(lambda: pd.read_csv(path, dtype=str).groupby(FACTORS).size())


def test_modules_are_numbered_by_factor_in_natural_order():
    frame = pd.DataFrame({"b": ["x10", "x9", "x9"], "a": [10, 9, 10], "constant": ["c"] * 3})
    columns = ["b", "a", "constant"]
    counts = combinations.count(frame, columns, ";")
    modules, (encoded,) = combinations.encode([counts], columns)
    assert modules.names == ["b=x9", "b=x10", "a=9", "a=10"]
    assert modules.constant == ["constant"]
    assert sorted(encoded.codes.tolist()) == [[0, 2], [0, 3], [1, 3]]


TEXTS = ["a;b", " b ; a", "c", "c;c;", "", None]
LISTS = [["a", "b"], ["b", "a"], ["c"], ["c"], [], None]


@pytest.mark.parametrize("cells", [TEXTS, LISTS])
def test_the_order_of_concepts_does_not_matter(cells):
    counts = combinations.count(pd.DataFrame({"tags": cells}), ["tags"], ";")
    modules, (encoded,) = combinations.encode([counts], ["tags"])
    assert modules.names == ["a", "b", "c"]
    assert encoded.codes.tolist() == [[0, 1], [2, -1]]
    assert encoded.examples.tolist() == [2, 2]
    assert counts.num_skipped == 2


def test_values_of_a_second_table_are_numbered_too():
    first = pd.DataFrame({"a": ["x", "y"], "b": ["u", "v"]})
    second = pd.DataFrame({"a": ["x", "y"], "b": ["u", "w"]})
    counts = [combinations.count(frame, ["a", "b"], ";") for frame in (first, second)]
    modules, encoded = combinations.encode(counts, ["a", "b"])
    assert modules.names == ["a=x", "a=y", "b=u", "b=v", "b=w"]
    assert sorted(encoded[1].codes.tolist()) == [[0, 2], [1, 4]]


def bad_inputs(tmp_path) -> dict:
    """Message -> a table and columns that must raise it."""
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
        "no column 'zzz': choose from colour, number": (toys(), ["zzz", "size"]),
        "named twice": (toys(), ["size", "size"]),
        "several columns 'a'": (pd.DataFrame([[1, 2]], columns=["a", "a"]), "ab"),
        "in each of the 2 rows": (pd.DataFrame({"a": [None, 1], "b": [1, None]}), "ab"),
        "more than one concept": (toys(), ["shape"]),
        "only a has more than one value": (pd.DataFrame({"a": [1, 2], "b": [1, 1]}), "ab"),
        "is it a measurement? bin it": (numbers, "ab"),
        "holds list": (pd.DataFrame({"a": [[1], [2]], "b": [1, 2]}), "ab"),
        "of one type": (pd.DataFrame({"a": [1, "x", {}], "b": [1, 2, 3]}), "ab"),
    }


def test_bad_inputs_raise_a_message_of_one_line(tmp_path):
    for message, (source, columns) in bad_inputs(tmp_path).items():
        with pytest.raises(InputError, match=re.escape(message)) as error:
            combinations.encode([combinations.count(source, list(columns), ";")], list(columns))
        assert "\n" not in str(error.value)


def test_too_many_combinations_or_values_name_the_factor(monkeypatch):
    monkeypatch.setattr(combinations, "MAX_COMBINATIONS", 20)
    message = r"more than 20 distinct combinations \(size alone has 12 values\)"
    with pytest.raises(InputError, match=message):
        combinations.count(toys(), FACTORS, ";")
    monkeypatch.setattr(combinations, "MAX_COMBINATIONS", 1_000)
    monkeypatch.setattr(combinations, "MAX_MODULES", 10)
    with pytest.raises(InputError, match=r"17 values are too many \(size has 12\)"):
        combinations.encode([combinations.count(toys(), FACTORS, ";")], FACTORS)


def test_nan_is_sorted_as_text():
    values = ["nan", "10", "2"]
    for order in (values, values[::-1]):
        assert sorted(order, key=combinations._natural_key(order)) == ["2", "10", "nan"]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_delimiters_are_recognized(delimiter, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\ufeff" + "a,b\nx,1\ny,2\n".replace(",", delimiter), encoding="utf-8")
    counts = combinations.count(path, ["b", "a"], ";")
    assert num_examples(counts) == {("1", "x"): 1, ("2", "y"): 1}
    with pytest.raises(InputError, match=re.escape("no column 'c': choose from a, b")):
        combinations.count(path, ["a", "c"], ";")


def test_a_comma_is_preferred(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a;b,c\nx;y,1\nz,2\n")
    counts = combinations.count(path, ["a;b"], ";")
    assert num_examples(counts) == {("x\x1fy",): 1, ("z",): 1}


def test_a_file_name_that_is_too_long_is_refused():
    with pytest.raises(InputError, match="choose a shorter one"):
        combinations.count("x" * 5000 + ".csv", ["a", "b"], ";")
