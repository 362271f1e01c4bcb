import itertools
from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import faithful_recipe, scaling_law
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import identity, structure
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "scaling_law.parquet"
CLAIMS = [
    f"{model}: {name}"
    for model in ("MLP", "Transformer")
    for name in ("power", "largest M", "each M")
]
RATIOS = [
    f"{name}, R2 {target}"
    for name in ("ratio", "ratio at every M")
    for target in ("0.95", "0.9", "0.97")
]


def total_of(num_hot, num_modules):
    return sum(comb(num_modules, k) for k in range(1, num_hot + 1))


def rows_of(law, hots=(4, 5), modules=range(10, 30, 2), models=("MLP",)):
    """Rows whose R2 crosses .95 at the tasks of `law(K, M, N, seed)`, slightly later by seed."""
    rows = []
    for model, k, m, seed in itertools.product(models, hots, modules, range(3)):
        total = total_of(k, m)
        needed = law(k, m, total, seed) * 1.02 ** (seed + 0.1 * m)
        for num_train in {round(needed * factor) for factor in (0.3, 0.7, 1.5, 4.0)}:
            row = {
                "run": f"{len(rows)}",
                "model": model,
                "family.num_hot": k,
                "family.num_modules": m,
                "seed": seed,
                "num_steps": 5000,
                "step": 5000,
                "support/num_train": num_train,
                "support/num_test": total - num_train,
                "test/r2": 0.95 + 0.1 * np.log(num_train / needed),
            }
            rows.append(row)
    return pd.DataFrame(rows)


def half_power(k, m, total, seed):
    return 10 * total**0.5


def linear_share(k, m, total, seed):
    return total / 10


def exponential(k, m, total, seed):
    return 20 * np.exp(m / 10)


def power_by_num_hot(k, m, total, seed):
    return 10 * total**0.5 if k == 4 else total**1.1 / 10


def power_by_seed(k, m, total, seed):
    return total ** (0.9, 0.95, 1.06)[seed]


def share_except_at_the_fewest_modules(k, m, total, seed):
    return total / 10 * (2.5 if m == 10 else 1)


def claims_by_name(rows):
    return {claim.name: claim for claim in claims_of(scaling_law, rows)}


def usable(rows, model, target):
    return scaling_law.usable_crossings(scaling_law.prepare(rows), model, target)


def test_1236_of_the_2700_published_runs_are_impossible():
    runs = scaling_law.runs("full")
    impossible = scaling_law.impossible("full")
    spared = scaling_law.spared("full")
    assert (len(runs), len(spared), len(impossible)) == (651, 813, 1236)
    assert len({*runs, *spared}) == 1464
    assert len(set(map(structure, runs))) == 30 + 30, "a program for each student, M and K"
    sizes = [(type(run.model).__name__, -run.family.num_modules) for run in runs]
    assert sizes == sorted(sizes), "student by student, the largest first"
    assert {type(run.support).__name__ for run in runs} == {"Balanced"}
    assert {type(run.model).__name__ for run in runs} == {"MLP", "Transformer"}


@pytest.mark.parametrize(("model", "fewest", "most"), [("MLP", 1, 20), ("Transformer", 0.75, 9)])
def test_runs_have_few_train_tasks_per_module(model, fewest, most):
    def tasks_per_module(runs):
        of_model = [run for run in runs if type(run.model).__name__ == model]
        return [
            run.family.num_tasks * (1 - run.frac_test) / run.family.num_modules for run in of_model
        ]

    trained = tasks_per_module(scaling_law.runs("full"))
    assert min(trained) >= fewest
    assert max(trained) <= most
    spared = tasks_per_module(scaling_law.spared("full"))
    assert min(spared) < fewest, "the rest of the grid is wider"
    assert max(spared) > most
    assert not scaling_law.spared("small")


def test_held_out_numbers_are_rounded_down():
    possible = [*scaling_law.runs("full"), *scaling_law.spared("full")]
    runs = [run for run in possible if (run.family.num_modules, run.family.num_hot) == (10, 4)]
    trained = sorted({385 - round(run.frac_test * 385) for run in runs}, reverse=True)
    # .9, .95, .98 and .99 of 385 tasks are 346.5, 365.75, 377.3 and 381.15. More held-out tasks
    # would leave two train tasks or fewer, which cannot connect 10 modules.
    assert trained == [39, 20, 8, 4]


