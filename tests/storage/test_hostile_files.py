"""Files that declare too much, or hold what nobody expects: one line each, and rows are kept."""

import io
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recombine.basics.console import print_line, printable
from recombine.basics.errors import InputError
from recombine.probe.file_readers import read_activations, read_factors
from recombine.reporting import page, watch
from recombine.storage import parquet, status
from recombine.storage.table import Table

ROWS = pd.DataFrame({"run": ["a", "b"], "step": [1, 1], "test/r2": [0.5, 0.7]})
DEEP = "[" * 100_000 + "]" * 100_000
STATUS = {
    "state": "training",
    "began": "2030-01-01T00:00:00+00:00",
    "runs": 3,
    "reused": 0,
    "finished": 2,
    "seconds": 3.0,
    "left": None,
    "rate": 5.0,
    "now": [{"runs": 1, "phase": "training", "step": 4, "num_steps": 8, "score": 0.5}],
    "failures": [{"runs": ["a"], "reason": "it failed"}],
    "notes": ["a note"],
    "command": "recombine run x",
    "host": "here",
}


@pytest.fixture
def out(tmp_path):
    Table(tmp_path / "out").append(ROWS)
    return tmp_path / "out"


def one_line(function, *args) -> str:
    with pytest.raises(InputError) as caught:
        function(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_parquet_file_that_declares_more_than_the_memory_is_refused(tmp_path, monkeypatch):
    # 30 million equal numbers, which take a few kilobytes on disk.
    file = tmp_path / "rows.parquet"
    column = pa.array(["a"]).dictionary_encode().take(pa.array(np.zeros(30_000_000, np.int8)))
    pq.write_table(pa.table({"run": column}), file)
    assert file.stat().st_size < 200_000
    monkeypatch.setenv("RECOMBINE_MAX_BYTES", str(10**8))
    for read in (Table(file).read, lambda: read_factors(file)):
        assert "declares 240,000,000 bytes, and the limit is 100,000,000" in one_line(read)
    monkeypatch.delenv("RECOMBINE_MAX_BYTES")
    assert parquet.load(file, ["run"]).num_rows == 30_000_000


PEAK = """
import resource, sys
from recombine.basics.errors import InputError
from recombine.coverage.combinations import _batches
from recombine.coverage.ordered import _read
from recombine.probe.file_readers import read_factors
from recombine.storage.table import Table
from pathlib import Path

path = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for read in (Table(path).read, lambda: read_factors(path), lambda: _read(path),
             lambda: [batch.num_rows for batch in _batches(path, ["run"])]):
    try:
        read()
    except InputError as error:
        print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("kind", ["text", "bytes", "list", "struct", "dictionary", "differences"])
def test_a_text_that_occurs_in_every_row_is_refused_before_memory_is_taken(tmp_path, kind):
    """One text of 1 MB in each of 400 rows: 5 kB on disk, 400 MB in memory."""
    text = pa.array([10**6 * "x"]).dictionary_encode().take(pa.array(np.zeros(400, np.int32)))
    values = {
        "text": text.cast(pa.string()),
        "bytes": text.cast(pa.string()).cast(pa.binary()),
        "list": pa.FixedSizeListArray.from_arrays(text, 2).cast(pa.list_(pa.string())),
        "struct": pa.StructArray.from_arrays([text.cast(pa.string())], ["inner"]),
        "dictionary": text,
        "differences": text.cast(pa.string()),
    }[kind]
    file = tmp_path / "rows.parquet"
    options = {}
    if kind == "differences":
        options = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}
    pq.write_table(pa.table({"run": values}), file, compression="zstd", **options)
    assert file.stat().st_size < 20_000
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(file)],
        env=os.environ | {"RECOMBINE_MAX_BYTES": str(2 * 10**7)},
        capture_output=True,
        text=True,
        check=True,
    )
    *refusals, megabytes = done.stdout.splitlines()
    # Coverage uses one batch after another, each below the limit if texts are stored in pages.
    assert len(refusals) == (3 if kind == "differences" else 4)
    for line in refusals:
        assert "bytes, and the limit is 20,000,000" in line
    assert int(megabytes) < 150


def test_texts_below_the_limit_are_read_as_they_were_written(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    texts = np.array(["a", "bb", "ü", None, ""], object)[rng.integers(0, 5, 200_000)]
    table = pa.table(
        {
            "run": pa.array(texts),
            "large": pa.array(texts, pa.large_string()),
            "bytes": pa.array(["x" if text is None else text for text in texts]).cast(pa.binary()),
            "lists": pa.array([[text, "c"] for text in texts[:100_000]] * 2),
            "fixed": pa.array([b"ab", None] * 100_000, pa.binary(2)),
            "dictionary": pa.array(texts).dictionary_encode(),
            "number": rng.normal(size=200_000),
        }
    )
    file = tmp_path / "rows.parquet"
    pq.write_table(table, file, row_group_size=70_000)
    read = parquet.load(file)
    assert read.equals(pq.read_table(file))
    assert (
        parquet.load(file, ["number", "run"]).to_pydict()
        == pq.read_table(file, columns=["number", "run"]).to_pydict()
    )
    pd.testing.assert_frame_equal(read_factors(file), pd.read_parquet(file))
    monkeypatch.setenv("RECOMBINE_MAX_BYTES", str(10**8))  # then lists are read as dictionaries
    assert parquet.load(file).equals(read)
    lists = pa.table({"run": [[str(number)] for number in range(300_000)]})
    pq.write_table(lists, file)
    assert parquet.load(file).equals(pq.read_table(file))
    empty = tmp_path / "empty.parquet"
    pq.write_table(table[:0], empty)
    assert parquet.load(empty).equals(pq.read_table(empty))
    pd.testing.assert_frame_equal(read_factors(empty), pd.read_parquet(empty))


def bomb(path, shape: str, data: bytes) -> None:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("hidden.npy", content)


def test_an_npz_file_that_declares_more_than_it_has_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "activations.npz"
    bomb(path, "(1000000000, 1000)", bytes(80))
    message = one_line(read_activations, path)
    assert "declares 8,000,000,000,000 bytes and has 80" in message
    bomb(path, "(1000000, 10)", bytes(80_000_000))
    assert path.stat().st_size < 100_000
    monkeypatch.setenv("RECOMBINE_MAX_BYTES", str(10**7))
    assert "and the limit is 10,000,000" in one_line(read_activations, path)
    monkeypatch.delenv("RECOMBINE_MAX_BYTES")
    assert read_activations(path)["hidden"].shape == (1000000, 10)


def test_a_limit_is_a_number(tmp_path, monkeypatch, out):
    monkeypatch.setenv("RECOMBINE_MAX_BYTES", "much")
    assert "must be a whole number" in one_line(Table(out).read)


def test_a_status_without_a_field_or_with_another_type_is_no_status(out):
    (out / status.NAME).write_text(json.dumps(STATUS))
    assert watch.state(out)["state"] == "interrupted"
    without = [{k: v for k, v in STATUS.items() if k != name} for name in STATUS]
    wrong = [STATUS | {name: value} for name in STATUS for value in (3.5, "x", [3], {"a": 1})]
    chunk = STATUS["now"][0]
    parts = [{k: v for k, v in chunk.items() if k != name} for name in chunk]
    parts += [chunk | {name: value} for name in chunk for value in ("", None, -1, 0, 1e300)]
    wrong += [STATUS | {"now": [part]} for part in parts]
    wrong += [STATUS | {"failures": [value]} for value in ({}, None, {"runs": 3, "reason": "x"})]
    for document in [*without, *wrong, [], None]:
        (out / status.NAME).write_text(json.dumps(document))
        state = watch.state(out)
        assert state["rows"] == 2
        watch.show(out, once=True)
    (out / status.NAME).write_text(DEEP)
    assert watch.state(out)["rows"] == 2


@pytest.mark.parametrize("value", [None, 3, "a", [1], [None], {"a": 1}])
def test_damaged_metadata_shows_all_rows(out, value):
    (out / "experiment.json").write_text(json.dumps({"shown": value}))
    assert watch.state(out)["rows"] == 2
    assert "table of results" not in one_line(Table(out).read, ["nothing"])
    page.page(Table(out))


def test_deep_json_is_one_line(out):
    (out / "experiment.json").write_text(DEEP)
    assert "is not valid JSON" in one_line(watch.state, out)
    assert len(Table(out).read()) == 2


def test_a_lone_surrogate_is_stored_as_its_escape_sequence(tmp_path):
    table = Table(tmp_path / "out")
    table.append(ROWS.assign(name=pd.Series(["\ud800", "ü"], dtype=object)))
    assert table.read()["name"].tolist() == ["\\ud800", "ü"]
    page.write(table, tmp_path / "page.html")
    page.save("\ud800", tmp_path / "other.html")
    assert (tmp_path / "other.html").read_text() == "\\ud800"


def test_text_of_rows_does_not_control_the_terminal(out, capsys):
    evil = "\x1b]0;mine\x07[red]x[/nothing]\u202e"
    assert printable(evil) == "\\x1b]0;mine\\x07[red]x[/nothing]\\u202e"
    assert printable("a\tb\nü") == "a\tb\nü"
    print_line(evil)
    Table(out).append(ROWS.assign(run=["c", "d"], name=[evil, "plain"]))
    (out / status.NAME).write_text(json.dumps(STATUS | {"notes": [evil], "host": evil}))
    watch.show(out, once=True)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert "[red]x[/nothing]" in printed


def test_markup_in_a_summary_and_in_a_field_is_printed_as_it_is(capsys):
    from recombine.cli.output import print_sweep

    evil = "[/x]\x1b[2J"
    result = {
        "experiment": evil,
        "summary": {"best": evil},
        "warnings": [evil],
        "programs": 1,
        "runs": 2,
        "seconds": 1,
    }
    print_sweep(ROWS.assign(**{"model.name": [evil, "b"]}), result)
    printed = capsys.readouterr().out
    assert "\x1b[2J" not in printed
    assert printed.count("[/x]") >= 3


def test_a_column_that_claims_to_be_json_and_is_not_stays_text(tmp_path):
    table = pa.table({"run": ["a"], "x": ["{"]})
    field = table.schema.field("x").with_metadata({b"recombine": b"json"})
    table = table.cast(pa.schema([table.schema.field("run"), field]))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    (tmp_path / "rows.parquet").write_bytes(buffer.getvalue())
    assert Table(tmp_path / "rows.parquet").read()["x"].tolist() == ["{"]
