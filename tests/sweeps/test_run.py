import dataclasses
import json
import math
import typing
from typing import Literal

import numpy as np
import pytest

from recombine.basics import user_files
from recombine.basics.errors import InputError
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.identity import Identity
from recombine.parts.encodings.interval_shuffle import IntervalShuffle
from recombine.parts.families.chain import Chain
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.families.preference_grid import PreferenceGrid
from recombine.parts.field_checks import field_types, is_knob
from recombine.parts.models.mlp import MLP
from recombine.parts.models.transformer import Transformer
from recombine.parts.recipes.fast import EARLIER_DEFAULT, Fast
from recombine.parts.recipes.paper import Paper
from recombine.parts.supports.balanced import Balanced
from recombine.sweeps import discovery
from recombine.sweeps.run import (
    NUMERICS,
    Run,
    describe,
    from_json,
    identity,
    knobs,
    paper,
    replace_fields,
    restore_knobs,
    structure,
    sweep,
    to_json,
)

PARTS = {name: cls for classes in discovery.parts().values() for name, cls in classes.items()} | {
    "Run": Run
}
USER_PART = '''
from dataclasses import dataclass

@dataclass(frozen=True)
class Doubled:
    """An encoding of the user."""
    factor: float = 2.0
    def num_tokens(self, family):
        return 0
    def init(self, key, family):
        return ()
    def encode(self, params, key, task, examples):
        return self.factor * task
'''


def every_run():
    """A run for every built-in part."""
    yield Run()
    for kind, classes in discovery.parts().items():
        for cls in classes.values():
            if kind == "diagnostic":
                family = Chain() if getattr(cls, "needs_graph", False) else Hyperteacher()
                yield Run(family, diagnostics=(cls(),))
            else:
                yield with_part(Run(), kind, cls())


def with_part(run, kind, part):
    """The run with another part; for a family of episodes, with one episode of points.

    A part that reads the steps or a view of a task has a family that has them.
    """
    changes = {kind: part}
    if kind != "family" and (getattr(part, "needs_nodes", False) or hasattr(part, "view")):
        changes["family"] = Chain()
    if hasattr(part, "horizon"):
        changes |= {"num_points": part.horizon, "num_eval_points": part.horizon}
    return dataclasses.replace(run, **changes)


def other_values(value, hint):
    """Candidates for another value of a field; some may not be valid."""
    if typing.get_origin(hint) is Literal:
        return [item for item in typing.get_args(hint) if item != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value, value - 1]
    if isinstance(value, float):
        return [value / 2 + 1e-6]
    if value is None:
        return [2.5, Run(seed=1)]
    return [value[:-1], ((0, 1, 2),)] if isinstance(value, tuple) else []


# A box of a puzzle must have as many cells as the grid has rows, so no field changes alone.
FIELDS_CHANGED_TOGETHER = {"Sudoku": {"size", "box_height", "box_width"}}


def variations(part):
    """The same part with one field changed, once for every field."""
    for name, hint in field_types(type(part)).items():
        for other in other_values(getattr(part, name), hint):
            try:
                changed = dataclasses.replace(part, **{name: other})
            except InputError:
                continue
            yield name, changed
            break


def test_structure_blanks_what_may_differ_within_one_program():
    base = Run(recipe=Fast(learning_rate=0.01))
    changes = [
        {"seed": 3},
        {"support": Balanced()},
        {"frac_test": 0.5},
        {"recipe": Fast(0.5, weight_decay=0.1)},
    ]
    same_structure = [dataclasses.replace(base, **fields) for fields in changes]
    other_structure = [
        Run(model=MLP(widths=(128, 128))),
        Run(num_steps=2000),
        Run(encoding=FewShot()),
        Run(recipe=Fast(ema=0.9)),
        Run(recipe=Fast(final=0.5)),
        Run(recipe=Paper()),
        Run(family=Hyperteacher(num_modules=9)),
        Run(diagnostics=()),
        Run(diagnostics=(LinearDecodability(l2=1.0),)),
    ]
    assert {structure(run) for run in same_structure} == {structure(base)}
    assert len({structure(run) for run in [base, *other_structure]}) == 1 + len(other_structure)


def test_every_field_but_knobs_seed_and_support_is_structure():
    for name, changed in variations(Run()):
        may_differ = name in ("seed", "support", "frac_test")
        assert (structure(changed) == structure(Run())) == may_differ, name


