"""The time left: the expected seconds at first, corrected by the measured speed."""

from types import SimpleNamespace

import pytest

import recombine as rc
from recombine.basics import console
from recombine.training import progress, trainer
from recombine.training.cost import Cost
from recombine.training.progress import Display, expected_seconds
from recombine.training.scheduler import Chunk, make_chunks

TINY = rc.Run(model=rc.MLP(widths=(8, 8)), num_steps=20, num_evals=2, diagnostics=())
# Half a second for a step of any run, seven seconds to compile a program.
FLAT = Cost((0.0, 0.5, 0.0, 0.0), 7.0)


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests can set."""
    now = SimpleNamespace(seconds=100.0)
    for module in (progress, console):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


def progress_at(fraction, score=None, phase="training"):
    return trainer.Progress(phase, round(20 * fraction), 20, 2, score, fraction)


def test_compilation_counts_once_per_structure():
    chunks = make_chunks(
        rc.sweep(TINY, model__widths=[(8, 8), (12, 8)], seed=range(3)), max_width=2
    )
    assert [len(chunk.runs) for chunk in chunks] == [2, 1, 2, 1]
    # 20 steps and 2 evaluations of half a second are 11 seconds per run. Padding costs nothing.
    assert list(expected_seconds(chunks, FLAT).values()) == pytest.approx([22 + 7, 11, 22 + 7, 11])
    assert list(expected_seconds(reversed(chunks), FLAT).values()) == pytest.approx(
        [11 + 7, 22, 11 + 7, 22]
    )
    assert expected_seconds([], FLAT) == {}


def test_wide_networks_count_more():
    narrow, wide = make_chunks(
        [TINY, rc.Run(model=rc.MLP(widths=(64, 64)), num_steps=20, num_evals=2)]
    )
    seconds = expected_seconds([narrow, wide], Cost((0.0, 0.0, 1e-6, 0.0), 0.0))
    assert seconds[wide] > 3 * seconds[narrow]


def test_the_time_left_begins_at_the_expected_time_and_ends_at_zero(clock):
    display = Display(4, 0, {"a": 30.0, "b": 10.0}, show_progress=False)
    assert display.time_left(0) == 40
    clock.seconds += 40
    assert display.time_left(40) == 0


@pytest.mark.parametrize("slower", [0.5, 1.0, 2.0])
def test_the_time_left_follows_the_machine(clock, slower):
    display = Display(4, 0, {"a": 30.0, "b": 10.0}, show_progress=False)
    ratios = []  # of the time left to the expected time left
    for done in range(40):
        clock.seconds = 100 + slower * done
        ratios.append(display.time_left(done) / (40 - done))
    ratios.append(slower)
    # The ratio moves from the expected speed to the measured one.
    assert ratios[0] == 1
    assert ratios[20] == pytest.approx((1 + slower) / 2)
    assert ratios[39] == pytest.approx(slower, rel=0.05)
    assert sorted(ratios, reverse=slower < 1) == pytest.approx(ratios)


def test_chunks_add_up_and_the_line_shows_the_time_left(clock, capsys):
    display = Display(4, 0, {"a": 300.0, "b": 100.0}, show_progress=True)
    with display:
        display.update("a", progress_at(0, phase="compiling"))
        clock.seconds += 150
        display.update("a", progress_at(0.5, score=0.25))
        clock.seconds += 150
        display.update("a", progress_at(1, score=0.5))
        display.update("b", progress_at(0, phase="compiling"))
        clock.seconds += 100
        display.update("b", progress_at(1, score=0.75))
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


def test_the_number_of_finished_runs_is_printed(capsys):
    with Display(4, 3, {}, show_progress=True):
        pass
    assert "3 of 4 runs are finished already: reused" in capsys.readouterr().err
    with Display(4, 0, {}, show_progress=True):
        pass
    assert "finished" not in capsys.readouterr().err


def test_nothing_is_printed_unless_shown(capsys):
    with Display(4, 2, {"a": 1.0}, show_progress=False) as display:
        display.update("a", progress_at(0))
        display.update("a", progress_at(1))
    assert display.done == {"a": 1}
    assert capsys.readouterr() == ("", "")


def test_a_chunk_of_zero_expected_seconds_does_not_divide_by_zero(clock, capsys):
    chunk = Chunk((TINY,), 1)
    with Display(1, 0, {chunk: 0.0}, show_progress=True) as display:
        display.update(chunk, progress_at(0))
        display.update(chunk, progress_at(1))
    assert "0 s left" in capsys.readouterr().err
