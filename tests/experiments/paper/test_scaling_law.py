from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import scaling_law
from recombine.sweeps.run import identity, structure

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "scaling_law.parquet"
CLAIMS = [
    f"{model}: {name}"
    for model in ("MLP", "Transformer")
    for name in ("power", "largest M", "each M")
]


def total_of(num_hot, num_modules):
    return sum(comb(num_modules, k) for k in range(1, num_hot + 1))


def rows_of(law, hots=(4, 5), modules=range(10, 30, 2), models=("MLP",)):
    """Rows whose R2 crosses .95 where `law(K, M, N, seed)` says, a little later for each seed."""
    made = []
    for model, k, m, seed in (
        (a, b, c, d) for a in models for b in hots for c in modules for d in range(3)
    ):
        total = total_of(k, m)
        wanted = law(k, m, total, seed) * 1.02 ** (seed + 0.1 * m)
        for num_train in {round(wanted * factor) for factor in (0.3, 0.7, 1.5, 4.0)}:
            row = {
                "model": model,
                "family.num_hot": k,
                "family.num_modules": m,
                "seed": seed,
                "num_steps": 5000,
            }
            row |= {
                "support/num_train": num_train,
                "support/num_test": total - num_train,
                "step": 5000,
            }
            made.append(
                row | {"run": f"{len(made)}", "test/r2": 0.95 + 0.1 * np.log(num_train / wanted)}
            )
    return pd.DataFrame(made)


def half_power(k, m, total, seed):
    return 10 * total**0.5


def linear_share(k, m, total, seed):
    return total / 10


def exponential(k, m, total, seed):
    return 20 * np.exp(m / 10)


def other_powers(k, m, total, seed):
    return 10 * total**0.5 if k == 4 else total**1.1 / 10


def unsteady_power(k, m, total, seed):
    return total ** (0.9, 0.95, 1.06)[seed]


def share_but_for_the_fewest_modules(k, m, total, seed):
    return total / 10 * (2.5 if m == 10 else 1)


def claims_of(rows):
    return {claim.name: claim for claim in scaling_law.claims(rows)}


def test_1236_of_the_2700_published_runs_are_impossible():
    runs, impossible, spared = (
        scaling_law.runs("full"),
        scaling_law.impossible("full"),
        scaling_law.spared("full"),
    )
    assert (len(runs), len(spared), len(impossible)) == (651, 813, 1236)
    assert len({*runs, *spared}) == 1464
    assert len(set(map(structure, runs))) == 30 + 30, "a program for each student, M and K"
    sizes = [(type(run.model).__name__, -run.family.num_modules) for run in runs]
    assert sizes == sorted(sizes), "student by student, the largest first"
    assert {type(run.support).__name__ for run in runs} == {"Balanced"}
    assert {type(run.model).__name__ for run in runs} == {"MLP", "Transformer"}


@pytest.mark.parametrize(("model", "fewest", "most"), [("MLP", 1, 20), ("Transformer", 0.75, 9)])
def test_runs_have_few_train_tasks_a_module(model, fewest, most):
    def of_each(runs):
        mine = [run for run in runs if type(run.model).__name__ == model]
        return [run.family.num_tasks * (1 - run.frac_test) / run.family.num_modules for run in mine]

    found = of_each(scaling_law.runs("full"))
    assert min(found) >= fewest
    assert max(found) <= most
    assert min(of_each(scaling_law.spared("full"))) < fewest, "the rest of the grid is wider"
    assert max(of_each(scaling_law.spared("full"))) > most
    assert not scaling_law.spared("small")


def test_held_out_numbers_are_rounded_down():
    whole = [*scaling_law.runs("full"), *scaling_law.spared("full")]
    runs = [run for run in whole if (run.family.num_modules, run.family.num_hot) == (10, 4)]
    trained = sorted({385 - round(run.frac_test * 385) for run in runs}, reverse=True)
    # Of 385 tasks .9, .95, .98 and .99 are 346.5, 365.75, 377.3 and 381.15; two left could not link 10 modules.
    assert trained == [39, 20, 8, 4]