def test_knobs_are_taken_out_and_put_back():
    run = Run(recipe=Fast(learning_rate=0.01, weight_decay=0.3), seed=5, frac_test=0.4)
    values = knobs(run)
    assert values == {
        "recipe.learning_rate": 0.01,
        "recipe.weight_decay": 0.3,
        "recipe.vector_rate": 0.1,
    }
    blank = structure(run)
    assert (blank.recipe.learning_rate, blank.frac_test, blank.seed, blank.support) == (None,) * 4
    back = restore_knobs(blank, values)
    assert back.recipe == run.recipe
    assert (back.family, back.model, back.encoding, back.num_steps) == (
        run.family,
        run.model,
        run.encoding,
        1000,
    )
    assert structure(back) == blank
    # The original run is unchanged.
    assert run == Run(recipe=Fast(learning_rate=0.01, weight_decay=0.3), seed=5, frac_test=0.4)


def test_knobs_of_every_part_are_found():
    for run in every_run():
        parts = {
            "recipe": run.recipe,
            "family": run.family,
            "encoding": run.encoding,
            "model": run.model,
        }
        expected = {
            f"{kind}.{name}"
            for kind, part in parts.items()
            for name, hint in field_types(type(part)).items()
            if is_knob(hint)
        }
        assert {name for name in knobs(run) if name.partition(".")[0] in parts} == expected


def test_different_runs_have_different_identities():
    runs_by_identity = {}
    runs = dict.fromkeys(every_run())
    for run in list(runs):
        runs |= dict.fromkeys(changed for _, changed in variations(run))
        for name in field_types(Run):
            part = getattr(run, name)
            if name == "diagnostics":
                runs |= dict.fromkeys(
                    dataclasses.replace(run, diagnostics=(new,))
                    for d in part
                    for _, new in variations(d)
                )
            elif dataclasses.is_dataclass(part):
                runs |= dict.fromkeys(with_part(run, name, new) for _, new in variations(part))
    for run in runs:
        runs_by_identity.setdefault(identity(run), []).append(run)
    assert all(len(equal_runs) == 1 for equal_runs in runs_by_identity.values())
    assert len(runs) > 80


@pytest.mark.parametrize("cls", PARTS.values(), ids=PARTS)
def test_that_check_changes_every_field(cls):
    changed = {name for name, _ in variations(cls())}
    parts = {name for name in field_types(cls) if dataclasses.is_dataclass(getattr(cls(), name))}
    together = FIELDS_CHANGED_TOGETHER.get(cls.__name__, set())
    assert changed | parts | together == set(field_types(cls))


def test_equal_runs_have_equal_identities():
    assert identity(Run()) == identity(Run())
    assert identity(Run(recipe=Fast(learning_rate=1))) == identity(
        Run(recipe=Fast(learning_rate=1.0))
    )
    assert identity(Run(model=MLP(widths=[8, 8]))) == identity(Run(model=MLP(widths=(8, 8))))
    assert identity(Run(recipe=Fast(ema=0))) == identity(Run(recipe=Fast(ema=-0.0)))
    assert identity(Run(frac_test=np.float64(0.5), seed=np.int64(3))) == identity(
        Run(frac_test=1 / 2, seed=3)
    )
    assert identity(Run(family=Hyperteacher(np.int32(8)))) == identity(Run(family=Hyperteacher(8)))
    assert len(identity(Run())) == 16


def test_equal_parts_of_a_user_have_equal_identities(tmp_path):
    # No __post_init__ checks or converts their fields.
    cls = load_part(
        tmp_path,
        USER_PART.replace("factor: float = 2.0", "factor: float = 2.0\n    free: object = None"),
    )
    for equal_values in ([1, 1.0, True, np.float64(1), np.int8(1)], [0, 0.0, -0.0, False]):
        for name in ("factor", "free"):
            parts = [cls(**{name: value}) for value in equal_values]
            assert all(part == parts[0] for part in parts)
            assert len({identity(Run(encoding=part)) for part in parts}) == 1
    different = [None, 1, 2, 1.5, "1", "None", (), (1,), (1, 2), ((1,), 2), Identity(), cls()]
    assert len({identity(Run(encoding=cls(free=value))) for value in different}) == len(different)


