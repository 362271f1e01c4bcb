"""The instruction experiment: its students, verdicts both ways, and what the committed rows say."""

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

import recombine as rc
from recombine.basics.errors import InputError
from recombine.experiments.instrument import instructions as experiment
from recombine.experiments.instrument._instructions.grammar import Language
from recombine.parts.conditions import connected

ROWS = Path(__file__).parents[3] / "docs" / "results" / "instructions.parquet"


@pytest.mark.parametrize("scale", ["tiny", "small", "full"])
def test_students_differ_in_seed_and_support_and_the_failing_one_has_its_like(scale):
    tasks = Language(*experiment.LANGUAGES[scale]).tasks()
    who = experiment.students(scale)
    assert len({(one["support"], one["frac_test"], one["seed"]) for one in who}) == len(who)
    for one in who:
        train = tasks[one["parts"] == 1]
        assert connected(train) == (one["support"] == experiment.RANDOM)
        assert (one["parts"] > 0).all()
    apart = [one for one in who if one["support"] == experiment.APART]
    like = [
        one
        for one in who
        if one["support"] == experiment.RANDOM and one["frac_test"] == apart[0]["frac_test"]
    ]
    assert len(like) == len(apart) == experiment.SEEDS[scale]
    assert {(one["parts"] == 1).sum() for one in like} == {
        (one["parts"] == 1).sum() for one in apart
    }


def test_without_torch_one_line_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(
        sys.modules, "recombine.experiments.instrument._instructions.student", raising=False
    )
    with pytest.raises(
        InputError, match=r"torch is not installed: pip install 'recombine\[torch\]'"
    ):
        experiment.measure(**experiment.cells("tiny")[0])


def test_measure_gives_a_row_for_each_student_and_unseen_instruction():
    pytest.importorskip("transformers", reason="students need the extra torch")
    importlib.import_module("recombine.experiments.instrument._instructions.student")
    (cell,) = experiment.cells("tiny")
    found = pd.DataFrame(experiment.measure(**cell)).assign(**cell)
    who = experiment.students("tiny")
    assert (found["what"] == "student").sum() == len(who)
    assert (found["what"] == "instruction").sum() == sum((one["parts"] == 2).sum() for one in who)
    asked = found[found["what"] == "instruction"]
    assert asked["failed"].between(0, 1).all()
    assert np.isfinite(
        asked[[name for name in experiment.PREDICTORS if name != "length"]].to_numpy(float)
    ).all()
    assert experiment.claims(found)[0].verdict == "not reproduced"  # ten steps teach nothing


OF_ALL = (
    "ranked well",
    "told apart",
    "equally long",
    "counting",
    "doubt",
    "length",
    "text",
    "control",
)
ALL = ("all layers", *(f"all, {name}" for name in OF_ALL))
LATER = ("beyond its doubt", *ALL)  # not in the oldest rows
HARDER = {
    True: [1, 1, 1, 2, 2, 2, 2, 3, 3, 3],
    False: [1, 3, 2, 2, 1, 2, 2, 3, 1, 3],
}  # operations, by failures


def rows(
    answer=0.8,
    longest=0.5,
    auroc=0.9,
    rarity=0.3,
    twin=0.2,
    doubt=0.7,
    control=0.0,
    most=0.97,
    few=0.4,
    apart=0.1,
    narrow=0.1,
    whole=0.9,
    whole_auroc=0.9,
    whole_longest=0.5,
    of_twin=0.3,
    mixed_up=0.0,
    longer_is_harder=False,
):
    """Rows by hand, with a little spread over seeds."""
    made = []
    for width in (64, 128):
        for support, held, test in (
            ("random", 0.25, most),
            ("random", 0.7, few),
            ("never mixed", 0.7, apart),
        ):
            for seed in range(3):
                right = test - (narrow if width == 64 and held == 0.7 else 0) * (
                    support == "random"
                )
                made.append(
                    {
                        **{
                            "run": f"{width}",
                            "step": len(made),
                            "what": "student",
                            "width": width,
                            "seed": seed,
                        },
                        **{
                            "support": support,
                            "frac_test": held,
                            "num_train": round(175 * (1 - held)),
                        },
                        **{
                            "seen": 1.0,
                            "test": right + 0.005 * seed,
                            "answer/longest/spearman": longest,
                        },
                        **{"answer/spearman": answer + 0.01 * seed, "answer/auroc": auroc},
                        **{"rarity/spearman": rarity, "twin/spearman": twin, "start/spearman": 0.1},
                        **{"doubt/spearman": doubt, "last/spearman": 0.1, "whole/spearman": whole},
                        **{"whole/auroc": whole_auroc, "whole/longest/spearman": whole_longest},
                        **{
                            "whole twin/spearman": of_twin,
                            "whole control/spearman": mixed_up + 0.01 * (seed - 1),
                        },
                        **{"control/spearman": control + 0.01 * (seed - 1), "asked/spearman": 0.1},
                    }
                )
    asked = [
        {
            "what": "instruction",
            "answer": 0.1 * i,
            "failed": i / 9,
            "num_hot": float(HARDER[longer_is_harder][i]),
            "run": one["run"],
        }
        | {name: one[name] for name in experiment.STUDENT}
        | {"instruction": f"number {i}", "step": 100 + i}
        for one in made
        for i in range(10)
    ]
    return pd.DataFrame([*made, *asked])