def test_the_law_that_made_the_rows_is_recovered():
    rows = rows_of(half_power)
    summary = scaling_law.summary(rows)
    for k in (4, 5):
        assert summary[f"MLP, K={k}: power of the total"] == pytest.approx(0.5, abs=0.03)
    assert summary["MLP, power of the total: error of log n at the two largest M"] < 0.03
    assert summary["MLP, share of the total: error of log n at the two largest M"] > 0.3
    claims = claims_by_name(rows)
    assert list(claims) == CLAIMS + RATIOS
    verdicts = [claim.verdict for claim in claims.values()]
    assert verdicts == ["reproduced"] * 3 + ["not yet run"] * (3 + 6)
    low, high = claims["MLP: power"].interval
    assert low - 1e-9 <= claims["MLP: power"].measured <= high + 1e-9
    assert claims["MLP: power"].note == "worst of R2 0.9, 0.95, 0.97; K = 4, 5"


def test_a_fixed_share_is_not_sub_linear():
    claims = claims_by_name(rows_of(linear_share))
    assert claims["MLP: power"].measured == pytest.approx(1.0, abs=0.03)
    assert claims["MLP: power"].verdict == "not reproduced"


@pytest.mark.parametrize(
    ("law", "power", "verdict", "why"),
    [
        (power_by_num_hot, 1.1, "not reproduced", "the largest power of all K counts"),
        (power_by_seed, 0.97, "inconclusive", "other seeds could give more than 1"),
        (
            share_except_at_the_fewest_modules,
            0.88,
            "confounded",
            "a fixed share predicts the largest M better",
        ),
    ],
)
def test_the_power_must_be_below_1_for_every_k_and_beat_a_fixed_share(law, power, verdict, why):
    claim = claims_by_name(rows_of(law))["MLP: power"]
    assert claim.measured == pytest.approx(power, abs=0.03)
    assert claim.verdict == verdict, why


def test_the_exponential_is_compared_with_the_worse_of_the_other_laws():
    # With up to 6 of 6 to 14 modules a power of the total is far from a polynomial in M.
    cells = usable(rows_of(half_power, hots=(6,), modules=range(6, 16, 2)), "MLP", 0.95)
    laws = (scaling_law.EXPONENTIAL, scaling_law.POLYNOMIAL, scaling_law.POWER)
    exponential, polynomial, power = (
        scaling_law.prediction_error(cells, law, extrapolate=True) for law in laws
    )
    assert power < 0.02 < polynomial < exponential
    margin = scaling_law.exponential_margin(cells, extrapolate=True)
    assert margin == pytest.approx(exponential - polynomial)


def test_a_claim_must_hold_for_every_target():
    rows = rows_of(lambda k, m, total, seed: 2 * total**0.5)
    # No curve is above .96, except at half of the tasks, where all reach 1.
    flat = rows.assign(**{"test/r2": rows["test/r2"].clip(upper=0.96)})
    ends = rows.groupby(["family.num_hot", "family.num_modules", "seed"]).head(1)
    total = ends["support/num_train"] + ends["support/num_test"]
    half = total // 2
    ends = ends.assign(
        run="end of " + ends["run"],
        **{"support/num_train": half, "support/num_test": total - half, "test/r2": 1.0},
    )
    late = pd.concat([flat, ends])
    assert claims_by_name(rows)["MLP: power"].verdict == "reproduced"
    power_95 = scaling_law.largest_power(usable(late, "MLP", 0.95))
    power_97 = scaling_law.largest_power(usable(late, "MLP", 0.97))
    assert power_95 == pytest.approx(0.5, abs=0.05)
    assert power_97 > 0.6, "tasks needed for R2 .97 grow faster"
    assert claims_by_name(late)["MLP: power"].measured == power_97, "the worst target counts"


def test_exponential_growth_is_distinguished_from_the_other_laws():
    claims = claims_by_name(rows_of(exponential))
    assert claims["MLP: largest M"].verdict == claims["MLP: each M"].verdict == "not reproduced"
    assert claims["MLP: largest M"].interval[1] < 0


