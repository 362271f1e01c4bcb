import contextlib
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from recombine.basics.atomic_io import lock_owner
from recombine.basics.errors import InputError
from recombine.storage.table import Table
from tests.timing import cpu_seconds


def frame(run: str, steps: int = 2, **columns) -> pd.DataFrame:
    return pd.DataFrame({"run": run, "step": range(steps), **columns})


@pytest.fixture(params=["folder", "packed.parquet"])
def table(request, tmp_path) -> Table:
    return Table(tmp_path / request.param)


def test_opening_writes_nothing_and_reads_as_empty(table):
    assert table.read().empty
    assert list(table.read(["run", "test/r2"]).columns) == ["run", "test/r2"]
    assert table.finished() == set()
    assert table.meta() == {}
    assert table.figures() == {}
    assert not table.path.exists()


def test_floats_round_trip_bit_for_bit(table):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**64, size=500, dtype=np.uint64)
    awkward = [np.nan, np.inf, -np.inf, -0.0, 0.0, 5e-324, 0.1, 1 / 3]
    double = np.concatenate([bits.view(np.float64), awkward])
    single = np.resize(np.array([np.nan, -np.inf, 0.1, -0.0, 1e-45], np.float32), len(double))
    table.append(frame("a", len(double), double=double, single=single))
    rows = table.read()
    assert rows["double"].dtype == np.float64
    assert rows["single"].dtype == np.float32
    np.testing.assert_array_equal(rows["double"].to_numpy().view(np.uint64), double.view(np.uint64))
    np.testing.assert_array_equal(rows["single"].to_numpy().view(np.uint32), single.view(np.uint32))


def test_nan_is_stored_as_nan_and_not_as_missing(tmp_path):
    part = Table(tmp_path).append(frame("a", loss=[np.nan, 1.0]))
    assert pq.read_table(part)["loss"].null_count == 0


def test_append_never_overwrites(tmp_path):
    table = Table(tmp_path)
    first = table.append(frame("a", value=1.0))
    before = first.read_bytes()
    second = table.append(frame("b", value=2.0))
    assert second != first
    assert first.read_bytes() == before
    assert table.append(frame("a", value=1.0)) == first, (
        "the name of a part depends only on its contents"
    )
    assert table.read()["value"].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_order_does_not_depend_on_arrival(tmp_path):
    parts = [
        frame("b", value=0.5),
        frame("a", other="x"),
        frame("c", 12, value=1.0, third=True),
        frame("a", value=7.0),  # the same run and step twice: the contents decide which one counts
    ]
    first, second = Table(tmp_path / "one"), Table(tmp_path / "two")
    for part in parts:
        first.append(part)
    for part in reversed(parts):
        second.append(part)
    pd.testing.assert_frame_equal(first.read(), second.read())
    assert list(first.read()["run"].drop_duplicates()) == ["a", "b", "c"]
    assert first.read().groupby(["run", "step"]).size().max() == 1
    assert list(first.read().query("run == 'c'")["step"]) == list(range(12))


def test_the_order_of_columns_does_not_depend_on_arrival(tmp_path):
    first, second = Table(tmp_path / "one"), Table(tmp_path / "two")
    parts = [frame("a", zeta=1.0), frame("b", alpha=2.0)]
    for part in parts:
        first.append(part)
    for part in reversed(parts):
        second.append(part)
    assert list(first.read()) == list(second.read()) == ["run", "step", "zeta", "alpha"]


def test_missing_columns_are_null(table):
    table.append(frame("a", width=16, name="mlp", flag=True))
    table.append(frame("b", loss=0.5))
    rows = table.read()
    assert rows["width"].isna().tolist() == [False, False, True, True]
    assert rows["name"].isna().tolist() == [False, False, True, True]
    assert rows["flag"].isna().tolist() == [False, False, True, True]
    assert rows["flag"][0] is True
    assert rows["loss"].isna().tolist() == [True, True, False, False]


