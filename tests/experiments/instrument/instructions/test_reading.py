"""What is measured of students whose answers are known: outcomes, sentences that are read, and what is compared."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="students need the extra torch")
pytest.importorskip("transformers", reason="students need the extra torch")
from recombine.experiments.instrument import instructions as experiment  # noqa: E402
from recombine.experiments.instrument._instructions import reading, student  # noqa: E402
from recombine.experiments.instrument._instructions.grammar import Language  # noqa: E402
from recombine.probe.failure import rarity  # noqa: E402


class Known:
    """Students that answer rightly, but for the last letter where two operations were not trained on together."""

    device = "cpu"

    def __init__(self, language, size, seeds, train):
        self.language, self.size, self.seeds, self.train = language, size, seeds, train
        self.models, self.asked, self.learned = [f"student {i}" for i in range(len(seeds))], [], []
        self.where, self.becomes = language.functions(language.tasks())

    def learn(self, seed):
        self.learned.append(seed)

    def answer(self, asked):
        self.asked.append(asked.numpy())
        said = [[self.one(i, tokens) for tokens in mine] for i, mine in enumerate(asked.numpy())]
        return torch.as_tensor([[own for own, _ in mine] for mine in said]), torch.tensor(
            [[float(number) for _, number in mine] for mine in said]
        )

    def one(self, i, tokens):
        language, tasks = self.language, self.language.tasks()
        words = {language.words[token] for token in tokens[: language.num_asked]}
        number = np.flatnonzero(
            (tasks == [name in words for name in language.operations]).all(axis=1)
        )[0]
        given = tokens[language.num_asked : -1]
        own = self.becomes[number][np.arange(language.length), given[self.where[number]]]
        if number not in self.train[i] and tasks[number].sum() == 2:
            own[-1] = (own[-1] + 1) % language.num_letters
        return own.tolist(), number


@pytest.fixture(scope="module")
def known():
    """The rows, the group of students, and the sentences that are recorded of each model."""
    groups, recorded = [], []

    def make(*given):
        groups.append(Known(*given))
        return groups[0]

    def record(model, language, texts):
        recorded.append((model, texts))
        rng = np.random.default_rng(len(recorded))
        told = np.array(
            [[name in text.split() for name in language.operations] for text in texts], float
        )
        plain = {
            "layers.0": told + 0.1 * rng.normal(size=told.shape),
            "layers.1": 0.1 * rng.normal(size=(len(texts), 1)),
        }
        return dict.fromkeys(reading.PLACES, plain)

    (cell,) = experiment.cells("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(student, "Students", make)
        patch.setattr(reading, "record", record)
        patch.setattr(
            reading, "untrained", lambda language, size, seed: f"twin {size.width} {seed}"
        )
        rows = pd.DataFrame(experiment.measure(**cell)).assign(**cell)
    return SimpleNamespace(rows=rows, group=groups[0], recorded=recorded)


def of_students(rows):
    """The rows of each student's unseen instructions."""
    return [
        one
        for _, one in rows[rows["what"] == "instruction"].groupby(experiment.STUDENT, sort=False)
    ]


def test_students_learn_their_train_tasks_and_are_judged_by_whole_answers_to_the_others(known):
    students = known.rows[known.rows["what"] == "student"]
    assert (students["seen"] == 1).all()
    who = zip(
        experiment.students("tiny"),
        known.group.train,
        of_students(known.rows),
        students["test"],
        strict=True,
    )
    for one, train, asked, right in who:
        assert train.tolist() == np.flatnonzero(one["parts"] == 1).tolist()
        assert asked["number"].tolist() == np.flatnonzero(one["parts"] == 2).tolist()
        assert (asked["failed"] == (asked["num_hot"] == 2)).all()
        assert (asked["doubt"] == asked["number"]).all()
        assert right == pytest.approx((asked["num_hot"] != 2).mean())


def test_lists_are_drawn_anew_to_train_on_to_judge_and_to_read(known):
    num = len(known.group.language.tasks())
    judged, read = (
        one.reshape(len(known.group.seeds), num, -1, one.shape[-1]) for one in known.group.asked
    )
    assert (judged[:, :, : read.shape[2]] != read).any(axis=-1).mean() > 0.9
    (seed,) = known.group.learned
    trained, _ = student.Sentences(known.group.language, "cpu", seed).all(
        len(judged), judged.shape[2]
    )
    assert (trained.numpy().reshape(judged.shape) != judged).any(axis=-1).mean() > 0.9


