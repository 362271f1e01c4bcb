"""Random command lines by hypothesis: each gives a valid run, or one line and exit code 2."""

import contextlib
import itertools
import json
import shutil
import signal
import typing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

import recombine as rc
from recombine.experiments import catalogue
from recombine.experiments.ledger import ledger, results_folder
from recombine.parts import field_checks
from recombine.sweeps import discovery
from recombine.sweeps.run import describe, identity
from recombine.training import executors, scheduler
from tests.tiny import TINY

# Fixtures are shared by all examples of a test: every example makes its own folder.
SETTINGS = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
MAX_SECONDS = 20  # of a call that trains nothing; it takes a second or two on an idle machine
MAX_ERROR_LENGTH = 800  # characters
FILES = {
    "tiny.py": "import dataclasses\nfrom tests.tiny import TINY\n\ndef runs(scale):\n"
    "    return [dataclasses.replace(TINY, seed=seed) for seed in range(2)]\n",
    "broken.py": "def runs(:\n",
    "failing.py": "def runs(scale):\n    return 1 / 0\n",
    "ein Versuch é.py": "from tests.tiny import TINY\n\ndef runs(scale):\n    return [TINY]\n",
    "part.py": "from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Halved:\n"
    "    def num_tokens(self, family): return 0\n    def init(self, key, family): return ()\n"
    "    def encode(self, params, key, task, examples): return task / 2\n",
    "taken": "mine",
    "taken.parquet": "mine",
    "folder.parquet/file": "mine",
    "empty/nothing.txt": "",
}
BUILT_IN = {
    kind: {name: field_checks.field_types(cls) for name, cls in classes.items()}
    for kind, classes in discovery.parts().items()
}
HINTS = field_checks.field_types(rc.Run)

SMALL_NUMBERS = ["0", "-1", "1", "2", "3", "5", "8", "12", "64", "1000000", "1_0", "3.0", "0.5"]
SMALL_NUMBERS += ["1e-3", "1e30", "-0.0", "1j"]
LARGE_NUMBERS = ["1e308", "1e999", "-1e999", "nan", "inf", "10**30"]
LARGE_NUMBERS += ["4294967296", "9223372036854775808"]
LONG_NUMBERS = ["1" + "0" * 30, "9" * 5000, "0x" + "f" * 5000, "1e-400"]
NUMBERS = SMALL_NUMBERS + LARGE_NUMBERS + LONG_NUMBERS

WORDS = ["", " ", "None", "True", "false", "abc", "'khot'"]
MARKUP = ["[bold]x[/bold]", "[/]", "%s %d %", "{x} {}", "é漢🙂", "a\nb", "a\0b", "\x1b[31m"]
SYMBOLS = ["'", '"""', "\\", "#", ";", "=", "a=b", "...", "_", "*", "**{}", "$(id)"]
NESTED = [
    "(" * 300 + ")" * 300,
    "[" * 90 + "]" * 90,
    "((((1))))",
    "-" * 5000 + "1",
    "~" * 100_000,
    "{1: [2]}",
    "{1}",
]
WIDTHS = ["8x8", "8x", "x8", "8,8", "8,", ",", "()", "(8,)", "(8,'a')", "[8, 8]"]
WIDTHS += ["1," * 3000, "-3,2", "99999999999x2"]
SETS = ["((0,),(1,2))", "((0,1),(99,))", "((0,0),)", "((0,),(0,))", "((),)", "0,1"]
SETS += ["((1" + "0" * 30 + ",),)"]
CALLS = ["__import__('os')", "lambda: 0", "f()", "1 if 1 else 2", "MLP", "MLP()", "Random"]
CALLS += ["Run()", "Paper(precision=1)"]
TEXTS = [*WORDS, *MARKUP, "x" * 20_000, *SYMBOLS, *NESTED, *WIDTHS, *SETS, *CALLS]
ODD = st.one_of(
    st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.text(max_size=20), st.integers().map(str)
)
SMALL = st.sampled_from([1, 2, 3, 4, 6, 8])