def test_read_of_some_columns_keeps_order_and_refuses_unknown_ones(table):
    table.append(frame("b", loss=[0.0, 1.0], width=8))
    table.append(frame("a", loss=[2.0, 3.0]))
    assert table.read(["loss"])["loss"].tolist() == [2.0, 3.0, 0.0, 1.0]
    assert list(table.read(["loss"])) == ["loss"]
    with pytest.raises(InputError, match="no column 'los'"):
        table.read(["los"])


def test_mixed_values_keep_their_types(table):
    values = ["1", 1, 1.0, True, None, "null", float("inf"), 0.1]
    table.append(frame("a", len(values), size=pd.Series(values, dtype=object)))
    table.append(frame("b", 1, size=3))
    sizes = table.read()["size"].tolist()
    assert [type(size) for size in sizes[:8]] == [type(value) for value in values]
    assert sizes[:8] == values
    assert sizes[8] == 3


def test_a_column_may_change_its_type_between_parts(table):
    table.append(frame("a", 1, layer=2))
    table.append(frame("b", 1, layer="all"))
    assert table.read()["layer"].tolist() == [2, "all"]


def test_values_that_are_not_plain_are_refused(table):
    with pytest.raises(InputError, match="'shape' holds values of type list"):
        table.append(frame("a", 1, shape=[[1, 2]]))
    with pytest.raises(InputError, match="column 'run'"):
        table.append(pd.DataFrame({"loss": [1.0]}))
    assert not table.path.exists()


def test_a_packed_file_has_the_contents_of_the_folder(tmp_path):
    folder, packed = Table(tmp_path / "folder"), Table(tmp_path / "packed.parquet")
    folder.append(frame("b", loss=[np.nan, 0.25], width=8, mixed=pd.Series([1, "x"], dtype=object)))
    folder.append(frame("a", flag=[True, False], mixed=2))
    folder.note(title="A <title>", summary={"r2": np.float32(0.5)})
    folder.save_figures({"second": "{}", "first": '{"data": []}'})
    packed.note(**folder.meta())
    packed.save_figures(folder.figures())
    packed.append(folder.read())
    pd.testing.assert_frame_equal(packed.read(), folder.read())
    assert packed.meta() == folder.meta() == {"title": "A <title>", "summary": {"r2": 0.5}}
    assert list(packed.figures().items()) == list(folder.figures().items())
    assert packed.finished() == folder.finished() == {"a", "b"}


def test_notes_merge_and_survive_appending(table):
    table.note(title="one", scale="tiny")
    assert table.read().empty
    table.append(frame("a"))
    table.note(title="two")
    table.append(frame("b"))
    assert table.meta() == {"title": "two", "scale": "tiny"}
    assert len(table.read()) == 4


def test_new_figures_replace_the_old_ones_and_keep_their_order(table):
    table.save_figures({f"f{n}": "old" for n in range(12)})
    figures = {f"g{n}": str(n) for n in reversed(range(11))}
    table.save_figures(figures)
    assert list(table.figures().items()) == list(figures.items())
    with pytest.raises(InputError, match="name"):
        table.save_figures({"../evil": "{}"})


