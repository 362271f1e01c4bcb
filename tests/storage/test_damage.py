"""Random damage of the files of a sweep: every damage is found, and nothing ends in a traceback."""

import random
import sys
import traceback
from collections import Counter

import pandas as pd
import plotly.graph_objects as go
import pytest

from recombine.basics.errors import InputError
from recombine.reporting import page, serve, watch
from recombine.storage import checksums, status
from recombine.storage.table import Table
from recombine.training.verification import verify

NUM_DAMAGES = 1000  # of each kind of file
MAX_LENGTH = 64  # bytes that one damage changes
ROWS = pd.DataFrame(
    {
        "run": ["a", "a", "b", "b"],
        "step": [1, 2, 1, 2],
        "num_steps": 2,
        "num_evals": 2,
        "test/r2": [0.5, 0.6, 0.7, 0.8],
        "meta/jax": "0.7",
        "meta/device": "cpu",
    }
)


@pytest.fixture
def out(tmp_path):
    table = Table(tmp_path / "out")
    table.append(ROWS)
    table.note(experiment="x", title="ü", shown=["a", "b"], summary={"best": 0.8, "runs": 2})
    figure = str(go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name="ü")).to_json())
    table.save_figures({"one": figure, "two": figure})
    written = status.Status(table.path, 2, 0)
    written.write(immediately=True, state="finished", finished=2, notes=["a note"])
    return table.path


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one damage: a flipped bit, or changed, removed, doubled or added bytes."""
    start = rng.randrange(len(data))
    end = min(start + rng.randint(1, MAX_LENGTH), len(data))
    noise = rng.randbytes(end - start)
    letters = bytes(rng.choice(b'abcdefgh0123456789 \n"{}[],:') for _ in range(end - start))
    flipped = bytes([data[start] ^ 1 << rng.randrange(8)])
    candidates = {
        "flipped": data[:start] + flipped + data[start + 1 :],
        "zeroed": data[:start] + bytes(end - start) + data[end:],
        "noise": data[:start] + noise + data[end:],
        "letters": data[:start] + letters + data[end:],
        "removed": data[:start] + data[end:],
        "doubled": data[:end] + data[start:],
        "added": data[:start] + letters + data[start:],
        "truncated": data[:start],
    }
    other = candidates[rng.choice(list(candidates))]
    return other if other != data else data + b"\0"


def outcome(folder, *uses) -> Counter:
    """Use damaged results: each use works or is refused with one line."""
    counts = Counter()
    problems = verify(folder).problems
    assert not any("\n" in problem for problem in problems)
    counts["undetected"] += not problems
    for use in uses:
        try:
            use(folder)
        except InputError:  # its text is one line
            counts["refused"] += 1
        except Exception:
            counts["tracebacks"] += 1
            traceback.print_exc()
        else:
            counts["used"] += 1
    return counts


def show(folder):
    watch.state(folder)


def draw(folder):
    table = Table(folder)
    serve.draw(table, table.meta(), table.read())


def read(folder):
    assert len(Table(folder).read()) == len(ROWS)


def report(folder):
    page.page(Table(folder))


def fuzz(files, folder, num_damages, *uses) -> Counter:
    rng = random.Random(0)
    counts = Counter()
    for number in range(num_damages):
        file = files[number % len(files)]
        data = file.read_bytes()
        file.write_bytes(damaged(data, rng))
        # Every damage must be found; the views take longer, so they show every fourth.
        counts += outcome(folder, *(uses if number % 4 == 0 else ()))
        file.write_bytes(data)
        counts["damages"] += 1
    assert verify(folder).problems == []
    sys.stdout.write(f"{dict(counts)}\n")
    return counts


def json_files(folder):
    return sorted(path for path in folder.rglob("*.json"))


def check(counts: Counter, num_damages: int) -> None:
    assert counts["damages"] == num_damages
    assert counts["undetected"] == 0
    assert counts["tracebacks"] == 0
    assert counts["refused"] > 0


def test_every_damage_of_a_json_file_is_found(out):
    assert [path.name for path in json_files(out)] == [
        "experiment.json",
        "00-one.json",
        "01-two.json",
        "checksums.json",
        "status.json",
    ]
    check(fuzz(json_files(out), out, NUM_DAMAGES, show, draw, read, report), NUM_DAMAGES)


def refuses(path):
    with pytest.raises(InputError):
        Table(path).read()


def test_every_damage_of_a_part_is_found(out):
    parts = list((out / "rows").iterdir())
    check(fuzz(parts, out, NUM_DAMAGES, show, refuses), NUM_DAMAGES)


def test_every_damage_of_a_packed_table_is_found(tmp_path):
    table = Table(tmp_path / "out.parquet")
    table.append(ROWS)
    table.note(experiment="x", shown=["a", "b"])
    check(fuzz([table.path], table.path, NUM_DAMAGES, show, refuses), NUM_DAMAGES)


@pytest.mark.parametrize("word", [b"recombine-sha256:", b"recombine.seal"])
def test_damage_of_the_mark_of_a_checksum_is_found(tmp_path, word):
    table = Table(tmp_path / "out.parquet")
    table.append(ROWS)
    data = table.path.read_bytes()
    assert word in data
    table.path.write_bytes(data.replace(word, b"x" * len(word)))
    refuses(table.path)
    both = data.replace(b"recombine-sha256:", b"x" * 17).replace(b"recombine.seal", b"x" * 14)
    table.path.write_bytes(both)
    refuses(table.path)


@pytest.mark.parametrize("mark", checksums.MARKS)
def test_damage_of_a_mark_in_json_is_found(out, mark):
    file = out / "experiment.json"
    file.write_bytes(file.read_bytes().replace(mark, mark.replace(b"e", b"x")))
    assert len(verify(out).problems) == 1


def test_files_of_older_versions_have_no_problem(out):
    table = Table(out)
    meta = table.meta()
    assert "checksum" not in meta
    assert "has_checksum" not in meta
    (out / "experiment.json").write_bytes(b'{"shown": ["a", "b"]}')
    (out / "status.json").unlink()
    (out / "figures" / "checksums.json").unlink()
    assert verify(out).problems == []
    assert list(table.figures()) == ["one", "two"]
    (out / "figures" / "00-one.json").write_bytes(b"{")
    assert len(verify(out).problems) == 1


def test_a_figure_that_is_not_utf_8_is_one_line(out):
    (out / "figures" / "00-one.json").write_bytes(b'{"data": "\xff"}')
    for use in (Table(out).figures, lambda: report(out)):
        with pytest.raises(InputError, match=r"00-one.json is not valid UTF-8"):
            use()
    assert "damaged" in str(serve.draw(Table(out), {}, ROWS)[1])


def test_a_figure_that_is_missing_is_found(out):
    (out / "figures" / "01-two.json").unlink()
    (problem,) = verify(out).problems
    assert "01-two.json is damaged (it is missing)" in problem