def test_the_law_that_made_the_rows_is_found():
    found = scaling_law.summary(rows_of(half_power))
    for k in (4, 5):
        assert found[f"MLP, K={k}: power of the total"] == pytest.approx(0.5, abs=0.03)
    assert found["MLP, power of the total: error of log n at the two largest M"] < 0.03
    assert found["MLP, share of the total: error of log n at the two largest M"] > 0.3
    claims = claims_of(rows_of(half_power))
    assert list(claims) == CLAIMS
    assert [claim.verdict for claim in claims.values()] == ["reproduced"] * 3 + ["not yet run"] * 3
    assert (
        claims["MLP: power"].interval[0]
        <= claims["MLP: power"].measured
        <= claims["MLP: power"].interval[1]
    )


def test_a_fixed_share_is_not_sub_linear():
    claims = claims_of(rows_of(linear_share))
    assert claims["MLP: power"].measured == pytest.approx(1.0, abs=0.03)
    assert claims["MLP: power"].verdict == "not reproduced"


@pytest.mark.parametrize(
    ("law", "power", "why"),
    [
        (other_powers, 1.1, "the largest power of all K counts"),
        (unsteady_power, 0.97, "with other seeds it could be above 1"),
        (share_but_for_the_fewest_modules, 0.88, "a fixed share predicts the largest M better"),
    ],
)
def test_a_power_must_be_below_1_for_all_and_beat_a_fixed_share(law, power, why):
    claim = claims_of(rows_of(law))["MLP: power"]
    assert claim.measured == pytest.approx(power, abs=0.03)
    assert claim.verdict == "not reproduced", why


def test_the_exponential_must_miss_more_than_the_worse_of_the_others():
    # With up to 6 of 6 to 14 modules a power of the total is far from a polynomial in M.
    known = scaling_law._known(rows_of(half_power, hots=(6,), modules=range(6, 16, 2)), "MLP")
    laws = scaling_law.EXPONENTIAL, scaling_law.POLYNOMIAL, scaling_law.POWER
    exponential, polynomial, power = (scaling_law.error(known, law, largest=True) for law in laws)
    assert power < 0.02 < polynomial < exponential
    assert scaling_law.margin(known, largest=True) == pytest.approx(exponential - polynomial)


