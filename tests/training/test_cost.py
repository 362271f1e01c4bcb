"""The cost model, and that the committed model is the fit of the committed measurements."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.planning.bench import growth
from recombine.planning.estimate import estimate
from recombine.training import cost, device
from recombine.training.chunk import make_chunks
from recombine.training.cost import Cost, Work

ROOT = Path(__file__).parents[2]
TINY = rc.Run(
    family=rc.Hyperteacher(num_modules=6, num_hot=2, d_input=4, d_hidden=4, num_outputs=3),
    model=rc.MLP(widths=(8, 12)),
    num_tasks=8,
    num_points=4,
)


def test_flops_are_those_counted_by_hand():
    # Layers (8, 6 + 4), (12, 8), (3, 12). Forward, gradient of weights, gradient of activations:
    # 2 flops each.
    weights, points = 80 + 96 + 36, 8 * 4
    paper = Work.of(dataclasses.replace(TINY, recipe=rc.Paper()))
    assert paper.flops == 6 * points * weights
    # An iteration of Muon for a matrix X of short side m and long side n has three products:
    # X X^T, its square, and (...) X.
    muon = sum(
        5 * (2 * m * m * n + 2 * m * m * m + 2 * m * m * n) for m, n in [(8, 10), (8, 12), (3, 12)]
    )
    assert Work.of(TINY).flops == 6 * points * weights + muon
    assert Work.of(TINY).bytes == paper.bytes > 4 * weights


def test_work_grows_with_width_depth_and_batch():
    before = Work.of(TINY)
    larger_runs = [
        {"model": rc.MLP(widths=(16, 24))},
        {"model": rc.MLP(widths=(8, 12, 12))},
        {"num_tasks": 16},
        {"num_points": 8},
        {"encoding": rc.FewShot(num_pairs=5)},
    ]
    for changes in larger_runs:
        work = Work.of(dataclasses.replace(TINY, **changes))
        assert work.flops > before.flops, changes
        assert work.bytes > before.bytes, changes
    large, larger = (Work.of(rc.paper(model=rc.MLP(widths=(n,) * 3))) for n in (1024, 2048))
    assert 3.5 < larger.flops / large.flops < 4, "nearly with the square of the width"


def test_work_does_not_depend_on_seed_learning_rate_or_support():
    others = rc.sweep(TINY, seed=[0, 1], recipe__learning_rate=[0.01, 0.1], frac_test=[0.2, 0.4])
    others.append(dataclasses.replace(TINY, support=rc.Disconnected()))
    assert {Work.of(run) for run in others} == {Work.of(TINY)}


def cells(num=30):
    rng = np.random.default_rng(0)
    works = [Work(*(float(x) for x in pair)) for pair in np.exp(rng.uniform(12, 22, (num, 2)))]
    return works, [int(w) for w in 2 ** rng.integers(0, 8, num)]


@pytest.mark.parametrize(
    "planted", [(2e-4, 3e-5, 1e-13, 5e-13), (2e-4, 0.0, 1e-13, 0.0), (0.0, 3e-5, 0.0, 0.0)]
)
def test_planted_coefficients_are_recovered(planted):
    works, widths = cells()
    c0, c1, c2, c3 = planted
    seconds = [
        c0 / n + c1 + c2 * w.flops + c3 * w.bytes for w, n in zip(works, widths, strict=True)
    ]
    fitted = cost.fit(works, widths, seconds, 7.5)
    np.testing.assert_allclose(fitted.coefficients, planted, rtol=1e-6, atol=1e-20)
    assert fitted.compile_seconds == 7.5


def test_coefficients_are_never_negative():
    works, widths = cells()
    # More work takes less time, which no cost model can fit.
    seconds = [max(1e-6, 1e-3 - 1e-13 * w.flops) for w in works]
    coefficients = cost.fit(works, widths, seconds, 1.0).coefficients
    assert len(coefficients) == 4
    assert min(coefficients) >= 0


def test_errors_count_relative_to_the_time():
    # A short run measured twice, and a long one. The fit must minimize the relative errors of the
    # short run, whatever the long one takes.
    works, widths = [Work(1e6, 1.0), Work(1e6, 1.0), Work(1e12, 1.0)], [1, 1, 1]
    c = cost.fit(works, widths, [1e-3, 1.2e-3, 1.0], 0.0).coefficients
    first = c[0] + c[1] + c[2] * 1e6 + c[3]
    # (x / 1 - 1)^2 + (x / 1.2 - 1)^2 has its minimum at x = (1 + 1 / 1.2) / (1 + 1 / 1.44).
    assert first == pytest.approx(1e-3 * (1 + 1 / 1.2) / (1 + 1 / 1.44), rel=1e-3)


def test_seconds_of_a_chunk():
    model, work = Cost((0.8, 0.1, 2.0, 3.0), 9.0), Work.of(TINY)
    step = 0.8 / 4 + 0.1 + 2 * work.flops + 3 * work.bytes
    assert model.step(TINY, 4) == pytest.approx(step)
    runs = rc.sweep(
        dataclasses.replace(TINY, num_steps=50, num_evals=5, num_eval_tasks=10), seed=range(3)
    )
    # Three sides of 10 tasks with 16 points each, forward through 212 weights and 23 units. The
    # diagnostic counts as 3.5 forward passes.
    points = 3 * 10 * 16 * (1 + 3.5)
    evaluation = 0.8 / 4 + 0.1 + 2 * (2 * points * 212) + 3 * (4 * points * 23)
    assert model.chunk(runs, 4) == pytest.approx(3 * (50 * step + 5 * evaluation)), (
        "of four, without compilation"
    )
    waits = model._replace(diagnostic_seconds=7.0)
    assert waits.chunk(runs, 4) == pytest.approx(3 * (50 * step + 5 * evaluation) + 5 * 7)
    assert waits._replace(alone=True).chunk(runs, 4) == pytest.approx(
        3 * (50 * step + 5 * (evaluation + 7))
    )


def test_more_cores_are_faster(monkeypatch):
    monkeypatch.setattr(device, "num_cores", lambda: 8)
    assert cost.load().coefficients[1] == pytest.approx(cost.load("cpu").coefficients[1] / 4)
    assert cost.load().compile_seconds == cost.load("cpu").compile_seconds


def test_a_sweep_is_estimated_before_it_is_trained():
    runs = rc.sweep(TINY, model__widths=[(8, 12), (16, 12)], seed=range(40))
    model = cost.load("cpu")
    compile_seconds = 2 * model.compile_seconds
    seconds = compile_seconds
    for chunk in make_chunks(runs, 16):
        seconds += model.chunk(chunk.runs, chunk.width)

    alone = estimate(runs, "cpu", price=3.6)
    assert alone["seconds"] == pytest.approx(seconds)
    assert alone["device_seconds"] == pytest.approx(seconds)
    assert (alone["runs"], alone["chunks"], alone["programs"]) == (80, 6, 2)
    assert alone["compile_seconds"] == compile_seconds
    assert alone["price"] == pytest.approx(alone["seconds"] / 1000)
    assert alone["seconds_per_1000_runs"] == pytest.approx(seconds / 80 * 1000)

    by_three = estimate(runs, "cpu", num_workers=3)
    assert by_three["device_seconds"] == alone["device_seconds"]
    assert alone["seconds"] / 3 <= by_three["seconds"] < alone["seconds"]
    assert "price" not in by_three
    with pytest.raises(InputError, match="did you mean NVIDIA H200"):
        estimate(runs, "NVIDIA H2000")
    for wrong in ({"num_workers": 0}, {"price": -1.0}):
        with pytest.raises(InputError):
            estimate(runs, "cpu", **wrong)


def test_an_unknown_device_has_the_cost_of_the_nearest(monkeypatch):
    known = json.loads((ROOT / "recombine" / "training" / "cost.json").read_text())
    assert cost.load("NVIDIA H200").coefficients == tuple(known["NVIDIA H200"]["coefficients"])
    assert cost.load("Some CPU").coefficients == tuple(known["cpu"]["coefficients"])
    monkeypatch.setattr(device, "num_cores", lambda: known["cpu"]["cores"])
    assert cost.load() == cost.load("cpu")
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    assert cost.load("NVIDIA Z9000") == cost.load("NVIDIA H200")
    assert cost.load("NVIDIA Z9000") != cost.load("cpu")


@pytest.fixture(scope="module")
def measured() -> pd.DataFrame:
    table = pd.read_parquet(ROOT / "docs" / "results" / "bench-h200.parquet")
    return table[table["section"] == "Cost by size"].reset_index(drop=True)


@pytest.fixture
def grid(monkeypatch):
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    return growth.grid(300)


def refitted(cells, measured) -> Cost:
    """The model, fitted again to all rows but the last two: a held-out run, and its ratio."""
    seconds = measured["value"][:-2] / 1000
    return cost.fit([Work.of(run) for _, run, _ in cells], [n for *_, n in cells], seconds, 0.0)


def test_the_committed_table_holds_the_grid(grid, measured):
    cells, other = grid
    assert measured["name"][:-1].tolist() == [name for name, *_ in [*cells, other]]
    assert measured["unit"][:-1].unique().tolist() == ["s per run per 1,000 steps"]


def test_the_committed_model_is_the_fit_of_the_committed_table(grid, measured):
    fitted = refitted(grid[0], measured)
    committed = cost.load("NVIDIA H200")
    np.testing.assert_allclose(committed.coefficients, fitted.coefficients, rtol=0.01, atol=1e-18)
    assert committed.compile_seconds > 0


def test_the_model_predicts_the_fitted_runs_and_a_held_out_run(grid, measured):
    cells, (_, run, num_runs) = grid
    model = refitted(cells, measured)
    ratio = model.step(run, num_runs) / (measured["value"].iloc[-2] / 1000)
    assert 1 / 1.5 < ratio < 1.5
    assert measured["value"].iloc[-1] == pytest.approx(ratio, rel=1e-3), "as the bench reported"
    fitted = [model.step(run, n) for _, run, n in cells] / (measured["value"][:-2] / 1000)
    assert fitted.between(1 / 1.5, 1.5).all()