def test_unknown_numbers_are_left_out_and_counted():
    rows = rows_of(half_power)
    never = (rows["family.num_modules"] == 28) & (rows["seed"] == 1)
    at_once = rows["family.num_modules"] == 10
    scores = rows["test/r2"].mask(never, 0.5).mask(at_once, 0.99)
    changed = rows.assign(**{"test/r2": scores})
    summary = scaling_law.summary(changed)
    num_curves = [
        summary[f"MLP: curves that reach the target {state}"]
        for state in ("crossed", "never", "at once")
    ]
    assert num_curves == [52, 2, 6]
    power = summary["MLP, K=4: power of the total"]
    assert power == pytest.approx(0.5, abs=0.03), "unknown numbers do not change it"
    others = rows[rows["family.num_modules"].between(12, 26)]
    measured = claims_by_name(changed)["MLP: power"].measured
    assert measured == claims_by_name(others)["MLP: power"].measured


def test_a_part_of_the_grid_gives_figures_and_four_m_give_a_verdict():
    three = rows_of(half_power, hots=(6,), modules=(24, 26, 28), models=("Transformer",))
    verdicts = {claim.verdict for claim in claims_of(scaling_law, three)}
    assert verdicts == {"not yet run"}, "three M cannot judge a law"
    assert list(figures_of(scaling_law, three)) == ["Transformer-needed", "Transformer-6-active"]
    # The grid has 15 fractions for each M and seed.
    possible = [*scaling_law.runs("full"), *scaling_law.spared("full")]
    runs = [run for run in possible if run.family.num_hot == 6 and run.family.num_modules >= 24]
    num_impossible = scaling_law.summary(three)["Transformer: impossible runs, left out"]
    assert num_impossible == 3 * 3 * 15 - len(runs) / 2
    four = rows_of(half_power, hots=(6,), modules=(22, 24, 26, 28), models=("Transformer",))
    assert claims_by_name(four)["Transformer: power"].verdict == "reproduced"
    assert {claim.verdict for claim in claims_of(scaling_law, None)} == {"not yet run"}


def students_that_need(factor_of):
    """Rows of both students; the MLP needs `factor_of(M)` times as many tasks."""
    frames = []
    for model in ("MLP", "Transformer"):

        def needed(k, m, total, seed, is_mlp=model == "MLP"):
            return 10 * total**0.5 * (factor_of(m) if is_mlp else 1)

        frames.append(rows_of(needed, hots=(5, 6), models=(model,)))
    rows = pd.concat(frames, ignore_index=True)
    return rows.assign(run=rows["model"] + rows["run"])


def ratio_claims(rows):
    final = scaling_law.prepare(rows)
    declared = [claim for claim in scaling_law.CLAIMS if claim.name.startswith("ratio")]
    return {claim.name: claim.judge(final) for claim in declared}


def test_the_ratio_of_tasks_needed_is_recovered_at_every_target():
    rows = students_that_need(lambda m: 1.4)
    claims = ratio_claims(rows)
    for name in RATIOS:
        assert claims[name].measured == pytest.approx(1.4, rel=0.03)
        assert claims[name].verdict == "reproduced"
    note = claims["ratio, R2 0.95"].note
    assert note.startswith("60 of 60 pairs of curves are compared; in 0 pairs only")
    assert "ratio" in figures_of(scaling_law, rows)
    summary = scaling_law.summary(rows)
    assert summary["MLP over transformer, R2 0.9, M=28"] == pytest.approx(1.4, rel=0.03)


def test_the_ratio_is_judged_over_all_m_and_at_every_m():
    equal = ratio_claims(students_that_need(lambda m: 1.0))
    assert {equal[name].verdict for name in RATIOS} == {"not reproduced"}
    fewer = ratio_claims(students_that_need(lambda m: 0.7 if m == 10 else 1.5))
    assert fewer["ratio, R2 0.95"].verdict == "reproduced"
    assert fewer["ratio at every M, R2 0.95"].measured == pytest.approx(0.7, rel=0.03)
    assert fewer["ratio at every M, R2 0.95"].verdict == "not reproduced"


def test_a_transformer_that_never_reaches_the_target_counts_against_the_ratio():
    rows = students_that_need(lambda m: 1.4)
    fails = (rows["model"] == "Transformer") & (rows["family.num_modules"] == 28)
    rows["test/r2"] = rows["test/r2"].mask(fails, 0.5)
    assert ratio_claims(rows)["ratio, R2 0.95"].verdict == "not reproduced"
    both_fail = rows["family.num_modules"] == 28
    rows["test/r2"] = rows["test/r2"].mask(both_fail, 0.5)
    assert ratio_claims(rows)["ratio, R2 0.95"].verdict == "reproduced"