def test_a_claim_must_hold_with_every_target():
    rows = rows_of(lambda k, m, total, seed: 2 * total**0.5)
    flat = rows["test/r2"].clip(upper=0.96)
    ends = rows.groupby(["family.num_hot", "family.num_modules", "seed"]).head(1)
    total = ends["support/num_train"] + ends["support/num_test"]
    ends = ends.assign(
        run="end of " + ends["run"],
        **{"support/num_train": total // 2, "support/num_test": total - total // 2},
    )
    share = pd.concat([rows.assign(**{"test/r2": flat}), ends.assign(**{"test/r2": 1.0})])
    assert claims_of(rows)["MLP: power"].verdict == "reproduced"
    usual, late = (
        scaling_law.power(scaling_law._known(share, "MLP", target)) for target in (0.95, 0.97)
    )
    assert usual == pytest.approx(0.5, abs=0.05)
    assert late > 0.6, "for R2 .97 tasks are needed that grow faster"
    assert claims_of(share)["MLP: power"].measured == late, "the worst target counts"


def test_exponential_growth_is_told_from_the_others():
    claims = claims_of(rows_of(exponential))
    assert claims["MLP: largest M"].verdict == claims["MLP: each M"].verdict == "not reproduced"
    assert claims["MLP: largest M"].interval[1] < 0


def test_what_is_not_known_is_left_out_and_counted():
    rows = rows_of(half_power)
    at_28 = rows["family.num_modules"] == 28
    never = rows.assign(**{"test/r2": rows["test/r2"].mask(at_28 & (rows["seed"] == 1), 0.5)})
    at_once = never.assign(
        **{"test/r2": never["test/r2"].mask(rows["family.num_modules"] == 10, 0.99)}
    )
    found = scaling_law.summary(at_once)
    states = [
        found[f"MLP: curves that reach the target {state}"]
        for state in ("crossed", "never", "at once")
    ]
    assert states == [52, 2, 6]
    assert found["MLP, K=4: power of the total"] == pytest.approx(0.5, abs=0.03), (
        "not bent by what is not known"
    )
    kept = rows[rows["family.num_modules"].between(12, 26)]
    assert claims_of(at_once)["MLP: power"].measured == claims_of(kept)["MLP: power"].measured


def test_a_part_of_the_grid_is_enough_to_look_at():
    few = rows_of(half_power, hots=(6,), modules=(24, 26, 28), models=("Transformer",))
    assert {claim.verdict for claim in scaling_law.claims(few)} == {"not yet run"}, (
        "three M cannot judge a law"
    )
    assert list(scaling_law.figures(few)) == ["Transformer-needed", "Transformer-6-active"]
    # 15 fractions for each M and seed, of which the runs of the grid are possible.
    whole = [*scaling_law.runs("full"), *scaling_law.spared("full")]
    runs = [r for r in whole if r.family.num_hot == 6 and r.family.num_modules >= 24]
    assert (
        scaling_law.summary(few)["Transformer: impossible runs, left out"]
        == 3 * 3 * 15 - len(runs) / 2
    )
    four = rows_of(half_power, hots=(6,), modules=(22, 24, 26, 28), models=("Transformer",))
    assert claims_of(four)["Transformer: power"].verdict == "reproduced"
    assert {claim.verdict for claim in scaling_law.claims(None)} == {"not yet run"}


def test_the_picture_shows_at_most_six_curves_and_three_laws():
    drawn = scaling_law.figures(rows_of(half_power))
    assert list(drawn) == ["MLP-needed", "MLP-4-active", "MLP-5-active"]
    assert {trace.name for trace in drawn["MLP-4-active"].data} == {
        f"M = {m}" for m in (10, 14, 18, 22, 26)
    }
    named = [trace.name for trace in drawn["MLP-needed"].data if trace.showlegend is not False]
    assert named == ["K = 4", "K = 5", "power of the total", "polynomial in M", "exponential in M"]


def test_tiny_runs_end_to_end():
    rows = rc.train([run for run in scaling_law.runs("tiny") if run.family.num_modules == 5])
    assert rows["support/balanced"].all()
    assert len(scaling_law.figures(rows)) == 4
    assert {claim.verdict for claim in scaling_law.claims(rows)} == {"not yet run"}, (
        "one M cannot judge a law"
    )
    assert scaling_law.summary(rows)["Transformer: curves that reach the target never"] == 1


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    scale = table.meta()["scale"]
    wanted, spared = scaling_law.runs(scale), scaling_law.spared(scale)
    assert set(rows["run"]) <= set(map(identity, [*wanted, *spared]))
    assert set(map(identity, wanted)) <= set(rows["run"]), "the whole sweep"
    assert not rows["diverged"].any()
    assert rows["support/balanced"].all()
    assert rows["support/connected"].all()
    assert {name: claim.verdict for name, claim in claims_of(rows).items()} == {
        "MLP: power": "reproduced",
        "MLP: largest M": "not reproduced",  # it misses more, but not with every choice of seeds
        "MLP: each M": "not reproduced",  # for R2 .95 and .97 it does, for .9 it does not
        "Transformer: power": "reproduced",
        "Transformer: largest M": "not reproduced",  # seeds differ by more than the laws do
        "Transformer: each M": "not reproduced",
    }
    found = scaling_law.summary(rows)
    powers = [
        [found[f"{model}, K={k}: power of the total"] for k in (4, 5, 6)]
        for model in ("MLP", "Transformer")
    ]
    assert all(few < many for many, few in zip(*powers, strict=True)), (
        "modules cost a transformer less"
    )
    margins = [
        scaling_law.margin(scaling_law._known(rows, "MLP", target), largest=False)
        for target in (0.9, 0.95)
    ]
    assert margins[0] < 0 < margins[1], "which law is the worst depends on the target"
    assert [
        found[f"{model}: curves that reach the target crossed"] for model in ("MLP", "Transformer")
    ] == [87, 89]
