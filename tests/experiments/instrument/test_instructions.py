"""The experiment `instructions`: its students, its verdicts both ways, and its committed rows."""

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
from recombine.experiments.plots import figures_of
from recombine.parts.conditions import connected
from tests.experiments.neutral import claims_of

ROWS = Path(__file__).parents[3] / "docs" / "results" / "instructions.parquet"


@pytest.mark.parametrize("scale", ["tiny", "small", "full"])
def test_students_differ_in_seed_and_support_and_the_unmixed_ones_have_a_control(scale):
    tasks = experiment.LANGUAGES[scale].tasks()
    students = experiment.students(scale)
    keys = {(student["support"], student["frac_test"], student["seed"]) for student in students}
    assert len(keys) == len(students)
    for student in students:
        train = tasks[student["parts"] == 1]
        assert connected(train) == (student["support"] == experiment.RANDOM)
        assert (student["parts"] > 0).all()
    unmixed = [student for student in students if student["support"] == experiment.NEVER_MIXED]
    fraction = unmixed[0]["frac_test"]
    as_large = [student for student in students if student["frac_test"] == fraction]
    controls = [student for student in as_large if student["support"] == experiment.RANDOM]
    assert len(controls) == len(unmixed) == experiment.SEEDS[scale]
    assert num_train_tasks(controls) == num_train_tasks(unmixed)


def num_train_tasks(students):
    return {(student["parts"] == 1).sum() for student in students}


def test_without_torch_one_line_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(
        sys.modules, "recombine.experiments.instrument._instructions.student", raising=False
    )
    message = r"torch is not installed: pip install 'recombine\[torch\]'"
    with pytest.raises(InputError, match=message):
        experiment.measure(**experiment.cells("tiny")[0])


def check_tiny(measured):
    students = experiment.students("tiny")
    num_held_out = sum((student["parts"] == 2).sum() for student in students)
    assert (measured["what"] == "student").sum() == len(students)
    assert (measured["what"] == "instruction").sum() == num_held_out
    instructions = measured[measured["what"] == "instruction"]
    assert instructions["failed"].between(0, 1).all()
    predictors = [name for name in experiment.PREDICTORS if name != "length"]
    assert np.isfinite(instructions[predictors].to_numpy(float)).all()
    composes = claims_of(experiment, measured)[0]
    assert composes.measured is not None
    assert composes.verdict == "not yet run"  # one seed is not judged


ALL_LAYERS = (
    "all layers",
    "all, ranked well",
    "all, told apart",
    "all, equally long",
    "all, counting",
    "all, doubt",
    "all, length",
    "all, text",
    "all, control",
)
NOT_IN_OLD_ROWS = ("beyond its doubt", *ALL_LAYERS)
# The number of operations of ten instructions, from the one that fails least to the one that fails
# most, if longer instructions fail more often and if not.
NUM_OPERATIONS = {
    True: [1, 1, 1, 2, 2, 2, 2, 3, 3, 3],
    False: [1, 3, 2, 2, 1, 2, 2, 3, 1, 3],
}
SCORES = {
    "answer/spearman": 0.8,
    "answer/longest/spearman": 0.5,
    "answer/auroc": 0.9,
    "rarity/spearman": 0.3,
    "twin/spearman": 0.2,
    "doubt/spearman": 0.7,
    "control/spearman": 0.0,
    "whole/spearman": 0.9,
    "whole/auroc": 0.9,
    "whole/longest/spearman": 0.5,
    "whole twin/spearman": 0.3,
    "whole control/spearman": 0.0,
    "start/spearman": 0.1,
    "last/spearman": 0.1,
    "asked/spearman": 0.1,
}
SPREAD = {  # added per seed
    "answer/spearman": [0.0, 0.01, 0.02],
    "control/spearman": [-0.01, 0.0, 0.01],
    "whole control/spearman": [-0.01, 0.0, 0.01],
}


def rows(scores=None, most=0.97, few=0.4, unmixed=0.1, narrow=0.1, longer_is_harder=False):
    """Rows of students and instructions, made by hand, with a small spread over seeds.

    `most`, `few` and `unmixed` are shares of correct answers with most or few train instructions
    and with unmixed groups; `narrow` is the loss of narrow students with few train instructions.
    """
    supports = (("random", 0.25, most), ("random", 0.7, few), ("never mixed", 0.7, unmixed))
    students = []
    for width in (64, 128):
        for support, frac_test, accuracy in supports:
            is_narrow = width == 64 and frac_test == 0.7 and support == "random"
            for seed in range(3):
                student = {
                    "run": f"{width}",
                    "step": len(students),
                    "what": "student",
                    "width": width,
                    "seed": seed,
                    "support": support,
                    "frac_test": frac_test,
                    "num_train": round(175 * (1 - frac_test)),
                    "seen": 1.0,
                    "test": accuracy - is_narrow * narrow + 0.005 * seed,
                }
                for column, score in (SCORES | (scores or {})).items():
                    student[column] = score + SPREAD.get(column, [0.0] * 3)[seed]
                students.append(student)
    instructions = []
    for student in students:
        for i, num_operations in enumerate(NUM_OPERATIONS[longer_is_harder]):
            instruction = {
                "what": "instruction",
                "answer": 0.1 * i,
                "failed": i / 9,
                "num_hot": float(num_operations),
                "run": student["run"],
                "instruction": f"number {i}",
                "step": 100 + i,
            }
            key = {column: student[column] for column in experiment.STUDENT}
            instructions.append(instruction | key)
    return pd.DataFrame([*students, *instructions])


def verdicts(frame):
    return {claim.name: claim.verdict for claim in claims_of(experiment, frame)}