def verdicts(frame):
    return {claim.name: claim.verdict for claim in experiment.claims(frame)}


def test_claims_hold_where_students_compose_and_activations_tell():
    assert set(verdicts(rows()).values()) == {"reproduced"}
    found = {claim.name: claim.measured for claim in experiment.claims(rows())}
    assert found["composes"] == pytest.approx(0.975)
    assert found["failing support"] == pytest.approx(0.4 - 0.05 - 0.1)
    assert found["beyond counting"] == pytest.approx(0.51)
    assert found["beyond length"] == pytest.approx(
        0.81 - spearmanr(HARDER[False], range(10)).statistic
    )


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"most": 0.85}, "composes"),
        ({"few": 0.98, "narrow": 0.0}, "more instructions"),
        ({"narrow": -0.1}, "width"),
        ({"apart": 0.4}, "failing support"),
        ({"answer": 0.05}, "ranked"),
        ({"answer": 0.6}, "ranked well"),
        ({"auroc": 0.75}, "told apart"),
        ({"longest": 0.0}, "equally long"),
        ({"rarity": 0.9}, "beyond counting"),
        ({"longer_is_harder": True}, "beyond length"),
        ({"twin": 0.9}, "beyond the text"),
        ({"doubt": 0.9}, "beyond its doubt"),
        ({"whole": 0.8}, "all layers"),
        ({"whole": 0.2}, "all, length"),
        ({"whole": 0.6}, "all, ranked well"),
        ({"whole_auroc": 0.75}, "all, told apart"),
        ({"rarity": 0.95}, "all, counting"),
        ({"doubt": 0.95}, "all, doubt"),
        ({"whole_longest": 0.0}, "all, equally long"),
        ({"of_twin": 0.95}, "all, text"),
        ({"mixed_up": 0.2}, "all, control"),
        ({"mixed_up": -0.2}, "all, control"),
        ({"control": 0.2}, "control"),
        ({"control": -0.2}, "control"),
    ],
)
def test_each_claim_can_fail(changes, name):
    assert verdicts(rows(**changes))[name] == "not reproduced"


def test_what_is_missing_is_not_yet_run():
    assert set(verdicts(None).values()) == {"not yet run"}
    one = rows()
    assert set(verdicts(one[one["seed"] == 0]).values()) == {"not yet run"}
    assert verdicts(one[one["width"] == 128])["width"] == "not yet run"
    perfect = verdicts(rows(most=0.985, few=0.985, apart=0.985, narrow=0.0))
    assert perfect["composes"] == "reproduced"
    assert perfect["ranked"] == "not yet run"  # nothing fails, so that nothing is ranked


def test_rows_of_before_a_column_was_measured_have_no_verdict_on_it():
    later = ("doubt", "last", "whole", "whole twin", "whole control")
    gone = [f"{name}/spearman" for name in later] + ["whole/auroc", "whole/longest/spearman"]
    older = rows().drop(columns=gone)
    assert verdicts(older) == verdicts(rows()) | dict.fromkeys(LATER, "not yet run")
    assert "rank correlation, doubt" not in experiment.summary(older)
    assert set(experiment.figures(older)) == {"right", "rank", "fifths"}


def test_students_that_get_all_or_nothing_are_not_ranked():
    ranked = experiment.mixed(rows(apart=0.01))
    assert set(ranked["support"]) == {"random"}
    assert set(ranked["frac_test"]) == {0.7}


def test_figures_and_summary():
    assert set(experiment.figures(rows())) == {"right", "rank", "fifths"}
    assert set(experiment.figures(rows(most=0.98, few=0.98, apart=0.0, narrow=0.0))) == {"right"}
    told = experiment.summary(rows())
    assert told["rank correlation, answer"] == pytest.approx(0.81)
    assert told["width 128, random, 25% held out: right"] == pytest.approx(0.975)
    assert not any(math.isnan(value) for value in told.values())


def test_fifths_are_taken_within_each_student():
    """Students that are read worse as a whole do not fill the last fifth."""
    frame = rows()
    worse = frame.assign(answer=frame["answer"] + 10 * frame["seed"])
    assert str(experiment.figures(worse)["fifths"]) == str(experiment.figures(frame)["fifths"])


@pytest.mark.skipif(not ROWS.exists(), reason="no rows are committed")
def test_the_committed_rows_are_whole():
    table = rc.Table(ROWS)
    found, scale = table.read(), table.meta()["scale"]
    assert found["run"].nunique() == len(experiment.cells(scale))
    students = (found["what"] == "student").sum()
    assert students == len(experiment.cells(scale)) * len(experiment.students(scale))
    assert {name: verdict == "reproduced" for name, verdict in verdicts(found).items()} == {
        **{"composes": False, "more instructions": True, "width": True, "failing support": True},
        **{"ranked": True, "ranked well": False, "told apart": False, "equally long": True},
        **dict.fromkeys(
            ("beyond counting", "beyond length", "beyond the text", "beyond its doubt"), False
        ),
        **dict.fromkeys(ALL, True),
        **{"all, ranked well": False, "all, doubt": False, "control": True},
    }