def test_figures_show_at_most_six_curves_and_three_laws():
    drawn = figures_of(scaling_law, rows_of(half_power))
    assert list(drawn) == ["MLP-needed", "MLP-4-active", "MLP-5-active"]
    curves = {trace.name for trace in drawn["MLP-4-active"].data}
    assert curves == {f"M = {m}" for m in (10, 14, 18, 22, 26)}
    legend = [trace.name for trace in drawn["MLP-needed"].data if trace.showlegend is not False]
    assert legend == ["K = 4", "K = 5", "power of the total", "polynomial in M", "exponential in M"]


def check_tiny(rows):
    assert rows["support/balanced"].all()
    assert len(figures_of(scaling_law, rows)) == 4
    verdicts = {claim.verdict for claim in claims_of(scaling_law, rows)}
    assert verdicts == {"not yet run"}, "one M cannot judge a law"
    assert scaling_law.summary(rows)["Transformer: curves that reach the target never"] == 1


def earlier(run):
    """The run of the first table with the same student and tasks."""
    is_mlp = isinstance(run.model, rc.MLP)
    recipe = rc.Fast(0.05 if is_mlp else 0.02, 0.02, vector_rate=1.0)
    return replace(run, recipe=recipe, num_steps=5000)


def test_the_students_have_the_faithful_recipes():
    runs = scaling_law.runs("full")
    trained_by = {(type(run.model).__name__, run.recipe, run.num_steps) for run in runs}
    faithful = {
        (type(run.model).__name__, run.recipe, run.num_steps)
        for run in faithful_recipe.fast()
        if run.model in (rc.MLP(), rc.Transformer()) and isinstance(run.family, rc.Hyperteacher)
        if isinstance(run.encoding, rc.Identity)
    }
    assert trained_by == faithful
    final = pd.DataFrame({"num_steps": [run.num_steps for run in runs]})
    assert scaling_law.scale_of(final) == "full"


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    scale = table.meta()["scale"]
    wanted = list(map(earlier, scaling_law.runs(scale)))
    spared = list(map(earlier, scaling_law.spared(scale)))
    assert set(rows["run"]) <= set(map(identity, [*wanted, *spared]))
    assert set(map(identity, wanted)) <= set(rows["run"]), "the whole sweep"
    assert not rows["diverged"].any()
    assert rows["support/balanced"].all()
    assert rows["support/connected"].all()
    claims = claims_by_name(rows)
    assert {name: claims[name].verdict for name in CLAIMS} == {
        "MLP: power": "reproduced",
        "MLP: largest M": "inconclusive",  # its error is larger, but not for every draw of seeds
        "MLP: each M": "inconclusive",  # its error is larger for R2 .95 and .97, not for .9
        "Transformer: power": "reproduced",
        "Transformer: largest M": "inconclusive",  # seeds differ by more than the laws do
        "Transformer: each M": "inconclusive",
    }
    # Fewer tasks for a transformer, on average and with many modules, but not at every M.
    for target in ("0.9", "0.95"):
        assert claims[f"ratio, R2 {target}"].verdict == "reproduced"
    assert claims["ratio at every M, R2 0.9"].verdict == "not reproduced"
    assert claims["ratio at every M, R2 0.95"].verdict == "inconclusive"
    # At R2 .97 some transformers do not reach the target with nine tasks per module.
    assert claims["ratio, R2 0.97"].verdict == "not reproduced"
    summary = scaling_law.summary(rows)
    for k in (4, 5, 6):
        mlp = summary[f"MLP, K={k}: power of the total"]
        transformer = summary[f"Transformer, K={k}: power of the total"]
        assert transformer < mlp, "an additional module costs a transformer fewer tasks"
    margins = [
        scaling_law.exponential_margin(usable(rows, "MLP", target), extrapolate=False)
        for target in (0.9, 0.95)
    ]
    assert margins[0] < 0 < margins[1], "which law is the worst depends on the target"
    assert summary["MLP: curves that reach the target crossed"] == 87
    assert summary["Transformer: curves that reach the target crossed"] == 89
