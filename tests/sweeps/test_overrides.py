from dataclasses import dataclass, replace
from typing import Literal

import pytest

from recombine.basics.errors import InputError
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.identity import Identity
from recombine.parts.encodings.orthogonal import Orthogonal
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.field_checks import check
from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.paper import Paper
from recombine.parts.supports.listed import Listed
from recombine.sweeps.overrides import apply, reseed, value
from recombine.sweeps.run import Run, sweep


@dataclass(frozen=True)
class Flipped:
    """An encoding of the user's own, with a field of every plain kind."""

    upside_down: bool = True
    name: str = "flipped"
    mode: Literal["plain", "fancy"] = "plain"
    signs: tuple[int, ...] = (1, -1)

    def __post_init__(self):
        check(self)

    def num_tokens(self, family):
        return 0

    def init(self, key, family):
        return ()

    def encode(self, params, key, task, examples):
        return -task


@dataclass(frozen=True)
class Counted:
    """A diagnostic of the user's own."""

    bins: tuple[int, ...] = (1, 2)
    label: str = "Counted"

    def measure(self, key, lab):
        return {}


OWN = {"encoding": {"Flipped": Flipped}, "diagnostic": {"Counted": Counted}}


def one(*settings, run=Run()):  # noqa: B008
    (found,) = apply([run], settings, OWN)
    return found


@pytest.mark.parametrize(
    ("setting", "run"),
    [
        ("seed=3", Run(seed=3)),
        ("num_steps = 2000", Run(num_steps=2000)),
        ("frac_test=.5", Run(frac_test=0.5)),
        ("recipe.learning_rate=1e-3", Run(recipe=replace(Run().recipe, learning_rate=0.001))),
        ("recipe.learning_rate=1", Run(recipe=replace(Run().recipe, learning_rate=1.0))),
        ("model.widths=256,256", Run(model=MLP(widths=(256, 256)))),
        ("model.widths=256x128x64", Run(model=MLP(widths=(256, 128, 64)))),
        ("model.widths=256", Run(model=MLP(widths=(256,)))),
        ("model.widths=(256, 256)", Run(model=MLP(widths=(256, 256)))),
        ("model.tokens=embed", Run(model=MLP(widths=(128, 128, 128), tokens="embed"))),
        ("family.weights='khot'", Run(family=Hyperteacher(num_modules=8, weights="khot"))),
        ("encoding=FewShot", Run(encoding=FewShot())),
        ("encoding=FewShot()", Run(encoding=FewShot())),
        ("encoding=FewShot(num_pairs=20)", Run(encoding=FewShot(20))),
        (
            "family=Hyperteacher(num_modules=4, weights='khot')",
            Run(family=Hyperteacher(4, weights="khot")),
        ),
        (
            "support=Listed(combinations=((0,1),(2,)))",
            Run(support=Listed(combinations=((0, 1), (2,)))),
        ),
        ("recipe=Paper(learning_rate=1e-2)", Run(recipe=Paper(learning_rate=0.01))),
        ("diagnostics=", Run(diagnostics=())),
        (
            "diagnostics=LinearDecodability(l2=0.1, num_fit=9)",
            Run(diagnostics=(LinearDecodability(l2=0.1, num_fit=9),)),
        ),
        (
            "diagnostics=LinearDecodability, LinearDecodability(paper=True)",
            Run(diagnostics=(LinearDecodability(), LinearDecodability(paper=True))),
        ),
        (
            "diagnostics=Counted(label='a, b', bins=(3, 4)), LinearDecodability",
            Run(diagnostics=(Counted((3, 4), "a, b"), LinearDecodability())),
        ),
        ("encoding=Flipped", Run(encoding=Flipped())),
        ("encoding=Flipped(upside_down=False)", Run(encoding=Flipped(upside_down=False))),
    ],
)
def test_every_form(setting, run):
    assert one(setting) == run


@pytest.mark.parametrize(
    ("setting", "encoding"),
    [
        ("encoding.upside_down=false", Flipped(upside_down=False)),
        ("encoding.upside_down=True", Flipped()),
        ("encoding.name=a=b", Flipped(name="a=b")),
        ("encoding.name=12", Flipped(name="12")),
        ("encoding.name=true", Flipped(name="true")),
        ("encoding.mode=fancy", Flipped(mode="fancy")),
        ("encoding.signs=-1,-1", Flipped(signs=(-1, -1))),
    ],
)
def test_fields_of_a_users_own_part(setting, encoding):
    assert one(setting, run=Run(encoding=Flipped())).encoding == encoding


def test_whole_numbers_become_floats_where_they_should():
    found = one("recipe.learning_rate=1").recipe.learning_rate
    assert (found, type(found)) == (1.0, float)


def test_later_settings_reach_into_parts_that_earlier_ones_put_there():
    assert one("encoding=FewShot", "encoding.num_pairs=20").encoding == FewShot(20)
    assert one("seed=1", "seed=2").seed == 2


