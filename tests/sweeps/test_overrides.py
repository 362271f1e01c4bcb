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
from recombine.sweeps.overrides import apply, parse_value, reseed
from recombine.sweeps.run import Run, sweep


@dataclass(frozen=True)
class Flipped:
    """An encoding of the user, with a field of every plain type."""

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
    """A diagnostic of the user."""

    bins: tuple[int, ...] = (1, 2)
    label: str = "Counted"

    def measure(self, key, lab):
        return {}


USER_PARTS = {"encoding": {"Flipped": Flipped}, "diagnostic": {"Counted": Counted}}


def changed(*settings, run=Run()):  # noqa: B008
    (result,) = apply([run], settings, USER_PARTS)
    return result


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
def test_every_form_of_a_setting(setting, run):
    assert changed(setting) == run


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
def test_fields_of_a_users_part(setting, encoding):
    assert changed(setting, run=Run(encoding=Flipped())).encoding == encoding


def test_whole_numbers_become_floats_where_the_field_is_a_float():
    learning_rate = changed("recipe.learning_rate=1").recipe.learning_rate
    assert (learning_rate, type(learning_rate)) == (1.0, float)


def test_a_setting_may_change_a_field_of_a_part_that_an_earlier_one_set():
    assert changed("encoding=FewShot", "encoding.num_pairs=20").encoding == FewShot(20)
    assert changed("seed=1", "seed=2").seed == 2


def test_settings_are_applied_together():
    # One after the other would fail in either order: 1000 is no multiple of 3, and 30 none of 4.
    assert (
        changed("num_steps=30", "num_evals=3").num_steps,
        changed("num_evals=3", "num_steps=30").num_evals,
    ) == (30, 3)
    assert changed("family.num_hot=10", "family.num_modules=16").family == Hyperteacher(16, 10)


def test_a_setting_may_apply_to_some_runs_only():
    runs = sweep(Run(), encoding=[Identity(), FewShot(), FewShot(30)])
    changed_runs = apply(runs, ["encoding.num_pairs=20"])
    assert [run.encoding for run in changed_runs] == [Identity(), FewShot(20)]
    with pytest.raises(InputError, match=r"Identity has no field 'num_pairs'"):
        apply(runs[:1], ["encoding.num_pairs=20"])


def test_runs_that_become_equal_are_kept_once_and_in_order():
    runs = sweep(Run(), encoding=[Orthogonal(), Identity()], seed=range(3))
    assert apply(runs, ["seed=7"]) == [
        Run(encoding=Orthogonal(), seed=7),
        Run(encoding=Identity(), seed=7),
    ]
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
        ("encoding=FewShot(20)", r"cannot parse 'FewShot\(20\)': write FewShot\(field=value"),
        ("encoding=FewShot(num_pairs=)", "cannot parse"),
        ("encoding=FewShot(num_pairs=open)", "cannot parse"),
        ("encoding=FewShot(num_pairs=20", "there is no encoding"),
        ("encoding=FewShot(num_pairs=0)", r"FewShot\.num_pairs must be at least 1"),
        ("diagnostics=LinearDecodability,,", "cannot parse"),
        ("diagnostics=LinearDecodability(", "cannot parse"),
        ("diagnostics=Linear", "there is no diagnostic 'Linear'"),
        ("seed=three", r"Run\.seed must be a whole number, got 'three'"),
        ("seed=1.5", r"Run\.seed must be a whole number"),
        ("seed=", r"Run\.seed must be a whole number, got ''"),
        ("seed=true", r"Run\.seed must be a whole number, got True"),
        (
            "model.widths=256,wide",
            r"MLP\.widths must be a tuple of whole numbers, for example \(128, 128\)",
        ),
        (
            "model.widths=",
            r"MLP\.widths must be a tuple of whole numbers, for example \(128, 128\)",
        ),
        ("model.widths=0", r"MLP\.widths must all be at least 1"),
        (
            "family.weights=binary",
            r"Hyperteacher\.weights must be one of 'discrete', 'khot', 'continuous'",
        ),
        ("recipe.learning_rate=1e-3x", r"Fast\.learning_rate must be a number"),
        ("frac_test=nan", r"Run\.frac_test must be a number"),
        ("num_steps=__import__('os')", r"Run\.num_steps must be a whole number"),
        ("num_evals=3", "num_steps=1000 must be a multiple of num_evals=3"),
        ("seed", r"a setting must have the form field=value, .* got 'seed'"),
        ("=3", "a setting must have the form field=value"),
        ("", "a setting must have the form field=value"),
    ],
)
def test_messages_suggest_what_was_probably_meant(setting, message):
    with pytest.raises(InputError, match=message):
        changed(setting)


def test_a_users_part_must_be_passed():
    with pytest.raises(InputError, match="there is no encoding 'Flipped'"):
        apply([Run()], ["encoding=Flipped"])


def test_values_follow_the_annotation():
    assert parse_value("true", bool, {}) is True
    assert parse_value("False", bool, {}) is False
    assert parse_value("true", str, {}) == "true"
    assert parse_value("1e-3", float, {}) == 0.001
    assert parse_value("-3", int, {}) == -3


def test_reseeding_replaces_the_seeds_of_a_sweep():
    runs = sweep(Run(), encoding=[Identity(), FewShot()], seed=[4, 5, 6])
    assert [(run.encoding, run.seed) for run in reseed(runs, 2)] == [
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