@pytest.mark.parametrize("value", [{"a": 1}, np.zeros(2), abs, 1j], ids=str)
def test_what_cannot_be_hashed_is_refused(value, tmp_path):
    cls = load_part(tmp_path, USER_PART)
    with pytest.raises(InputError, match="a field of a part must be a number, text"):
        identity(Run(encoding=cls(value)))


@pytest.mark.parametrize("name", ["part", "code"])
def test_names_of_fields_that_would_hide_the_code_are_refused(name, tmp_path):
    cls = load_part(tmp_path, USER_PART.replace("factor", name))
    with pytest.raises(InputError, match=f"Doubled has a field '{name}', which is a reserved name"):
        identity(Run(encoding=cls()))


def test_the_order_of_fields_does_not_matter():
    fields = [("a", int, dataclasses.field(default=1)), ("b", int, dataclasses.field(default=2))]
    texts = []
    for order in (fields, fields[::-1]):
        cls = dataclasses.make_dataclass("Own", order, frozen=True)
        cls.__module__ = "recombine.own"
        texts.append(json.dumps(to_json(cls()), sort_keys=True))
    assert texts[0] == texts[1]


def test_identities_stay_what_they_are():
    # Stored rows are found by their identities: a change here would train everything again.
    assert NUMERICS == 3, "a new value of NUMERICS changes all identities: update them here"
    transformer = Transformer(num_layers=1, d_model=32, num_heads=4, d_ff=64)
    grid = PreferenceGrid(num_modules=6, num_hot=2, num_features=8, observation="compact")
    points = {"num_points": 8, "num_eval_points": 8}
    assert identity(Run(recipe=EARLIER_DEFAULT)) == "b0eef9b985036a1f"
    assert identity(paper()) == "a3baa692901fb8b2"
    sequence = Run(encoding=FewShot(sequence=True), model=transformer, recipe=EARLIER_DEFAULT)
    assert identity(sequence) == "6cfdec87c8da49c2"
    slow = Fast(0.005, 0.05, vector_rate=1.0)
    assert (
        identity(Run(family=grid, model=transformer, recipe=slow, **points)) == "92e2f15fb343d300"
    )


def test_a_field_that_was_added_later_is_hashed_where_it_differs_from_the_value_before():
    # At first Fast had no vector_rate (vectors and matrices learned at one rate), and
    # IntervalShuffle had no keep_zero (it moved zeros, too).
    before = Run(recipe=Fast(0.05, 0.02, vector_rate=1.0), encoding=IntervalShuffle())
    text = json.loads(json.dumps(to_json(before)))
    for part, name in (("recipe", "vector_rate"), ("encoding", "keep_zero")):
        del text[part][name]  # as it was saved before the field was added
    assert from_json(text, PARTS) == before
    assert identity(from_json(text, PARTS)) == identity(before)
    assert identity(before) == "585eec5fcfce51e9"
    different = [
        before,
        dataclasses.replace(before, recipe=Fast(0.05, 0.02, vector_rate=0.5)),
        dataclasses.replace(before, recipe=Fast(0.05, 0.02)),
        dataclasses.replace(before, encoding=IntervalShuffle(keep_zero=True)),
    ]
    assert len({identity(run) for run in different}) == 4
    assert Fast(0.05, 0.02).vector_rate != 1.0, "the default may differ from the earlier value"


def load_part(tmp_path, text, name="mine.py"):
    (tmp_path / name).write_text(text)
    return user_files.load(tmp_path / name).Doubled


def test_the_identity_of_a_users_part_depends_on_its_code(tmp_path):
    original = load_part(tmp_path, USER_PART)
    text = "# Mine.\n" + USER_PART.replace("self.factor * task", "(self.factor  *  task)  # 2 z")
    commented = load_part(tmp_path, text, "commented.py")
    renamed = load_part(tmp_path, USER_PART, "another_name.py")
    changed = load_part(
        tmp_path, USER_PART.replace("self.factor * task", "self.factor + task"), "changed.py"
    )
    first = identity(Run(encoding=original()))
    assert identity(Run(encoding=renamed())) == first
    assert identity(Run(encoding=commented())) == first
    assert identity(Run(encoding=changed())) != first
    assert identity(Run(encoding=original(factor=3.0))) != first


