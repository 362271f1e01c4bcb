"""The time left: expected seconds at first, corrected by what the finished part took."""

from types import SimpleNamespace

import pytest

import recombine as rc
from recombine.basics import console
from recombine.training import progress, trainer
from recombine.training.cost import Cost
from recombine.training.progress import Display, expected_seconds
from recombine.training.scheduler import Chunk, cut

TINY = rc.Run(model=rc.MLP(widths=(8, 8)), num_steps=20, num_evals=2, diagnostics=())
FLAT = Cost(
    (0.0, 0.5, 0.0, 0.0), 7.0
)  # half a second for a step of any run, seven seconds for a program


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = SimpleNamespace(seconds=100.0)
    for module in (progress, console):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


def at(fraction, score=None, phase="training"):
    return trainer.Progress(phase, round(20 * fraction), 20, 2, score, fraction)


def test_compilation_counts_once_per_structure():
    chunks = cut(rc.sweep(TINY, model__widths=[(8, 8), (12, 8)], seed=range(3)), max_width=2)
    assert [len(chunk.runs) for chunk in chunks] == [2, 1, 2, 1]
    # 20 steps and 2 evaluations at half a second are 11 seconds a run; the empty place of a padded chunk costs nothing.
    assert list(expected_seconds(chunks, FLAT).values()) == pytest.approx([22 + 7, 11, 22 + 7, 11])
    assert list(expected_seconds(reversed(chunks), FLAT).values()) == pytest.approx(
        [11 + 7, 22, 11 + 7, 22]
    )
    assert expected_seconds([], FLAT) == {}


def test_wide_students_weigh_more():
    narrow, wide = cut([TINY, rc.Run(model=rc.MLP(widths=(64, 64)), num_steps=20, num_evals=2)])
    seconds = expected_seconds([narrow, wide], Cost((0.0, 0.0, 1e-6, 0.0), 0.0))
    assert seconds[wide] > 3 * seconds[narrow]


def test_the_time_left_begins_at_what_is_expected_and_ends_at_nothing(clock):
    display = Display(4, 0, {"a": 30.0, "b": 10.0}, shown=False)
    assert display.time_left(0) == 40
    clock.seconds += 40
    assert display.time_left(40) == 0


@pytest.mark.parametrize("slower", [0.5, 1.0, 2.0])
def test_the_time_left_follows_the_machine(clock, slower):
    display = Display(4, 0, {"a": 30.0, "b": 10.0}, shown=False)
    told = []
    for done in range(41):
        clock.seconds = 100 + slower * done
        told.append(display.time_left(done) / (40 - done) if done < 40 else slower)
    # Per second of expected work: the expected second at first, then ever nearer to the machine's own pace.
    assert told[0] == 1
    assert told[20] == pytest.approx((1 + slower) / 2)
    assert told[39] == pytest.approx(slower, rel=0.05)
    assert sorted(told, reverse=slower < 1) == pytest.approx(told)


def test_chunks_add_up_and_the_line_tells_the_time_left(clock, capsys):
    display = Display(4, 0, {"a": 300.0, "b": 100.0}, shown=True)
    with display:
        display.update("a", at(0, phase="compiling"))
        clock.seconds += 150
        display.update("a", at(0.5, score=0.25))
        clock.seconds += 150
        display.update("a", at(1, score=0.5))
        display.update("b", at(0, phase="compiling"))
        clock.seconds += 100
        display.update("b", at(1, score=0.75))
    assert display.done == {"a": 300, "b": 100}
    out, err = capsys.readouterr()
    assert out == ""
    lines = [
        " ".join(line.split())
        for line in " ".join(err.split()).replace("left", "left\n").splitlines()
    ]
    assert lines == [
        "0% compiling 2 runs, step 0 of 20, 6 min 40 s left",
        "38% training 2 runs, step 10 of 20, test score 0.250, 4 min 10 s left",
        "75% training 2 runs, step 20 of 20, test score 0.500, 1 min 40 s left",
        "75% compiling 2 runs, step 0 of 20, 1 min 40 s left",
        "100% training 2 runs, step 20 of 20, test score 0.750, 0 s left",
    ]


def test_finished_runs_are_told(capsys):
    with Display(4, 3, {}, shown=True):
        pass
    assert "3 of 4 runs are finished already: reused" in capsys.readouterr().err
    with Display(4, 0, {}, shown=True):
        pass
    assert "finished" not in capsys.readouterr().err


def test_nothing_is_printed_unless_shown(capsys):
    with Display(4, 2, {"a": 1.0}, shown=False) as display:
        display.update("a", at(0))
        display.update("a", at(1))
    assert display.done == {"a": 1}
    assert capsys.readouterr() == ("", "")


def test_a_chunk_with_nothing_expected_does_not_divide_by_nothing(clock, capsys):
    chunk = Chunk((TINY,), 1)
    with Display(1, 0, {chunk: 0.0}, shown=True) as display:
        display.update(chunk, at(0))
        display.update(chunk, at(1))
    assert "0 s left" in capsys.readouterr().err
