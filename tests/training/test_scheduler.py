"""The guarantees of training.

There is one program per structure. A run trained in a batch equals the run alone. A resumed sweep
equals an uninterrupted one. Held-out tasks are never trained on.
"""

import collections
import concurrent.futures
import dataclasses
import itertools
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.basics.random_streams import generator
from recombine.parts.models import mlp
from recombine.parts.prng import new_key
from recombine.storage import parquet
from recombine.storage.table import Table
from recombine.sweeps import discovery
from recombine.sweeps.run import identity, structure
from recombine.training import program, scheduler, task_sampler, trainer
from recombine.training.scheduler import make_chunks
from recombine.training.task_sampler import make_split
from tests.tiny import TINY

PROBE = rc.LinearDecodability(num_fit=32, num_seen=32, num_test=32)


def sixteen() -> list[rc.Run]:
    """16 runs of 2 structures. Within one, learning rates, supports, fractions and seeds vary."""
    runs = rc.sweep(
        dataclasses.replace(TINY, diagnostics=(PROBE,)),
        model__widths=[(8, 8), (12, 8)],
        recipe__learning_rate=[0.01, 0.03],
        frac_test=[0.3, 0.5],
        seed=range(2),
    )
    supports = (rc.Random(), rc.Disconnected())
    return [dataclasses.replace(run, support=supports[run.seed]) for run in runs]


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """The columns that must not depend on when and how a run was trained."""
    columns = [name for name in rows.columns if not name.startswith("meta/")]
    return rows[columns].sort_values(["run", "step"]).reset_index(drop=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> pd.DataFrame:
    return rc.train(sixteen(), tmp_path_factory.mktemp("whole") / "out", max_width=4)


def test_there_is_one_program_per_structure(monkeypatch):
    traced = []
    advance = program._advance

    def traced_advance(template, *args):
        traced.append(template)
        return advance(template, *args)

    monkeypatch.setattr(program, "_advance", traced_advance)
    program.compile_program.cache_clear()
    runs = [dataclasses.replace(run, diagnostics=(), num_steps=4) for run in sixteen()]
    rows = rc.train(runs, max_width=4)
    assert len(runs) == 16
    assert len(set(map(structure, runs))) == 2
    assert len(traced) == 2, "four chunks of two structures compile two programs"
    assert rows["run"].nunique() == 16
    assert rows["meta/width"].unique().tolist() == [4]


def test_a_run_in_a_batch_equals_the_run_alone(uninterrupted):
    for run in (sixteen()[1], sixteen()[-1]):
        solo = numbers(rc.train(run))
        batched = numbers(uninterrupted[uninterrupted["run"] == identity(run)])
        for name in solo.columns:
            if pd.api.types.is_numeric_dtype(solo[name]):
                np.testing.assert_allclose(
                    solo[name], batched[name], rtol=1e-4, atol=1e-4, err_msg=name
                )


def test_a_killed_sweep_resumes_bit_for_bit(uninterrupted, tmp_path, monkeypatch):
    chunk_rows = scheduler.chunk_rows
    calls = []

    def interrupt_third(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return chunk_rows(*args)

    monkeypatch.setattr(scheduler, "chunk_rows", interrupt_third)
    with pytest.raises(KeyboardInterrupt):
        rc.train(sixteen(), tmp_path / "out", max_width=4)
    assert len(rc.Table(tmp_path / "out").finished()) == 8, "finished runs are kept"
    rows = rc.train(sixteen(), tmp_path / "out")  # with the width of the first time
    assert len(calls) == 5, "two finished chunks are skipped, the third and the fourth are trained"
    pd.testing.assert_frame_equal(numbers(rows), numbers(uninterrupted), check_exact=True)
    assert rows.groupby(["run", "step"]).size().max() == 1, "nothing is repeated"
    again = rc.train(sixteen(), tmp_path / "out")
    assert len(calls) == 5
    pd.testing.assert_frame_equal(again, rows)


def test_packed_file_holds_the_same_rows(uninterrupted, tmp_path):
    rows = rc.train(sixteen()[:4], tmp_path / "rows.parquet", max_width=4)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
    expected = uninterrupted[uninterrupted["run"].isin(rows["run"])]
    pd.testing.assert_frame_equal(numbers(rows), numbers(expected), check_exact=True)


def test_any_executor_gives_the_same_rows(uninterrupted):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        rows = rc.train(sixteen(), executor=pool, max_width=4)
    pd.testing.assert_frame_equal(numbers(rows), numbers(uninterrupted), check_exact=True)


def test_rows_describe_their_run(uninterrupted):
    row = uninterrupted.iloc[-1]
    assert row["family"] == "Hyperteacher"
    assert row["family.num_modules"] == 6
    assert row["model.widths"] == "12x8"
    assert row["support"] == "Disconnected"
    assert not row["support/connected"]
    assert row["step"] == 20
    for name in ("seen/r2", "test/num_hot=2/r2", "extrapolation/num_hot=4/r2", "train/loss"):
        assert np.isfinite(row[name]), name
    assert np.isfinite(row["LinearDecodability/hidden1/test/module=5/r2"])
    assert "extrapolation/num_hot=2/r2" not in uninterrupted


def test_repeated_runs_are_dropped_and_the_last_chunk_is_padded():
    runs = rc.sweep(TINY, seed=range(7))
    chunks = make_chunks([*runs, *runs], max_width=3)
    assert [len(chunk.runs) for chunk in chunks] == [3, 3, 1]
    assert {chunk.width for chunk in chunks} == {3}
    assert [run.seed for chunk in chunks for run in chunk.runs] == list(range(7))


@pytest.mark.parametrize(
    "support",
    [cls() for cls in discovery.parts()["support"].values()],
    ids=lambda s: type(s).__name__,
)
def test_train_and_test_tasks_are_disjoint(support):
    view = getattr(support, "view", None)  # such a support needs a family of sequences
    family = rc.Chain() if view else rc.Hyperteacher(num_modules=10)
    if view == "kinds":
        family = rc.TwoHop(facts=True)
    run = dataclasses.replace(TINY, family=family, support=support, frac_test=0.3)
    modules = family.modules(family.tasks()) if view else family.tasks()
    read_rows = family.view(view, family.tasks()) if view else modules
    parts = support.parts(read_rows, generator(run.seed, "support"), 0.3)
    split, facts = make_split(run, modules)
    train, test = (
        split.order[: split.num_train],
        split.order[split.num_train : split.num_train + split.num_test],
    )
    assert sorted(split.order) == list(range(len(modules)))
    assert not set(train) & set(test)
    assert facts["support/num_train"] == len(train)
    assert facts["support/frac_test"] == len(test) / (len(train) + len(test))
    assert set(train) == set(np.flatnonzero(parts == 1))
    assert set(test) == set(np.flatnonzero(parts == 2))


LOG: list[tuple[int, bytes, tuple[int, ...]]] = []


@dataclasses.dataclass(frozen=True)
class Spy(rc.Hyperteacher):
    """A hyperteacher that logs every sample: number of points, first point, active modules."""

    def sample(self, world, key, task, n):
        x, y = super().sample(world, key, task, n)
        jax.debug.callback(_note, x, task)
        return x, y


def _note(x, task):
    LOG.append((len(x), np.asarray(x)[0].tobytes(), tuple(np.flatnonzero(task).tolist())))


def test_the_seen_score_is_measured_on_fresh_samples():
    LOG.clear()
    family = Spy(num_modules=6, num_hot=2, d_input=4, d_hidden=4, num_outputs=3)
    # Training draws 4 points per task and evaluation 5, so the log can separate them. If they
    # shared a key, their first points would be equal, because the generator counts up from 0.
    key, task = new_key(3), jnp.ones(6)
    world = family.init(key)
    first_of_4 = rc.Hyperteacher.sample(family, world, key, task, 4)[0][0]
    first_of_5 = rc.Hyperteacher.sample(family, world, key, task, 5)[0][0]
    assert np.array_equal(first_of_4, first_of_5)
    LOG.clear()
    run = dataclasses.replace(
        TINY, family=family, num_points=4, num_eval_points=5, num_steps=40, frac_test=0.5
    )
    rc.train(run)
    jax.effects_barrier()
    train, evaluated = ({x for n, x, _ in LOG if n == size} for size in (4, 5))
    assert len(train) >= 40 * 8
    assert len(evaluated) >= 2 * 16 * 3, "two evaluations of seen, test and extrapolation tasks"
    assert not train & evaluated
    # All train tasks are trained on, and no others.
    split, _ = make_split(run, family.tasks())
    rows = [tuple(np.flatnonzero(row).tolist()) for row in family.tasks()[split.order]]
    trained, scored = ({active for n, _, active in LOG if n == size} for size in (4, 5))
    assert trained == set(rows[: split.num_train])
    extrapolation = {active for active in scored if len(active) > family.num_hot}
    assert extrapolation
    assert scored - extrapolation == set(rows)


def test_a_diverged_run_is_recorded_and_does_not_change_others():
    calm, wild = (rc.sweep(TINY, recipe__learning_rate=[0.01, rate, 0.02]) for rate in (0.03, 1e30))
    healthy, mixed = numbers(rc.train(calm)), numbers(rc.train(wild))
    diverged = mixed[mixed["recipe.learning_rate"] == 1e30]
    assert diverged["diverged"].all()
    assert (diverged["diverged_at"] >= 0).all()
    assert not np.isfinite(diverged["test/loss"]).any()
    others = mixed[mixed["recipe.learning_rate"] < 1]
    assert not others["diverged"].any()
    expected = healthy[healthy["run"].isin(others["run"])]
    pd.testing.assert_frame_equal(
        others.reset_index(drop=True), expected.reset_index(drop=True), check_exact=True
    )


def test_a_missing_module_is_in_no_train_task():
    run = dataclasses.replace(TINY, support=rc.MissingModule(), diagnostics=(PROBE,))
    rows = rc.train(run)
    assert rows["support/least_count"].eq(0).all()
    assert rows["LinearDecodability/code/seen/module=5/r2"].isna().all(), (
        "constant among train tasks"
    )
    assert rows["LinearDecodability/code/seen/module=0/r2"].gt(0.99).all()


def test_an_average_of_the_network_is_evaluated():
    plain = rc.train(TINY)
    averaged = rc.train(
        dataclasses.replace(TINY, recipe=dataclasses.replace(TINY.recipe, ema=0.999))
    )
    assert np.allclose(plain["train/loss"], averaged["train/loss"], rtol=1e-4), (
        "training itself does not change"
    )
    # After 20 steps, an average with decay 0.999 is still nearly the untrained network.
    assert averaged["test/loss"].iloc[-1] > plain["test/loss"].iloc[-1] * 1.1


def test_fit_save_load(tmp_path):
    run = dataclasses.replace(TINY, encoding=rc.Orthogonal())
    fitted = rc.fit(run)
    x, task = np.linspace(-1, 1, 12).reshape(3, 4).astype(np.float32), [0.5, 0, 0, 1, 0, 0]
    fitted.save(tmp_path / "net")
    loaded = rc.Fitted.load(tmp_path / "net")
    assert loaded.run == run
    np.testing.assert_array_equal(loaded.predict(x, task), fitted.predict(x, task))
    assert loaded.rows["test/r2"].tolist() == fitted.rows["test/r2"].tolist()
    assert fitted.predict(x, task).shape == (3, 3)
    with pytest.raises(InputError, match="no saved network"):
        rc.Fitted.load(tmp_path)
    (tmp_path / "net" / "arrays.eqx").write_bytes(b"nothing")
    with pytest.raises(InputError, match="has changed since the network was saved"):
        rc.Fitted.load(tmp_path / "net")


def test_keep_saves_every_network(tmp_path):
    runs = rc.sweep(TINY, seed=range(2))
    rc.train(runs, tmp_path / "out")
    # The runs are finished, but their networks were not kept. They are trained again.
    rc.train(runs, tmp_path / "out", keep=tmp_path / "nets")
    for run in runs:
        fitted = rc.Fitted.load(tmp_path / "nets" / identity(run))
        assert fitted.run == run
        arrays = jax.tree.leaves(eqx.filter(fitted.net, eqx.is_array))
        assert all(np.isfinite(array).all() for array in arrays)
    assert rc.Table(tmp_path / "out").read().groupby(["run", "step"]).size().max() == 1


@dataclasses.dataclass(frozen=True)
class Unsigned:
    """A user's support that marks rows from 0 to `top`, in an unsigned integer type."""

    top: int = 2
    guarantees = frozenset()

    def parts(self, modules, rng, frac_test):
        return np.arange(len(modules)).astype(np.uint8) % (self.top + 1)


def test_a_support_may_use_any_integer_type():
    modules = TINY.family.tasks()
    split, _ = make_split(dataclasses.replace(TINY, support=Unsigned()), modules)
    assert set(split.order[: split.num_train] % 3) == {1}
    assert set(split.order[split.num_train : split.num_train + split.num_test] % 3) == {2}
    with pytest.raises(InputError, match="must mark each"):
        make_split(dataclasses.replace(TINY, support=Unsigned(top=3)), modules)


class Flaky(concurrent.futures.ThreadPoolExecutor):
    """An executor that loses its first job."""

    lost = False

    def submit(self, fn, /, *args, **kwargs):
        if not self.lost:
            self.lost = True
            return super().submit(lambda: 1 / 0)
        return super().submit(fn, *args, **kwargs)


def test_other_chunks_are_written_when_a_job_fails(uninterrupted, tmp_path):
    with Flaky(1) as pool, pytest.raises(ZeroDivisionError):
        rc.train(sixteen(), tmp_path / "out", executor=pool, max_width=4)
    assert len(rc.Table(tmp_path / "out").finished()) == 12


def test_errors_come_before_compilation(monkeypatch, tmp_path):
    monkeypatch.setattr(trainer, "train_chunk", lambda *_: pytest.fail("must not start"))
    impossible = rc.Run(family=rc.Hyperteacher(num_modules=16), frac_test=0.99)
    with pytest.raises(InputError, match="cannot connect 16 modules"):
        rc.train([TINY, impossible])
    with pytest.raises(InputError, match="no runs"):
        rc.train([])
    with pytest.raises(InputError, match="max_width"):
        rc.train(TINY, max_width=0)
    with pytest.raises(InputError, match="cannot connect"):
        rc.train(impossible, tmp_path / "rows.parquet")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot keep networks"):
        rc.train(TINY, keep=tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(InputError, match="instance"):
        dataclasses.replace(TINY, encoding=rc.FewShot)
    with pytest.raises(InputError, match="must be a model"):
        dataclasses.replace(TINY, model=rc.Identity())
    with pytest.raises(InputError, match="the values of a field in a sweep must be a list"):
        rc.sweep(TINY, seed=3)


def fake_prepare(monkeypatch):
    """Replace `prepare` by a function that compiles nothing. Returns the prepared structures."""
    prepared = []

    def prepare(runs, width, splits):
        prepared.append(structure(runs[0]))
        return trainer.PreparedChunk(runs, width, None, [], [], None, 100.0)

    monkeypatch.setattr(trainer, "prepare", prepare)
    return prepared


@pytest.mark.parametrize("same_settings", [True, False])
def test_every_structure_is_compiled_ahead_once_and_in_order(monkeypatch, same_settings):
    chunks = make_chunks(sixteen(), max_width=4)
    prepared = fake_prepare(monkeypatch)
    structures = [structure(chunk.runs[0]) for chunk in chunks]
    counter = itertools.count()
    monkeypatch.setattr(scheduler.device, "num_compilers", lambda: 2)
    monkeypatch.setattr(
        scheduler.device, "numeric_settings", lambda: 0 if same_settings else next(counter)
    )
    compiled_ahead = []
    for expected_chunk, (chunk, compiling) in zip(
        chunks, scheduler._compile_ahead(chunks, {}), strict=True
    ):
        assert chunk == expected_chunk
        if compiling is not None:
            assert compiling.result().runs == list(chunk.runs)
            compiled_ahead.append(chunks.index(chunk))
    assert compiled_ahead == ([0, 2] if same_settings else [])
    assert prepared == ([structures[0], structures[2]] if same_settings else [])


def test_several_programs_are_compiled_in_parallel(monkeypatch):
    runs = rc.sweep(TINY, model__widths=[(4,), (5,), (6,), (7,), (8,)])
    prepared = fake_prepare(monkeypatch)
    num_prepared = []
    monkeypatch.setattr(scheduler.device, "num_compilers", lambda: 2)
    for _, compiling in scheduler._compile_ahead(make_chunks(runs), {}):
        concurrent.futures.wait([compiling])
        num_prepared.append(len(prepared))
    assert sorted(map(repr, prepared)) == sorted(repr(structure(run)) for run in runs)
    assert all(num <= 3 + i for i, num in enumerate(num_prepared)), (
        "at most one more than there are compilers is prepared ahead"
    )


def test_the_compile_time_of_a_program_compiled_ahead_is_the_waiting_time(monkeypatch):
    runs = [TINY]
    compiling = concurrent.futures.Future()
    compiling.set_result(trainer.prepare(runs)._replace(compile_seconds=1e6))
    start = time.perf_counter()
    compile_seconds = trainer.train_chunk(runs, compiling=compiling).compile_seconds
    assert compile_seconds <= time.perf_counter() - start


def test_programs_compiled_together_give_the_same_rows(monkeypatch):
    runs = rc.sweep(TINY, model__widths=[(4,), (5,), (6,)])
    alone = rc.train(runs)
    program.compile_program.cache_clear()
    monkeypatch.setattr(scheduler.device, "num_compilers", lambda: 2)
    together = rc.train(runs)
    columns = [name for name in alone if not name.startswith("meta/")]
    pd.testing.assert_frame_equal(alone[columns], together[columns], check_exact=True)


@pytest.mark.parametrize(
    ("precision", "mixed", "expected"),
    [("bfloat16", True, "bfloat16"), ("bfloat16", False, "float32")],
)
def test_rows_have_the_type_in_which_a_network_was_trained(monkeypatch, precision, mixed, expected):
    monkeypatch.setattr(mlp.Perceptron, "mixed_precision", mixed)
    program.compile_program.cache_clear()
    rows = rc.train(dataclasses.replace(TINY, recipe=rc.Fast(precision=precision)))
    assert rows["meta/precision"].unique().tolist() == [expected]


def test_a_resumed_sweep_reads_each_part_once_and_splits_each_run_once(tmp_path, monkeypatch):
    runs = rc.sweep(TINY, seed=range(4))
    rc.train(runs[:3], tmp_path / "out")
    rows = rc.Table(tmp_path / "out").read()
    (part,) = (tmp_path / "out" / "rows").glob("part-*")
    part.unlink()
    for run in rows["run"].unique():  # three parts, as three machines would leave them
        rc.Table(tmp_path / "out").append(rows[rows["run"] == run])
    before = {path.name for path in (tmp_path / "out" / "rows").glob("part-*")}
    num_reads, num_splits = collections.Counter(), collections.Counter()
    opened, reads_at_start = [], []
    load, make_split, open_table = parquet.load, task_sampler.make_split, Table.__init__

    def counted_load(path, wanted):
        num_reads.update([path.name])
        return load(path, wanted)

    def counted_split(run, modules):
        num_splits.update([run.seed])
        return make_split(run, modules)

    def counted_open(self, path):
        opened.append(path)
        open_table(self, path)

    def stop_before_training(*_):
        reads_at_start.append(dict(num_reads))
        pytest.fail("the start is over")

    monkeypatch.setattr(parquet, "load", counted_load)
    monkeypatch.setattr(task_sampler, "make_split", counted_split)
    monkeypatch.setattr(Table, "__init__", counted_open)
    monkeypatch.setattr(
        Table, "finished", lambda self: pytest.fail("what is finished is known from the rows")
    )
    monkeypatch.setattr(scheduler, "_record", stop_before_training)
    with pytest.raises(pytest.fail.Exception, match="the start is over"):
        rc.train(runs, tmp_path / "out")
    (reads,) = reads_at_start
    assert {name: reads[name] for name in before} == dict.fromkeys(before, 1)
    assert max(reads.values()) == 1
    assert num_splits == {0: 1, 1: 1, 2: 1, 3: 1}
    assert len(opened) == 1


def test_tasks_are_split_once_from_the_check_to_the_program(monkeypatch):
    num_splits = collections.Counter()
    make_split = task_sampler.make_split

    def counted_split(run, modules):
        num_splits.update([run.seed])
        return make_split(run, modules)

    monkeypatch.setattr(task_sampler, "make_split", counted_split)
    rc.train(rc.sweep(TINY, seed=range(3), recipe__learning_rate=[0.01, 0.02]))
    assert num_splits == {0: 1, 1: 1, 2: 1}, "runs that differ in their recipe share a split"
    num_splits.clear()
    rc.fit(TINY)
    assert num_splits == {0: 1}


def test_a_refused_sweep_leaves_no_folder_and_no_note(tmp_path):
    def refuse():
        raise rc.InputError("no such machine")

    with pytest.raises(rc.InputError, match="max_width"):
        rc.train(TINY, tmp_path / "out", max_width=0)
    with pytest.raises(rc.InputError, match="no such machine"):
        scheduler.complete([TINY], Table(tmp_path / "out"), open_executor=refuse, about={})
    assert not list(tmp_path.iterdir())
    rc.train(TINY, tmp_path / "out")
    meta = Table(tmp_path / "out").meta()
    more = rc.sweep(TINY, seed=range(2))
    with pytest.raises(rc.InputError, match="no such machine"):
        scheduler.complete(
            more, Table(tmp_path / "out"), open_executor=refuse, about={"command": "another"}
        )
    assert Table(tmp_path / "out").meta() == meta