def test_a_users_part_with_a_name_of_ours_has_another_identity(tmp_path):
    (tmp_path / "identity_of_mine.py").write_text(
        USER_PART.replace("Doubled", "Identity").replace("factor: float = 2.0", "")
    )
    mine = user_files.load(tmp_path / "identity_of_mine.py").Identity
    assert identity(Run(encoding=mine())) != identity(Run(encoding=Identity()))


def test_a_sweep_is_a_product_with_the_last_axis_fastest():
    runs = sweep(Run(), encoding=[Identity(), FewShot()], model__widths=[(8,), (9,)], seed=range(3))
    assert len(runs) == 12
    assert [run.seed for run in runs] == [0, 1, 2] * 4
    assert [run.model.widths for run in runs] == ([(8,)] * 3 + [(9,)] * 3) * 2
    assert [run.encoding for run in runs] == [Identity()] * 6 + [FewShot()] * 6
    assert all(run.family == Run().family and run.model.tokens == "float" for run in runs)
    assert sweep(Run(), recipe__learning_rate=[0.1])[0].recipe == dataclasses.replace(
        Run().recipe, learning_rate=0.1
    )
    assert sweep(Run()) == [Run()]
    assert sweep(Run(), seed=[]) == []


def test_axes_are_changed_together():
    # One after the other would make invalid runs: 3 evaluations of 1000 steps, 10 of 8 modules.
    (run,) = sweep(
        Run(), num_evals=[3], num_steps=[30], family__num_hot=[10], family__num_modules=[16]
    )
    assert (run.num_steps, run.num_evals) == (30, 3)
    assert run.family == Hyperteacher(num_modules=16, num_hot=10)
    (run,) = sweep(Run(), encoding__num_pairs=[7], encoding=[FewShot()])
    assert run.encoding == FewShot(7)
    with pytest.raises(InputError, match="num_steps=30 must be a multiple of num_evals=4"):
        sweep(Run(), num_steps=[30])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("modle", "Run has no field 'modle': did you mean model"),
        ("model.width", "MLP has no field 'width': did you mean widths"),
        ("encoding.num_pairs", "Identity has no field 'num_pairs': there are none"),
        ("model.widths.first", "tuple has no field 'first': there are none"),
        ("zzz", "Run has no field 'zzz': choose from .*encoding, .*support"),
    ],
)
def test_the_message_for_an_unknown_field_suggests_the_nearest_name(path, message):
    with pytest.raises(InputError, match=message):
        replace_fields(Run(), {path: 1})


def test_replace_fields_changes_nothing_else():
    run = Run(seed=3)
    assert replace_fields(run, {"model.widths": (9,), "num_tasks": 5}) == Run(
        seed=3, model=MLP(widths=(9,)), num_tasks=5
    )
    assert run == Run(seed=3)


def test_every_run_survives_json():
    for run in [
        *every_run(),
        paper(),
        Run(model=MLP(widths=(9, 8)), encoding=IntervalShuffle(4), diagnostics=()),
    ]:
        text = json.dumps(to_json(run))
        back = from_json(json.loads(text), PARTS)
        assert back == run
        assert identity(back) == identity(run)


