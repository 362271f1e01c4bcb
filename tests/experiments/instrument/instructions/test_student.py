"""Students of the instruction language: batches, training, answers and recorded activations."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="students need the extra torch")
pytest.importorskip("transformers", reason="students need the extra torch")
from recombine.experiments.instrument._instructions.grammar import Language  # noqa: E402
from recombine.experiments.instrument._instructions.probing import (  # noqa: E402
    POSITIONS,
    FailurePredictors,
    record,
)
from recombine.experiments.instrument._instructions.student import (  # noqa: E402
    Sentences,
    Size,
    Students,
    untrained,
)

LANGUAGE = Language(3, 2, 4, 4)
SIZE = Size(32, 1, 8, 8, 3e-3)
TASKS = len(LANGUAGE.tasks())


@pytest.fixture(autouse=True)
def one_thread():
    """Those of a tiny network wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(num: int, seed: int = 0):
    return Sentences(LANGUAGE, "cpu", seed).draw(torch.arange(TASKS).repeat_interleave(num))


def test_sentences_have_their_answers():
    asked, answer = drawn(5)
    where, becomes = LANGUAGE.functions(LANGUAGE.tasks())
    for row, (tokens, right) in enumerate(zip(asked.numpy(), answer.numpy(), strict=True)):
        operation_tokens, input_tokens = tokens[:4], tokens[4:8]
        task = LANGUAGE.tasks()[row // 5]
        named = {LANGUAGE.words[token] for token in operation_tokens} & set(LANGUAGE.operations)
        assert named == {
            name for name, there in zip(LANGUAGE.operations, task, strict=True) if there
        }
        assert LANGUAGE.words[tokens[8]] == "="
        assert (becomes[row // 5][np.arange(4), input_tokens[where[row // 5]]] == right).all()


def test_batches_hold_train_tasks_only_and_all_of_them():
    train = torch.tensor([[0, 2, 5], [1, -1, -1]])
    chosen = Sentences(LANGUAGE, "cpu", 0).choose(train, 200)
    assert set(chosen[0].tolist()) == {0, 2, 5}
    assert set(chosen[1].tolist()) == {1}


def test_stacked_students_say_what_each_says_by_itself():
    students = Students(LANGUAGE, SIZE, [0, 1], [np.arange(3), np.arange(2)])
    students.learn(0)
    asked, answer = drawn(2)
    tokens = torch.cat([asked, answer[:, :-1]], dim=1)
    stacked = students.logits(tokens.expand(2, -1, -1), 4).detach()
    for model, mine in zip(students.models, stacked, strict=True):
        with torch.no_grad():
            alone = model(tokens).logits[:, -4:]
        assert torch.allclose(alone, mine, atol=1e-4)
    assert not torch.allclose(stacked[0], stacked[1], atol=1e-2)


def test_a_student_learns_beside_others_what_it_would_learn_alone(monkeypatch):
    """Given the same sentences."""
    train, (asked, answer) = np.arange(3), drawn(3)

    def draw(self, tasks):
        return asked[:8].expand(len(tasks), -1, -1), answer[:8].expand(len(tasks), -1, -1)

    monkeypatch.setattr(Sentences, "draw", draw)
    together = Students(LANGUAGE, SIZE, [0, 1], [train, train])
    together.learn(0)
    alone = Students(LANGUAGE, SIZE, [1], [train])
    alone.learn(0)
    fresh = untrained(LANGUAGE, SIZE, 1).state_dict()
    other = together.models[1].state_dict()
    for name, weight in alone.models[0].state_dict().items():
        assert torch.allclose(weight, other[name], atol=1e-5), name
    assert not torch.allclose(fresh["lm_head.weight"], other["lm_head.weight"], atol=1e-3)


@pytest.fixture
def batches(monkeypatch):
    """The tasks and sentences of all batches that are drawn, as they are drawn."""
    batches, draw = [], Sentences.draw

    def noted(self, tasks):
        batches.append((tasks, draw(self, tasks)))
        return batches[-1][1]

    monkeypatch.setattr(Sentences, "draw", noted)
    return batches


def test_each_student_is_trained_on_its_own_tasks(batches):
    Students(LANGUAGE, SIZE, [0, 1], [np.array([0, 2]), np.array([4])]).learn(0)
    tasks = torch.cat([tasks for tasks, _ in batches], dim=1)
    assert set(tasks[0].tolist()) == {0, 2}
    assert set(tasks[1].tolist()) == {4}


def test_learning_is_that_of_a_plain_loop_whose_loss_is_of_the_answer(batches):
    size = Size(32, 1, 40, 8, 3e-3)
    students = Students(LANGUAGE, size, [0], [np.arange(TASKS)])
    students.learn(0)
    model = untrained(LANGUAGE, size, 0)
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    course = [0.5, 1.0, *(0.5 * (1 + math.cos(math.pi * step / 38)) for step in range(38))]
    for (_, (asked, answer)), part in zip(batches, course, strict=True):
        optimiser.param_groups[0]["lr"] = 3e-3 * part
        logits = model(torch.cat([asked[0], answer[0, :, :-1]], dim=1)).logits[:, -4:]
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), answer[0].flatten()).backward()
        optimiser.step()
    learned = students.models[0].state_dict()
    for name, weight in model.state_dict().items():
        assert torch.allclose(weight, learned[name], atol=1e-4), name


def test_the_same_seeds_make_the_same_student():
    made = [Students(LANGUAGE, SIZE, [3], [np.arange(4)]) for _ in range(2)]
    for students in made:
        students.learn(7)
    first, second = (students.models[0].state_dict() for students in made)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_answers_are_those_of_greedy_generation():
    students = Students(LANGUAGE, SIZE, [0], [np.arange(3)])
    asked, _ = drawn(2)
    answers, doubt = (output[0] for output in students.answer(asked[None]))
    options = {"do_sample": False, "max_new_tokens": 4, "attention_mask": torch.ones_like(asked)}
    said = students.models[0].generate(asked, **options)
    assert torch.equal(answers, said[:, -4:])
    with torch.no_grad():
        likely = students.models[0](said[:, :-1]).logits[:, -4:].log_softmax(dim=-1)
    assert torch.allclose(doubt, -likely.gather(-1, answers[..., None]).mean(dim=(1, 2)), atol=1e-5)


def test_a_student_learns_one_operation():
    students = Students(LANGUAGE, Size(32, 2, 300, 32, 5e-3), [0], [np.array([1])])  # raise
    students.learn(0)
    asked, right = Sentences(LANGUAGE, "cpu", 9).draw(torch.full((64,), 1))
    assert (students.answer(asked[None])[0][0] == right).all(dim=-1).float().mean() > 0.9


def test_places_are_where_they_are_said_to_be():
    model = untrained(LANGUAGE, SIZE, 0)
    asked, answer = drawn(2)
    tokens = torch.cat([asked, answer[:, :-1]], dim=1)
    activations = record(model, LANGUAGE, [LANGUAGE.text(row) for row in tokens.numpy()])
    assert tuple(activations) == POSITIONS
    with torch.no_grad():
        true = model.model.layers[0](
            model.model.embed_tokens(tokens),
            attention_mask=torch.full((12, 12), -1e9).triu(1)[None, None],
            position_embeddings=model.model.rotary_emb(torch.zeros(1), torch.arange(12)[None]),
        )
    true = (true[0] if isinstance(true, tuple) else true).numpy()
    assert LANGUAGE.words[tokens[0, 3]] == ":"
    assert LANGUAGE.words[tokens[0, 8]] == "="
    for position, rows in (
        ("asked", true[:, 3]),
        ("start", true[:, 8]),
        ("answer", true[:, 8:].mean(axis=1)),
    ):
        assert np.allclose(activations[position]["layers.0"], rows, atol=1e-4), position


def planted(
    language: Language, noise: np.ndarray, num_read: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """A layer with the operations and noise of this size, and a layer of noise."""
    tasks = language.tasks().repeat(num_read, axis=0)
    decodable = (
        np.concatenate([tasks, tasks], axis=1)
        + rng.normal(size=(len(tasks), 2 * tasks.shape[1])) * noise
    )
    return {"layers.0": rng.normal(size=decodable.shape), "layers.1": decodable}


def test_planted_failures_are_ranked_and_the_control_ranks_nothing():
    language, rng, num_read = Language(8, 3, 6, 8), np.random.default_rng(0), 6
    num = len(language.tasks())
    parts = np.where(rng.permutation(num) < num // 2, 1, 2)
    failed = rng.random(num)
    predictors = FailurePredictors(language, parts, failed, num_read)
    layers = planted(language, 0.5 * failed.repeat(num_read)[:, None], num_read, rng)
    predictors.add_probe("answer", layers)
    predictors.add_probe("control", layers, predictors.draw_partners(rng))
    assert predictors.facts["answer/layer"] == "layers.1"
    assert predictors.facts["answer/unseen"] > 0.5 > predictors.facts["control/unseen"]
    scores = predictors.scores("answer") | predictors.scores("control")
    assert scores["answer/spearman"] > 0.8
    assert scores["answer/longest/spearman"] > 0.8
    assert scores["answer/auroc"] > 0.9
    assert abs(scores["control/spearman"]) < 0.4


def test_partners_are_others_of_the_same_part():
    parts = np.array([1, 2, 1, 2, 1, 2])
    predictors = FailurePredictors(Language(3, 2, 4, 4), parts, np.zeros(6), 1)
    partners = predictors.draw_partners(np.random.default_rng(0))
    assert sorted(partners) == list(range(6))
    assert (parts[partners] == parts).all()
    assert (partners != np.arange(6)).all()


def test_where_nothing_differs_nothing_is_ranked():
    predictors = FailurePredictors(
        Language(3, 2, 4, 4), np.array([1, 2, 1, 2, 1, 2]), np.ones(6), 1
    )
    assert np.isnan(list(predictors.scores("rarity").values())).all()