def test_a_student_and_its_untrained_twin_read_what_the_student_wrote(known):
    group, asked = known.group, known.group.asked[1]
    models = [
        (f"student {i}", f"twin {group.size.width} {seed}") for i, seed in enumerate(group.seeds)
    ]
    assert [model for model, _ in known.recorded] == [name for both in models for name in both]
    for i in range(len(group.seeds)):
        sentences = [
            group.language.text([*tokens, *group.one(i, tokens)[0][:-1]]) for tokens in asked[i]
        ]
        assert known.recorded[2 * i][1] == known.recorded[2 * i + 1][1] == sentences


def test_the_last_layer_is_read_by_itself_and_the_control_asks_for_other_operations(known):
    students = known.rows[known.rows["what"] == "student"]
    assert (students["answer/layer"] == "layers.0").all()
    assert (students["last/layer"] == "layers.1").all()
    assert (students["whole/layer"] == "all layers").all()
    for name in ("answer", "whole", "whole twin"):
        assert (students[f"{name}/unseen"] > 0.5).all()
    for name in ("control", "whole control"):
        assert (students[f"{name}/unseen"] < 0.5).all()
    assert not np.allclose(students["whole/unseen"], students["whole twin/unseen"])


def test_all_layers_are_read_as_one_array_of_them_is():
    language, rng, num_read = Language(6, 3, 4, 4), np.random.default_rng(0), 6
    tasks = language.tasks()
    parts = np.where(rng.permutation(len(tasks)) < len(tasks) // 2, 1, 2)
    told = tasks.repeat(num_read, axis=0) + 0.3 * rng.normal(size=(len(tasks) * num_read, 6))
    found = reading.Reading(language, parts, rng.random(len(tasks)), num_read)
    found.read("whole", {"layers.0": told[:, :3], "layers.1": told[:, 3:]}, by="all")
    found.read("array", {"both": told})
    found.read("answer", {"layers.0": told[:, :3], "layers.1": told[:, 3:]})
    assert (found.rows["whole"] == found.rows["array"]).all()
    assert (
        found.facts["whole/unseen"]
        == found.facts["array/unseen"]
        > found.facts["answer/unseen"] + 0.1
    )


def test_pairs_are_rare_by_what_is_trained_on():
    language, parts = Language(4, 2, 4, 4), np.array([2, 1, 1, 1, 1, 1, 1, 1, 1, 2])
    found = reading.Reading(language, parts, np.zeros(10), 1).rows["rarity"]
    table = pd.DataFrame(language.tasks())
    assert found.tolist() == rarity(table[parts == 2], table[parts == 1]).tolist()
    assert (
        found[1] > found[0]
    )  # a pair that is never trained on, and one operation of several pairs


def test_layers_are_chosen_by_train_instructions_alone():
    """One layer tells the operations of train instructions only, the other worse, but of all."""
    language, rng, num_read = Language(6, 3, 4, 4), np.random.default_rng(0), 6
    tasks = language.tasks()
    parts = np.where(rng.permutation(len(tasks)) < len(tasks) // 2, 1, 2)
    told, seen = tasks.repeat(num_read, axis=0), (parts == 1).repeat(num_read)[:, None]
    noise = rng.normal(size=(2, *told.shape))
    layers = {
        "train": np.where(seen, told + 0.05 * noise[0], noise[0]),
        "all": told + 0.3 * noise[1],
    }
    found = reading.Reading(language, parts, rng.random(len(tasks)), num_read)
    found.read("answer", layers)
    assert found.facts["answer/layer"] == "train"
    assert found.facts["answer/seen"] > 0.9
    assert found.facts["answer/unseen"] < 0  # no probe was fitted on them


def test_ranks_and_not_sizes_are_compared_and_failures_are_more_often_than_not():
    found = reading.Reading(
        Language(3, 2, 4, 4), np.full(6, 2), np.array([0.0, 0.1, 0.2, 0.6, 0.8, 1.0]), 1
    )
    found.rows["planted"] = [0.0, 1.0, 3.0, 2.0, 50.0, 4.0]
    scores = found.compared("planted")
    assert scores["planted/spearman"] == pytest.approx(1 - 6 * 4 / (6 * 35))
    assert scores["planted/auroc"] == pytest.approx(8 / 9)
    assert scores["planted/longest/spearman"] == pytest.approx(
        0.5
    )  # of the last three, that name two operations
    assert np.isnan(scores["planted/longest/auroc"])