def valid_value(hint) -> st.SearchStrategy[str]:
    """Texts of the annotated type, mostly with small and plausible values."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(typing.get_args(hint)).map(repr)
    if getattr(hint, "_is_protocol", False):
        return valid_part(hint.__name__.lower())
    if hint is bool:
        return st.booleans().map(str)
    if hint is int:
        return SMALL.map(str)
    if typing.get_origin(hint) is tuple:
        element = valid_value(typing.get_args(hint)[0])
        return st.lists(element, max_size=3).map(
            lambda items: "".join(f"{item}," for item in items) if items else "()"
        )
    return st.floats(0, 1).map(repr)


def part_with_fields(kind: str, name: str, value=valid_value) -> st.SearchStrategy[str]:
    """`Name(field=value, …)` with some of its fields."""
    hints = BUILT_IN[kind][name]
    if not hints:
        return st.just(name)
    arguments = [
        value(hint).map(lambda text, field=field: f"{field}={text}")
        for field, hint in hints.items()
    ]
    return st.lists(st.one_of(arguments), max_size=2).map(
        lambda chosen: f"{name}({', '.join(chosen)})" if chosen else name
    )


def valid_part(kind: str) -> st.SearchStrategy[str]:
    """A part of this kind with valid fields."""
    names = st.sampled_from(sorted(BUILT_IN[kind]))
    return names.flatmap(lambda name: part_with_fields(kind, name))


def mostly_valid_value(hint) -> st.SearchStrategy[str]:
    """Valid and odd values, most of them valid."""
    return st.one_of(valid_value(hint), valid_value(hint), valid_value(hint), ODD)


@st.composite
def odd_part(draw, kind: str) -> str:
    """A part with odd fields: unknown or repeated fields, or a call of something else."""
    name = draw(st.sampled_from(sorted(BUILT_IN[kind])))
    text = draw(part_with_fields(kind, name, mostly_valid_value))
    value = draw(ODD)
    form = st.sampled_from(
        ["{}", "{}()", "{}(wrong={v})", "{}({v})", "{}(**{v})", "{}.x(a={v})", "({})", "{}, {}"]
    )
    return draw(form).format(text, text, v=value)


@st.composite
def setting(draw) -> str:
    """One `--set` value: a field of a run, of a part, or an unknown field."""
    kind = draw(st.sampled_from(sorted(HINTS)))
    parts = BUILT_IN.get(kind.removesuffix("s"))
    if parts and draw(st.booleans()):
        name = type(getattr(TINY, kind)).__name__
        fields = BUILT_IN[kind][name] if kind in BUILT_IN and draw(st.integers(0, 3)) else {}
        fields = fields or parts[draw(st.sampled_from(sorted(parts)))]
        if fields:
            field = draw(st.sampled_from(sorted(fields)))
            return f"{kind}.{field}={draw(mostly_valid_value(fields[field]))}"
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.one_of(
                ODD, st.tuples(ODD, ODD).map("=".join), ODD.map(lambda text: f"{kind}.{text}=1")
            )
        )
    value = (
        st.one_of(valid_value(HINTS[kind]), odd_part(kind.removesuffix("s")))
        if parts
        else mostly_valid_value(HINTS[kind])
    )
    return f"{kind}={draw(value)}"


FOLDERS = ["rows", "rows/rows", "new", "new/er", "new.parquet", "a b", "é漢🙂", "", "."]
FOLDERS += ["[bold]", "%s", "-x", "a\nb", "taken", "taken/x", "taken/x.parquet", "taken.parquet"]
FOLDERS += ["folder.parquet", "empty", "nowhere", "x" * 300, "x" * 300 + ".parquet"]
EXPERIMENTS = ["tiny.py"] * 30 + ["quickstart", "six_modules", "./tiny.py", "ein Versuch é.py"]
EXPERIMENTS += ["quikstart", "missing.py", "broken.py", "failing.py", "part.py", "taken", "empty/"]
EXPERIMENTS += ["", "a\nb.py", "x" * 300 + ".py"]
PYTHON_FILES = ["part.py", "tiny.py", "broken.py", "missing.py", "taken", "empty", "", "x" * 300]
PYTHON_FILES += ["taken/x.py", "é"]
SCALES = ["tiny"] * 8 + ["small", "full", "huge", "", "[bold]", "a\nb", "-1"]
SEEDS = ["1", "2", "3"] * 4 + ["0", "-1", "1000000000", "1" + "0" * 30, "many", "", "1.5"]
SEEDS += ["9" * 5000, "nan"]
EXECUTORS = ["here", "processes:2", "processes:0", "processes:-1", "processes", "processes:two"]
EXECUTORS += ["slurm", "", "a\nb", "dask://nowhere:1", "dask://127.0.0.1:1", "dask://nowhere"]
EXECUTORS += ["dask-local:0", "dask-local:x", "dask://a:99999", "[bold]", "x" * 5000]
EXECUTORS += ["processes:1" + "0" * 30, "dask-local:" + "9" * 5000, "dask://..a..:1"]
SLURM_OPTIONS = ["", "cluster=debug", "partition", "=", "timeout_min=x", "nodes=2", "cluster=moon"]
SLURM_OPTIONS += ["[bold]=1", ",,", "a\nb=1", "cluster=debug,mem_gb=nan"]
SLURM_OPTIONS += ["cluster=local,timeout_min=-1", "cluster=debug,cpus_per_task=0", "x" * 5000]
TRACKERS = ["tensorboard", "", "tensorbord", "[bold]", "a\nb", "x" * 5000]


def sometimes(*option: str, values: list[str], one_in: int = 4) -> st.SearchStrategy[list[str]]:
    """The option with a value in one of `one_in` cases, otherwise nothing."""
    with_value = st.sampled_from(values).map(lambda value: [*option, value])
    return st.integers(1, one_in).flatmap(lambda n: with_value if n == one_in else st.just([]))


JSON = st.sampled_from([[], ["--json"]])


@st.composite
def run_line(draw) -> list[str]:
    assignments = draw(st.lists(setting(), max_size=4))
    set_words = []
    if assignments and draw(st.booleans()):
        set_words = ["--set", *assignments]
    elif assignments:
        for assignment in assignments:
            set_words += ["--set", assignment]
    options = [
        draw(sometimes("--scale", values=SCALES, one_in=2)),
        draw(sometimes("--seeds", values=SEEDS)),
        draw(sometimes("--out", values=FOLDERS, one_in=3)),
        draw(sometimes("--executor", values=EXECUTORS, one_in=6)),
        draw(sometimes("--slurm", values=SLURM_OPTIONS, one_in=20)),
        draw(sometimes("--log", values=TRACKERS, one_in=10)),
        draw(JSON),
    ]
    if draw(st.integers(0, 9)) == 0:
        options.append(["--executor", "slurm", "--slurm", draw(st.sampled_from(SLURM_OPTIONS))])
    return [
        "run",
        draw(st.sampled_from(EXPERIMENTS)),
        *set_words,
        *itertools.chain.from_iterable(options),
    ]


@st.composite
def other_line(draw) -> list[str]:
    folder = st.sampled_from(FOLDERS)
    line = draw(
        st.one_of(
            st.tuples(st.just("report"), st.one_of(st.just("rows"), folder)),
            st.tuples(st.just("watch"), st.one_of(st.just("rows"), folder), st.just("--once")),
            st.tuples(st.just("check"), st.sampled_from(PYTHON_FILES)),
            st.sampled_from(
                [
                    ("list",),
                    ("claims",),
                    ("quickstart",),
                    ("fly",),
                    ("--help",),
                    ("report",),
                    ("run",),
                ]
            ),
        )
    )
    extra = {"report": "--out", "claims": "--results"}.get(line[0])
    options = draw(sometimes(extra, values=FOLDERS, one_in=2)) if extra else []
    odd = draw(st.sampled_from([[]] * 6 + [["--fly"], ["extra"], ["--json=1"]]))
    return [*line, *options, *odd, *draw(JSON)]


LINES = st.one_of(run_line(), run_line(), run_line(), other_line())


class TooSlow(BaseException):
    """Not an Exception, so that no `except Exception` catches it."""


@contextlib.contextmanager
def time_limit(seconds: float):
    def stop(*_):
        raise TooSlow

    former = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


@pytest.fixture(scope="module")
def trained() -> pd.DataFrame:
    """The last row of a real run, without the columns that describe the run."""
    row = rc.train(TINY).tail(1)
    return row[[name for name in row if "." not in name and name not in describe(TINY)]]


@pytest.fixture
def untrained(trained, monkeypatch):
    """Everything that `run` does except the training: every run gets the same scores."""

    def train_chunks(chunks, *_):
        for chunk in chunks:
            rows = [
                trained.assign(**{"run": identity(run), "step": run.num_steps} | describe(run))
                for run in chunk.runs
            ]
            yield chunk, pd.concat(rows, ignore_index=True)

    monkeypatch.setattr(scheduler, "_train_chunks", train_chunks)
    monkeypatch.setattr(executors.dask, "CONNECT_SECONDS", 0.2)


@pytest.fixture
def template(untrained, call, tmp_path) -> Path:
    """A folder with all kinds of files, and with results in `rows`."""
    folder = tmp_path / "template"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert call("run", str(folder / "tiny.py"), "--out", str(folder / "rows"), "--json")[0] == 0
    return folder


def files(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file()
    }


def check_error(err: str) -> None:
    """Check that the error is one line of ours, or the usage lines of typer."""
    lines = err.strip().splitlines()
    assert lines, "there is no message"
    assert "Traceback" not in err
    if not lines[0].startswith(("Usage: ", "Error: ")):
        assert all(line.startswith("recombine: ") for line in lines), err[:500]
    assert len(lines) <= 4
    assert max(map(len, lines)) <= MAX_ERROR_LENGTH, err[:500]


@pytest.fixture(scope="module")
def judged():
    """All verdicts are in the cache: without it, `claims` computes longer than the time limit."""
    ledger(catalogue.experiment_names(), results_folder())


@settings(max_examples=200, **SETTINGS)
@given(line=LINES)
@pytest.mark.usefixtures("judged")
def test_every_command_line_succeeds_or_is_refused(line, call, template, monkeypatch, tmp_path):
    folder = tmp_path / "here"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    monkeypatch.chdir(folder)
    before = files(folder)
    try:
        with time_limit(MAX_SECONDS):
            code, out, err = call(*line)
    except TooSlow as error:
        raise AssertionError(f"took more than {MAX_SECONDS} s") from error
    event(f"{line[0]} exits with {code}")
    assert code in (0, 2), err
    assert "Traceback" not in err
    if code == 2:
        check_error(err)
        assert files(folder) == before, "nothing is written"
    elif "--json" in line and "--help" not in line:
        json.loads(out)


FORMER_BUGS = [  # settings that hypothesis found
    "seed=0x" + "f" * 5000,
    "recipe.learning_rate=1" + "0" * 400,
    "recipe.learning_rate=1e308",
    "recipe.final=1e308",
    "family.table_seed=9223372036854775808",
    "encoding=FewShot(num_pairs=1, num_pairs=2)",
    "encoding=FewShot().x(num_pairs=3)",
    f"encoding=FewShot(num_pairs={'-' * 5000}1)",
    f"diagnostics={'(' * 100}{'-' * 5000}1{')' * 100}",
    "family=Hyperteacher(num_modules=1000000, num_hot=1)",
    "family=Hyperteacher(num_modules=20000, num_hot=10000)",
    "family=Hyperteacher(num_modules=2000, num_hot=1000, max_tasks=100)",
    "family=Hyperteacher(num_modules=64, num_hot=8, max_tasks=1000000000)",
    "family=Hyperteacher(num_modules=3000, num_hot=2, max_tasks=100)",
    "family=GoalGrid(num_mazes=1000000)",
    "family=Hyperteacher(num_layers=1000000)",
    "family.d_hidden=4294967296",
    "encoding=InvertibleNN(num_layers=1000000)",
    "encoding=IntervalShuffle(num_intervals=100000000000)",
    "model=Transformer(num_layers=1000000)",
    "model=Transformer(d_model=4294967296)",
    "model.widths=" + "1," * 5000,
    "diagnostics=LinearDecodability(num_fit=4294967296)",
    "support=Growing(law='quadratic', factor=1e308)",
    "num_steps=4294967296",
]


@pytest.mark.parametrize("assignment", FORMER_BUGS, ids=lambda assignment: assignment[:60])
def test_former_bugs_stay_fixed(assignment, call, tmp_path):
    (tmp_path / "tiny.py").write_text(FILES["tiny.py"])
    with time_limit(MAX_SECONDS):
        code, _, err = call("run", "tiny.py", "--set", assignment)
    assert code == 2
    check_error(err)


def test_too_many_runs_and_too_long_sequences_are_refused(call, tmp_path):
    (tmp_path / "tiny.py").write_text(FILES["tiny.py"])
    sequence = ["--set", "model=Transformer", "num_points=1000000000", "num_eval_points=1000000000"]
    for options, message in (
        (["--seeds", "1000000000"], "use at most --seeds"),
        (sequence, "tokens of 256 numbers"),
    ):
        with time_limit(MAX_SECONDS):
            code, _, err = call("run", "tiny.py", *options)
        assert code == 2
        assert message in err


@st.composite
def valid_setting(draw) -> str:
    """A setting of the right type; large numbers only where they cost no time."""
    kind = draw(st.sampled_from(sorted(HINTS)))
    return f"{kind}={draw(valid_value(HINTS[kind]))}"


EXTREME = [
    "recipe.learning_rate=1e38",
    "recipe.learning_rate=1e999",
    "recipe=Paper(learning_rate=1e30)",
]
EXTREME += ["recipe.weight_decay=1e38", "recipe.final=1e38", "encoding=InvertibleNN(scale=1e38)"]
EXTREME += [
    "diagnostics=LinearDecodability(l2=1e38)",
    "family.table_seed=9223372036854775807",
    "seed=4294967295",
]


@settings(max_examples=12, **SETTINGS)
@given(sets=st.lists(st.one_of(valid_setting(), st.sampled_from(EXTREME)), min_size=1, max_size=3))
def test_fuzzed_settings_train(sets, call, tmp_path):
    (tmp_path / "tiny.py").write_text(FILES["tiny.py"])
    shutil.rmtree(tmp_path / "rows", ignore_errors=True)
    code, out, err = call("run", "tiny.py", "--out", "rows", "--json", "--set", *sets)
    if code == 2:
        check_error(err)
    assume(code != 2)  # parts that are incompatible: hypothesis draws others instead
    assert code == 0, err
    rows = rc.Table("rows").read()
    assert json.loads(out)["runs"] == rows["run"].nunique() > 0
    assert (np.isfinite(rows["test/loss"]) | rows["diverged"]).all(), (
        "a number, or marked as diverged"
    )
    event(f"diverged: {rows['diverged'].any()}")