def test_settings_are_applied_together():
    # Neither order would do one at a time: 1000 steps are no multiple of 3, nor are 30 steps one of 4.
    assert (
        one("num_steps=30", "num_evals=3").num_steps,
        one("num_evals=3", "num_steps=30").num_evals,
    ) == (30, 3)
    assert one("family.num_hot=10", "family.num_modules=16").family == Hyperteacher(16, 10)


def test_a_setting_may_apply_to_some_runs_only():
    runs = sweep(Run(), encoding=[Identity(), FewShot(), FewShot(30)])
    found = apply(runs, ["encoding.num_pairs=20"])
    assert [run.encoding for run in found] == [Identity(), FewShot(20)]
    with pytest.raises(InputError, match=r"Identity has no field 'num_pairs'"):
        apply(runs[:1], ["encoding.num_pairs=20"])


def test_runs_that_become_equal_are_kept_once_and_in_order():
    runs = sweep(Run(), encoding=[Orthogonal(), Identity()], seed=range(3))
    found = apply(runs, ["seed=7"])
    assert found == [Run(encoding=Orthogonal(), seed=7), Run(encoding=Identity(), seed=7)]
    assert apply(runs, []) == runs


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.width=256", "MLP has no field 'width': did you mean widths"),
        ("modle.widths=256", "Run has no field 'modle': did you mean model"),
        ("model.widths.0=256", "tuple has no field '0'"),
        ("encoding=FewShots", "there is no encoding 'FewShots': did you mean FewShot"),
        ("encoding=MLP", "there is no encoding 'MLP'"),
        ("encoding=", "there is no encoding ''"),
        ("support=Unpopulr", "there is no support 'Unpopulr': did you mean Unpopular"),
        (
            "encoding=FewShot(num_pair=20)",
            "FewShot has no field 'num_pair': did you mean num_pairs",
        ),
        ("encoding=FewShot(20)", r"cannot read 'FewShot\(20\)': write FewShot\(field=value"),
        ("encoding=FewShot(num_pairs=)", "cannot read"),
        ("encoding=FewShot(num_pairs=open)", "cannot read"),
        ("encoding=FewShot(num_pairs=20", "there is no encoding"),
        ("encoding=FewShot(num_pairs=0)", r"FewShot\.num_pairs must be at least 1"),
        ("diagnostics=LinearDecodability,,", "cannot read"),
        ("diagnostics=LinearDecodability(", "cannot read"),
        ("diagnostics=Linear", "there is no diagnostic 'Linear'"),
        ("seed=three", r"Run\.seed must be a whole number, got 'three'"),
        ("seed=1.5", r"Run\.seed must be a whole number"),
        ("seed=", r"Run\.seed must be a whole number, got ''"),
        ("seed=true", r"Run\.seed must be a whole number, got True"),
        ("model.widths=256,wide", r"MLP\.widths must be whole numbers, 128,128 say"),
        ("model.widths=", r"MLP\.widths must be whole numbers, 128,128 say"),
        ("model.widths=0", r"MLP\.widths must all be at least 1"),
        (
            "family.weights=binary",
            r"Hyperteacher\.weights must be one of 'discrete', 'khot', 'continuous'",
        ),
        ("recipe.learning_rate=1e-3x", r"Fast\.learning_rate must be a number"),
        ("frac_test=nan", r"Run\.frac_test must be a number"),
        ("num_steps=__import__('os')", r"Run\.num_steps must be a whole number"),
        ("num_evals=3", "num_steps=1000 must be a multiple of num_evals=3"),
        ("seed", r"a setting reads field=value, .* got 'seed'"),
        ("=3", "a setting reads field=value"),
        ("", "a setting reads field=value"),
    ],
)
def test_mistakes_are_told_with_what_was_probably_meant(setting, message):
    with pytest.raises(InputError, match=message):
        one(setting)


def test_a_users_part_is_only_known_where_it_is_given():
    with pytest.raises(InputError, match="there is no encoding 'Flipped'"):
        apply([Run()], ["encoding=Flipped"])


def test_values_follow_the_annotation():
    assert value("true", bool, {}) is True
    assert value("False", bool, {}) is False
    assert value("true", str, {}) == "true"
    assert value("1e-3", float, {}) == 0.001
    assert value("-3", int, {}) == -3


def test_reseeding_replaces_the_seeds_of_a_sweep():
    runs = sweep(Run(), encoding=[Identity(), FewShot()], seed=[4, 5, 6])
    found = reseed(runs, 2)
    assert [(run.encoding, run.seed) for run in found] == [
        (Identity(), 0),
        (Identity(), 1),
        (FewShot(), 0),
        (FewShot(), 1),
    ]
    assert reseed([], 3) == []


@pytest.mark.parametrize("num_seeds", [0, -1])
def test_reseeding_needs_a_seed(num_seeds):
    with pytest.raises(InputError, match=f"at least 1, got {num_seeds}"):
        reseed([Run()], num_seeds)