def test_json_keeps_values_and_their_types(tmp_path):
    cls = load_part(
        tmp_path,
        USER_PART.replace("factor: float = 2.0", "factor: float = 2.0\n    free: object = None"),
    )
    for value, text in (
        (True, "true"),
        (1, "1"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        ([1, (2.0,)], "[1, [2.0]]"),
    ):
        assert json.dumps(to_json(cls(value, value))).endswith(
            f'"factor": {text}, "free": {text}}}'
        )
    assert to_json(cls(np.float64(0.5), np.int8(3)))["free"] == 3


def test_equal_flags_have_equal_identities(tmp_path):
    cls = load_part(tmp_path, USER_PART.replace("factor: float = 2.0", "flag: bool | None = True"))
    identities = [identity(Run(encoding=cls(flag))) for flag in (True, np.True_, 1, None, False)]
    assert identities[0] == identities[1] == identities[2]
    assert len(set(identities)) == 3


def test_json_of_unknown_parts_is_refused(tmp_path):
    cls = load_part(tmp_path, USER_PART)
    value = json.loads(json.dumps(to_json(Run(encoding=cls(factor=3)))))
    with pytest.raises(InputError, match="unknown part 'Doubled'"):
        from_json(value, PARTS)
    assert from_json(value, PARTS | {"Doubled": cls}).encoding == cls(factor=3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"frac_test": 0}, "frac_test must be greater than 0 and less than 1"),
        ({"frac_test": 1}, "frac_test must be greater than 0 and less than 1"),
        ({"frac_test": -1}, "frac_test must be greater than 0 and less than 1"),
        ({"frac_test": 2}, "frac_test must be greater than 0 and less than 1"),
        ({"frac_test": math.nan}, "frac_test must be greater than 0 and less than 1"),
        ({"num_steps": 10, "num_evals": 3}, "num_steps=10 must be a multiple of num_evals=3"),
        ({"num_steps": 0}, r"Run\.num_steps must be at least"),
        ({"num_evals": 0}, r"Run\.num_evals must be at least"),
        ({"num_tasks": 0}, r"Run\.num_tasks must be at least"),
        ({"num_points": 0}, r"Run\.num_points must be at least"),
        ({"num_steps": -4}, r"Run\.num_steps must be at least"),
        ({"num_eval_tasks": -4}, r"Run\.num_eval_tasks must be at least"),
        ({"seed": -4}, r"Run\.seed must be at least"),
        ({"num_eval_points": 1}, r"Run\.num_eval_points must be at least 2"),
        ({"seed": 2**32}, r"seed must be below 2\*\*32"),
        ({"seed": 1.5}, r"Run\.seed must be a whole number, got 1\.5"),
        ({"num_steps": "1000"}, r"Run\.num_steps must be a whole number"),
        ({"num_tasks": True}, r"Run\.num_tasks must be a whole number, got True"),
        ({"frac_test": "half"}, r"Run\.frac_test must be a number"),
        ({"encoding": "FewShot"}, r"Run\.encoding must be an encoding object, got 'FewShot'"),
        ({"model": "MLP"}, r"Run\.model must be a model object"),
        ({"family": MLP()}, r"Run\.family must be a family object"),
        (
            {"diagnostics": LinearDecodability()},
            r"Run\.diagnostics must be a tuple in which every item is a diagnostic object",
        ),
        (
            {"diagnostics": (Identity(),)},
            r"Run\.diagnostics must be a tuple in which every item is a diagnostic object",
        ),
        (
            {"diagnostics": (LinearDecodability(), LinearDecodability(num_fit=9))},
            "two diagnostics .* same columns",
        ),
    ],
)
def test_messages_name_the_field(fields, message):
    with pytest.raises(InputError, match=message):
        Run(**fields)


def test_a_run_may_have_both_decoders():
    assert (
        len(Run(diagnostics=[LinearDecodability(), LinearDecodability(paper=True)]).diagnostics)
        == 2
    )


def test_a_run_is_described_by_flat_columns():
    columns = describe(
        Run(
            model=MLP(widths=(9, 8)),
            seed=4,
            diagnostics=(LinearDecodability(), LinearDecodability(paper=True)),
        )
    )
    assert columns["family"] == "Hyperteacher"
    assert columns["family.num_modules"] == 8
    assert columns["model.widths"] == "9x8"
    assert columns["recipe.learning_rate"] == 0.04
    assert columns["diagnostics"] == "LinearDecodability, LinearDecodability"
    assert (columns["seed"], columns["support"]) == (4, "Random")
    for run in every_run():
        columns = describe(run)
        assert all(
            value is None or isinstance(value, (str, int, float)) for value in columns.values()
        )
        expected = set(field_types(Run)) - {"start"}  # only runs with a start have columns of it
        for name in field_types(Run):
            part = getattr(run, name)
            if dataclasses.is_dataclass(part):
                expected |= {f"{name}.{field}" for field in field_types(type(part))}
        assert columns.keys() == expected


def test_paper_is_the_setup_of_the_paper():
    run = paper()
    assert (run.family, run.frac_test) == (Hyperteacher(num_modules=16, num_hot=3), 0.25)
    assert run.model.widths == (1024,) * 4
    assert run.recipe == Paper(learning_rate=3e-4, weight_decay=0.003)
    assert (run.num_steps, run.num_tasks, run.num_points, run.num_eval_tasks) == (
        300_000,
        128,
        16,
        1024,
    )
    assert run.num_steps * run.num_tasks == 38_400_000
    assert paper(seed=2) == dataclasses.replace(run, seed=2)
