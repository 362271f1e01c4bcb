"""Measured rows of students whose answers are known: outcomes, recorded sentences, scores."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="students need the extra torch")
pytest.importorskip("transformers", reason="students need the extra torch")
from recombine.experiments.instrument import instructions as experiment  # noqa: E402
from recombine.experiments.instrument._instructions import probing, student  # noqa: E402
from recombine.experiments.instrument._instructions.grammar import Language  # noqa: E402
from recombine.probe.failure_ranking import rarity  # noqa: E402


class Known:
    """Students that get the last letter wrong if two operations were not trained on together."""

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
        input_tokens = tokens[language.num_asked : -1]
        own = self.becomes[number][np.arange(language.length), input_tokens[self.where[number]]]
        if number not in self.train[i] and tasks[number].sum() == 2:
            own[-1] = (own[-1] + 1) % language.num_letters
        return own.tolist(), number


@pytest.fixture(scope="module")
def known():
    """The rows, the group of students, and the sentences that are recorded of each model."""
    groups, recorded = [], []

    def make(*arguments):
        groups.append(Known(*arguments))
        return groups[0]

    def record(model, language, texts):
        recorded.append((model, texts))
        rng = np.random.default_rng(len(recorded))
        decodable = np.array(
            [[name in text.split() for name in language.operations] for text in texts], float
        )
        plain = {
            "layers.0": decodable + 0.1 * rng.normal(size=decodable.shape),
            "layers.1": 0.1 * rng.normal(size=(len(texts), 1)),
        }
        return dict.fromkeys(probing.POSITIONS, plain)

    (cell,) = experiment.cells("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(student, "Students", make)
        patch.setattr(probing, "record", record)
        patch.setattr(
            probing, "untrained", lambda language, size, seed: f"baseline {size.width} {seed}"
        )
        rows = pd.DataFrame(experiment.measure(**cell)).assign(**cell)
    return SimpleNamespace(rows=rows, group=groups[0], recorded=recorded)


def of_students(rows):
    """The rows of each student's held-out instructions."""
    return [
        student_rows
        for _, student_rows in rows[rows["what"] == "instruction"].groupby(
            experiment.STUDENT, sort=False
        )
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
    for rows, train, asked, right in who:
        assert train.tolist() == np.flatnonzero(rows["parts"] == 1).tolist()
        assert asked["number"].tolist() == np.flatnonzero(rows["parts"] == 2).tolist()
        assert (asked["failed"] == (asked["num_hot"] == 2)).all()
        assert (asked["doubt"] == asked["number"]).all()
        assert right == pytest.approx((asked["num_hot"] != 2).mean())


def test_lists_are_drawn_anew_to_train_on_to_judge_and_to_read(known):
    num = len(known.group.language.tasks())
    judged, read = (
        lists.reshape(len(known.group.seeds), num, -1, lists.shape[-1])
        for lists in known.group.asked
    )
    assert (judged[:, :, : read.shape[2]] != read).any(axis=-1).mean() > 0.9
    (seed,) = known.group.learned
    trained, _ = student.Sentences(known.group.language, "cpu", seed).all(
        len(judged), judged.shape[2]
    )
    assert (trained.numpy().reshape(judged.shape) != judged).any(axis=-1).mean() > 0.9


def test_a_student_and_its_untrained_baseline_see_the_sentences_of_the_student(known):
    group, asked = known.group, known.group.asked[1]
    models = [
        (f"student {i}", f"baseline {group.size.width} {seed}")
        for i, seed in enumerate(group.seeds)
    ]
    assert [model for model, _ in known.recorded] == [name for both in models for name in both]
    for i in range(len(group.seeds)):
        sentences = [
            group.language.text([*tokens, *group.one(i, tokens)[0][:-1]]) for tokens in asked[i]
        ]
        assert known.recorded[2 * i][1] == known.recorded[2 * i + 1][1] == sentences


def test_the_last_layer_has_its_own_probe_and_the_control_has_other_operations(known):
    students = known.rows[known.rows["what"] == "student"]
    assert (students["answer/layer"] == "layers.0").all()
    assert (students["last/layer"] == "layers.1").all()
    assert (students["whole/layer"] == "all layers").all()
    for name in ("answer", "whole", "whole twin"):
        assert (students[f"{name}/unseen"] > 0.5).all()
    for name in ("control", "whole control"):
        assert (students[f"{name}/unseen"] < 0.5).all()
    assert not np.allclose(students["whole/unseen"], students["whole twin/unseen"])


def test_all_layers_are_probed_like_their_concatenation():
    language, rng, num_read = Language(6, 3, 4, 4), np.random.default_rng(0), 6
    tasks = language.tasks()
    parts = np.where(rng.permutation(len(tasks)) < len(tasks) // 2, 1, 2)
    decodable = tasks.repeat(num_read, axis=0) + 0.3 * rng.normal(size=(len(tasks) * num_read, 6))
    predictors = probing.FailurePredictors(language, parts, rng.random(len(tasks)), num_read)
    predictors.add_probe(
        "whole", {"layers.0": decodable[:, :3], "layers.1": decodable[:, 3:]}, use_layers="all"
    )
    predictors.add_probe("array", {"both": decodable})
    predictors.add_probe("answer", {"layers.0": decodable[:, :3], "layers.1": decodable[:, 3:]})
    assert (predictors.rows["whole"] == predictors.rows["array"]).all()
    assert (
        predictors.facts["whole/unseen"]
        == predictors.facts["array/unseen"]
        > predictors.facts["answer/unseen"] + 0.1
    )


def test_rarity_counts_pairs_in_train_instructions():
    language, parts = Language(4, 2, 4, 4), np.array([2, 1, 1, 1, 1, 1, 1, 1, 1, 2])
    scores = probing.FailurePredictors(language, parts, np.zeros(10), 1).rows["rarity"]
    table = pd.DataFrame(language.tasks())
    assert scores.tolist() == rarity(table[parts == 2], table[parts == 1]).tolist()
    assert (
        scores[1] > scores[0]
    )  # a pair that is never trained on, and one operation of several pairs


def test_layers_are_chosen_by_train_instructions_alone():
    """One layer has the operations of train instructions, the other those of all, with noise."""
    language, rng, num_read = Language(6, 3, 4, 4), np.random.default_rng(0), 6
    tasks = language.tasks()
    parts = np.where(rng.permutation(len(tasks)) < len(tasks) // 2, 1, 2)
    decodable, seen = tasks.repeat(num_read, axis=0), (parts == 1).repeat(num_read)[:, None]
    noise = rng.normal(size=(2, *decodable.shape))
    layers = {
        "train": np.where(seen, decodable + 0.05 * noise[0], noise[0]),
        "all": decodable + 0.3 * noise[1],
    }
    predictors = probing.FailurePredictors(language, parts, rng.random(len(tasks)), num_read)
    predictors.add_probe("answer", layers)
    assert predictors.facts["answer/layer"] == "train"
    assert predictors.facts["answer/seen"] > 0.9
    assert predictors.facts["answer/unseen"] < 0  # no probe was fitted on them


def test_only_ranks_matter_and_a_failure_is_an_error_rate_above_half():
    predictors = probing.FailurePredictors(
        Language(3, 2, 4, 4), np.full(6, 2), np.array([0.0, 0.1, 0.2, 0.6, 0.8, 1.0]), 1
    )
    predictors.rows["planted"] = [0.0, 1.0, 3.0, 2.0, 50.0, 4.0]
    scores = predictors.scores("planted")
    assert scores["planted/spearman"] == pytest.approx(1 - 6 * 4 / (6 * 35))
    assert scores["planted/auroc"] == pytest.approx(8 / 9)
    assert scores["planted/longest/spearman"] == pytest.approx(
        0.5
    )  # of the last three, that name two operations
    assert np.isnan(scores["planted/longest/auroc"])