def test_a_kill_before_the_rename_loses_only_the_new_part(table):
    table.append(frame("a", loss=0.5))
    script = (
        "import os, sys, pandas as pd\n"
        "from recombine.storage.table import Table\n"
        "os.replace = lambda *_: os._exit(9)\n"
        "Table(sys.argv[1]).append(pd.DataFrame({'run': ['b'], 'step': [0]}))\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(table.path)], check=False)
    assert killed.returncode == 9
    folder = table.path.parent if table.packed else table.path / "rows"
    assert list(folder.glob(".*.tmp"))  # it was killed between writing and renaming
    assert table.finished() == {"a"}
    assert table.read()["loss"].tolist() == [0.5, 0.5]
    table.append(frame("b"))
    assert table.finished() == {"a", "b"}


def test_a_failed_write_leaves_no_temporary_file(table, monkeypatch):
    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        table.append(frame("a"))
    assert not list(table.path.parent.rglob("*.tmp"))
    assert table.read().empty


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign", "flipped"])
def test_the_message_names_a_broken_part(table, damage):
    table.append(frame("a"))
    part = table.append(frame("b", 100, loss=np.random.default_rng(0).normal(size=100)))
    data = part.read_bytes()
    position = len(data) // 3
    damaged = {
        "truncated": data[: len(data) // 2],
        "empty": b"",
        "foreign": b"not parquet",
        "flipped": data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :],
    }
    part.write_bytes(damaged[damage])
    with pytest.raises(InputError) as caught:
        table.read()
    assert str(part) in str(caught.value)
    assert "move it away" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parquet_files_of_other_tools_are_refused(table):
    part = table.append(frame("a"))
    part = part if table.packed else part.with_name("part-foreign.parquet")
    pd.DataFrame({"x": [1]}).to_parquet(part)
    for attempt in (table.read, table.finished):
        with pytest.raises(InputError, match="no column 'run'"):
            attempt()


def test_the_message_names_broken_metadata(tmp_path):
    table = Table(tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "experiment.json").write_text(text)
        with pytest.raises(InputError, match=r"experiment\.json"):
            table.meta()


def test_the_message_names_a_path_that_cannot_be_used(tmp_path):
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a folder"):
        Table(tmp_path / "folder.parquet")
    with pytest.raises(InputError, match="is a file"):
        Table(tmp_path / "file")
    for path in (tmp_path / "file" / "below", tmp_path / "file" / "below.parquet"):
        with pytest.raises(InputError, match="cannot write results"):
            Table(path).check_writable()


def test_check_writable_leaves_nothing_but_folders(table):
    table.check_writable()
    assert not [path for path in table.path.parent.rglob("*") if path.is_file()]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folders_are_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot write results"):
        Table(tmp_path).check_writable()


def test_the_message_for_a_refused_write_has_the_reason(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.touch", refuse)
    with pytest.raises(InputError, match=r"cannot write results to .* \(Permission denied\)"):
        Table(tmp_path).check_writable()


def test_a_compacted_table_of_three_thousand_runs_is_read_much_faster(tmp_path):
    rng = np.random.default_rng(0)
    table = Table(tmp_path)
    names = [f"test/metric{n}" for n in range(60)]
    for first in range(0, 3000, 16):
        runs = [f"{n:016x}" for n in range(first, min(first + 16, 3000)) for _ in range(4)]
        rows = pd.DataFrame(rng.normal(size=(len(runs), 60)), columns=names)
        table.append(rows.assign(run=runs, step=[n % 4 for n in range(len(runs))], model="MLP"))

    def open_table() -> pd.DataFrame:
        assert len(table.finished()) == 3000
        return table.read()

    before = open_table()
    seconds_before = cpu_seconds(open_table)
    table.compact()
    assert table.num_parts() == 1
    assert cpu_seconds(open_table) < seconds_before / 4
    pd.testing.assert_frame_equal(open_table(), before, check_exact=True)


def unlike_parts() -> list[pd.DataFrame]:
    return [
        frame("b", value=0.5, width=16),
        frame("a", other="x", flag=True, count=3),
        frame("c", 12, value=np.float32(0.1), third=None),
        frame("d", value=np.nan, other="4"),
        frame("a", value=7.0),
    ]


@pytest.mark.parametrize(
    "more", [[], [frame("e", width="16x16")], [frame("f", mixed=[1, "x"]), frame("g", mixed="y")]]
)
def test_compaction_changes_nothing(tmp_path, more):
    table = Table(tmp_path)
    for part in [*unlike_parts(), *more]:
        table.append(part)
    before = table.read()
    table.compact()
    assert table.num_parts() == 1
    pd.testing.assert_frame_equal(table.read(), before, check_exact=True)
    table.append(frame("h", value=2.0, width=8))
    again = table.read()
    table.compact()
    pd.testing.assert_frame_equal(table.read(), again, check_exact=True)


@pytest.mark.parametrize("num_removed", range(6))
def test_a_killed_compaction_loses_and_repeats_nothing(tmp_path, monkeypatch, num_removed):
    table = Table(tmp_path)
    for part in unlike_parts():
        table.append(part)
    before = table.read()
    removed = []

    def remove_or_stop(path, missing_ok=False):
        if len(removed) == num_removed:
            raise KeyboardInterrupt
        removed.append(path)
        path.rename(tmp_path / path.name)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr("pathlib.Path.unlink", remove_or_stop)
        table.compact()
    assert table.num_parts() == 6 - min(num_removed, 5)
    pd.testing.assert_frame_equal(table.read(), before, check_exact=True)
    table.compact()
    pd.testing.assert_frame_equal(table.read(), before, check_exact=True)


def test_a_reader_never_misses_rows_while_parts_are_compacted(tmp_path):
    table = Table(tmp_path)
    has_ended = threading.Event()
    table.append(frame("0000"))

    def write():
        for n in range(1, 150):
            table.append(frame(f"{n:04}", value=1.0))
            if n % 5 == 0:
                table.compact()
        has_ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    num_before = 0
    while not has_ended.is_set():
        runs = Table(tmp_path).finished()
        assert len(runs) >= num_before, "rows that were read once are never missing"
        num_before = len(runs)
    writer.join()
    assert len(table.finished()) == 150


def test_every_flipped_bit_is_detected(table):
    table.append(frame("a", 20, loss=np.random.default_rng(0).normal(size=20), name="mlp"))
    table.note(scale="tiny")
    part = table.path if table.packed else next((table.path / "rows").iterdir())
    data = part.read_bytes()
    before = table.read()
    num_detected = 0
    bits = np.random.default_rng(1).choice(8 * len(data), size=400, replace=False)
    for bit in bits:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        part.write_bytes(bytes(flipped))
        try:
            rows, meta = table.read(), table.meta()
        except InputError:
            num_detected += 1
        else:
            pd.testing.assert_frame_equal(rows, before, check_exact=True)
            assert meta == {"scale": "tiny"}
    # In a packed file only damage to the prefix of the checksum is not detected.
    assert num_detected == 400 or (table.packed and num_detected > 390)


def test_one_process_writes_at_a_time(table):
    table.check_writable()
    script = (
        "import sys, time\n"
        "from recombine.storage.table import Table\n"
        "with Table(sys.argv[1]).held():\n"
        "    sys.stdout.write('held\\n'); sys.stdout.flush(); time.sleep(60)\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(table.path)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "held\n"
    assert lock_owner(table.path)["pid"] == other.pid
    with (
        pytest.raises(InputError, match=f"process {other.pid} on .* choose another --out"),
        table.held(),
    ):
        pass
    other.kill()  # SIGKILL: the system releases the lock
    other.wait()
    other.stdout.close()
    assert lock_owner(table.path) is None
    with table.held():
        assert lock_owner(table.path)["pid"] == os.getpid()
    assert lock_owner(table.path) is None
    assert not [path for path in table.path.parent.rglob("*") if path.is_file()], "no file remains"


def test_reading_the_lock_never_blocks_a_writer(tmp_path):
    table = Table(tmp_path)
    has_ended = threading.Event()
    holders = set()

    def read_lock():
        while not has_ended.is_set():
            holders.add((lock_owner(tmp_path) or {}).get("pid"))

    reader = threading.Thread(target=read_lock)
    reader.start()
    try:
        for _ in range(200):
            table.check_writable()
            with table.held():  # or it raises
                pass
    finally:
        has_ended.set()
        reader.join()
    assert None in holders, "the lock was read"


def test_experiment_file_is_plain_json(tmp_path):
    Table(tmp_path).note(runs=3)
    document = json.loads((tmp_path / "experiment.json").read_text())
    assert document.pop("has_checksum") is True
    assert document.pop("checksum").startswith("recombine-sha256:")
    assert document == {"runs": 3}


def test_rows_of_one_run_and_step_count_once(tmp_path):
    table = Table(tmp_path / "out")
    table.append(pd.DataFrame({"run": ["a", "a"], "step": [1, 2], "score": [0.1, 0.2]}))
    table.append(pd.DataFrame({"run": ["a"], "step": [1], "score": [0.7]}))
    rows = table.read()
    assert rows[["run", "step", "score"]].to_numpy().tolist() == [["a", 1, 0.1], ["a", 2, 0.2]], (
        "the larger part counts"
    )
