"""Lines, durations and progress bars: on a terminal, in a log, and hidden."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from recombine.basics import console
from recombine.basics.console import (
    Meter,
    ProgressBar,
    command_progress,
    duration,
    print_line,
    say,
    warn,
)

MARKUP = "a [bold]word[/bold] :cat:" + " and a long line" * 20


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test advances."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(console, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


class Terminal:
    """Everything written to stderr, which pretends to be a terminal."""

    def __init__(self, capsys):
        self.capsys, self.written = capsys, ""

    def codes(self) -> str:
        """With control codes."""
        self.written += self.capsys.readouterr().err
        return self.written

    def text(self) -> str:
        """Without control codes."""
        return re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", self.codes())


@pytest.fixture
def terminal(capsys, monkeypatch) -> Terminal:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich, any stream is a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(
        console, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True))
    )
    return Terminal(capsys)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1e-12, "0 s"),
        (0, "0 s"),
        (0.04, "0 s"),
        (0.36, "0.4 s"),
        (0.97, "1 s"),
        (1, "1 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (400, "6 min 40 s"),
        (3599.6, "1 h 0 min"),
        (5399, "1 h 29 min"),
        (137 * 3600, "137 h 0 min"),
    ],
)
def test_durations_have_at_most_two_units(seconds, text):
    assert duration(seconds) == text


def test_markup_in_lines_is_not_interpreted(capsys):
    print_line(MARKUP)
    assert capsys.readouterr() == (f"{MARKUP}\n", "")
    say(MARKUP)
    assert capsys.readouterr() == ("", f"recombine: {MARKUP}\n")
    warn(MARKUP)
    assert capsys.readouterr() == ("", f"{MARKUP}\n")


def test_warnings_are_yellow_on_a_terminal(terminal):
    warn("careful")
    assert terminal.codes().startswith("\x1b[33mcareful\x1b[0m")


def test_a_log_gets_lines_at_intervals(clock, capsys):
    with ProgressBar(8) as bar:
        bar.update("first [x]", 0)
        clock.seconds += 1.9
        bar.update("too early", 1)
        bar.update("forced", 2, force_line=True)
        clock.seconds += 2
        bar.update("later", 4)
        bar.fill()
    assert capsys.readouterr() == ("", "  0%  first [x]\n 25%  forced\n 50%  later\n")


def test_nothing_is_printed_unless_visible(terminal):
    with (
        ProgressBar(2, visible=False) as bar,
        Meter("steps", 2, visible=False) as meter,
        command_progress(False) as step,
    ):
        bar.update("a", 1, force_line=True)
        meter.advance()
        step("a", 1, 2)
    assert terminal.codes() == ""


def test_a_terminal_gets_a_bar(terminal):
    with ProgressBar(4) as bar:
        bar.update("half [bold]of[/bold] it", 2)
        say("a note")
    last = terminal.text().splitlines()[-1]
    assert re.fullmatch(r"half \[bold\]of\[/bold\] it [━╸╺]+ 50%", last.strip("\r"))
    assert "recombine: a note\n" in terminal.text()
    assert terminal.codes().rstrip().endswith("\x1b[?25h"), "the cursor is shown again"
    say("after it")
    assert terminal.codes().endswith("recombine: after it\n")


def test_a_bar_shows_counts_and_can_be_filled(terminal):
    with ProgressBar(2000, show_count=True) as bar:
        bar.update("cells", 1000)
        bar.fill()
    assert "cells ━" in terminal.text()
    assert terminal.text().rstrip().endswith("2,000 of 2,000")


def test_a_nested_bar_does_not_overwrite_the_outer_one(terminal):
    with ProgressBar(4) as outer:
        outer.update("outer", 1)
        with ProgressBar(4) as inner:
            inner.update("inner", 2)
            say("a note")
        say("another note")
    say("the last note")
    lines = [line.strip("\r ") for line in terminal.text().splitlines()]
    assert [line for line in lines if "note" in line] == [
        "recombine: a note",
        "recombine: another note",
        "recombine: the last note",
    ]
    assert not [line for line in lines if "inner" in line and "outer" in line]


def test_the_terminal_is_restored_after_an_error(terminal):
    stream = sys.stderr

    def interrupt() -> None:
        with ProgressBar(4) as bar:
            bar.update("half", 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert terminal.codes().rstrip().endswith("\x1b[?25h")
    assert sys.stderr is stream


def test_steps_of_a_command_are_for_terminals_only(capsys):
    with command_progress(True) as step:
        step("reading", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_steps_of_a_command_are_erased_at_the_end(terminal):
    with command_progress(True) as step:
        step("reading", 1, 2)
        step("writing", 2, 2)
    text = terminal.text()
    assert text.index("reading, 1 of 2") < text.index("writing, 2 of 2")
    assert re.search(r"\x1b\[2K\s*$", terminal.codes().replace("\x1b[?25h", "")), (
        "the line is erased"
    )


def test_a_meter_appears_after_two_seconds_and_then_every_ten(clock, capsys):
    with Meter("recording, batches", 4000) as meter:
        for num, seconds in ((500, 1), (500, 1), (500, 9), (500, 1)):
            clock.seconds += seconds
            meter.advance(num)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "recording, batches: 1,000 of 4,000, about 6 s left",
        "recording, batches: 2,000 of 4,000, about 12 s left",
    ]


def test_a_meter_without_a_total_shows_the_count(clock, capsys):
    with Meter("batches") as meter:
        clock.seconds += 3
        meter.advance(1234)
    assert capsys.readouterr().err == "batches: 1,234\n"


def test_a_meter_shows_the_time_left_on_a_terminal(clock, terminal, monkeypatch):
    with Meter("batches", 4) as meter:
        meter.advance()
        assert terminal.codes() == "", "not yet"
        clock.seconds += 2
        meter.advance()
    assert re.search(r"batches [━╸╺]+ 2 of 4, about 2 s left", terminal.text())
    monkeypatch.setattr(console, "METER_DELAY", 0.0)
    with Meter("nothing done yet", 4):
        pass


def test_rich_progress_is_imported_only_when_a_bar_is_drawn():
    code = (
        "import sys, recombine.basics.console as console\n"
        "console.say('hello')\n"
        "sys.exit('rich.progress' in sys.modules or 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "recombine: hello\n")


def test_a_duration_that_is_not_finite_is_unknown():
    assert {console.duration(value) for value in (float("nan"), float("inf"))} == {"unknown"}