def test_claims_hold_if_students_compose_and_activations_predict_failures():
    assert set(verdicts(rows()).values()) == {"reproduced"}
    measured = {claim.name: claim.measured for claim in claims_of(experiment, rows())}
    assert measured["composes"] == pytest.approx(0.975)
    assert measured["failing support"] == pytest.approx(0.4 - 0.05 - 0.1)
    assert measured["beyond counting"] == pytest.approx(0.51)
    by_length = spearmanr(NUM_OPERATIONS[False], range(10)).statistic
    assert measured["beyond length"] == pytest.approx(0.81 - by_length)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"most": 0.85}, "composes"),
        ({"few": 0.98, "narrow": 0.0}, "more instructions"),
        ({"narrow": -0.1}, "width"),
        ({"unmixed": 0.4}, "failing support"),
        ({"scores": {"answer/spearman": 0.05}}, "ranked"),
        ({"scores": {"answer/spearman": 0.6}}, "ranked well"),
        ({"scores": {"answer/auroc": 0.75}}, "told apart"),
        ({"scores": {"answer/longest/spearman": 0.0}}, "equally long"),
        ({"scores": {"rarity/spearman": 0.9}}, "beyond counting"),
        ({"longer_is_harder": True}, "beyond length"),
        ({"scores": {"twin/spearman": 0.9}}, "beyond the text"),
        ({"scores": {"doubt/spearman": 0.9}}, "beyond its doubt"),
        ({"scores": {"whole/spearman": 0.8}}, "all layers"),
        ({"scores": {"whole/spearman": 0.2}}, "all, length"),
        ({"scores": {"whole/spearman": 0.6}}, "all, ranked well"),
        ({"scores": {"whole/auroc": 0.75}}, "all, told apart"),
        ({"scores": {"rarity/spearman": 0.95}}, "all, counting"),
        ({"scores": {"doubt/spearman": 0.95}}, "all, doubt"),
        ({"scores": {"whole/longest/spearman": 0.0}}, "all, equally long"),
        ({"scores": {"whole twin/spearman": 0.95}}, "all, text"),
        ({"scores": {"whole control/spearman": 0.2}}, "all, control"),
        ({"scores": {"whole control/spearman": -0.2}}, "all, control"),
        ({"scores": {"control/spearman": 0.2}}, "control"),
        ({"scores": {"control/spearman": -0.2}}, "control"),
    ],
)
def test_each_claim_can_fail(changes, name):
    assert verdicts(rows(**changes))[name] == "not reproduced"


def test_claims_without_their_rows_are_not_yet_run():
    assert set(verdicts(None).values()) == {"not yet run"}
    frame = rows()
    assert set(verdicts(frame[frame["seed"] == 0]).values()) == {"not yet run"}
    assert verdicts(frame[frame["width"] == 128])["width"] == "not yet run"
    perfect = verdicts(rows(most=0.985, few=0.985, unmixed=0.985, narrow=0.0))
    assert perfect["composes"] == "reproduced"
    assert perfect["ranked"] == "not yet run"  # no instruction fails, so there is nothing to rank


def test_old_rows_without_a_column_have_no_verdict_on_it():
    new = ("doubt", "last", "whole", "whole twin", "whole control")
    columns = [f"{name}/spearman" for name in new] + ["whole/auroc", "whole/longest/spearman"]
    old = rows().drop(columns=columns)
    assert verdicts(old) == verdicts(rows()) | dict.fromkeys(NOT_IN_OLD_ROWS, "not yet run")
    assert "rank correlation, doubt" not in experiment.summary(old)
    assert set(figures_of(experiment, old)) == {"right", "rank", "fifths"}


def test_students_without_failures_or_without_successes_are_not_ranked():
    ranked = experiment.students_with_failures(rows(unmixed=0.01))
    assert set(ranked["support"]) == {"random"}
    assert set(ranked["frac_test"]) == {0.7}


def test_figures_and_summary():
    assert set(figures_of(experiment, rows())) == {"right", "rank", "fifths"}
    nothing_to_rank = rows(most=0.98, few=0.98, unmixed=0.0, narrow=0.0)
    assert set(figures_of(experiment, nothing_to_rank)) == {"right"}
    summary = experiment.summary(rows())
    assert summary["rank correlation, answer"] == pytest.approx(0.81)
    assert summary["width 128, random, 25% held out: right"] == pytest.approx(0.975)
    assert not any(math.isnan(value) for value in summary.values())


def test_fifths_are_formed_within_each_student():
    """Students with larger decoding errors overall do not fill the last fifth."""
    frame = rows()
    shifted = frame.assign(answer=frame["answer"] + 10 * frame["seed"])
    figures = figures_of(experiment, frame)
    assert str(figures_of(experiment, shifted)["fifths"]) == str(figures["fifths"])


@pytest.mark.skipif(not ROWS.exists(), reason="no rows are committed")
def test_the_committed_rows_are_complete():
    table = rc.Table(ROWS)
    committed = table.read()
    scale = table.meta()["scale"]
    cells = experiment.cells(scale)
    assert committed["run"].nunique() == len(cells)
    num_students = (committed["what"] == "student").sum()
    assert num_students == len(cells) * len(experiment.students(scale))
    judged = verdicts(committed)
    assert set(judged.values()) == {"reproduced", "not reproduced", "inconclusive"}
    assert {name for name, verdict in judged.items() if verdict != "reproduced"} == {
        "composes",
        "ranked well",
        "told apart",
        "beyond counting",
        "beyond length",
        "beyond the text",
        "beyond its doubt",
        "all, ranked well",
        "all, doubt",
    }
    assert set(ALL_LAYERS) <= set(judged)
    assert len(judged) == 22
