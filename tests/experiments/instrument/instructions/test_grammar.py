"""The instruction language: the meaning of sentences, and that no two tasks mean the same."""

import re

import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.experiments.instrument import instructions as experiment
from recombine.experiments.instrument._instructions.grammar import OPERATIONS, Language

LANGUAGES = [*experiment.LANGUAGES.values(), Language(10, 3, 8, 10)]


def apply_in_plain_python(names: list[str], letters: list[int], num_letters: int) -> list[int]:
    """Apply the named operations one after the other, in the order below."""
    n = len(letters)
    m = num_letters
    operations = {
        "reverse": lambda x: x[::-1],
        "raise": lambda x: [(a + 1) % m for a in x],
        "swap": lambda x: x[n // 2 :] + x[: n // 2],
        "mirror": lambda x: [m - 1 - a for a in x],
        "rotate": lambda x: x[1:] + x[:1],
        "stripe": lambda x: [(a + 2) % m if i % 2 else a for i, a in enumerate(x)],
        "pair": lambda x: [x[i + 1] if i % 2 == 0 else x[i - 1] for i in range(n)],
        "trade": lambda x: [{0: 1, 1: 0}.get(a, a) for a in x],
        "ends": lambda x: [x[-1], *x[1:-1], x[0]],
        "tilt": lambda x: x[: n // 2] + [(a + 3) % m for a in x[n // 2 :]],
    }
    assert list(operations) == list(OPERATIONS)
    for name, operation in operations.items():
        letters = operation(letters) if name in names else letters
    return letters


def active_operations(language: Language, task: np.ndarray) -> list[str]:
    return [language.operations[number] for number in np.flatnonzero(task)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_tables_do_what_the_operations_do_one_after_the_other(language):
    rng = np.random.default_rng(0)
    tasks = language.tasks()
    sources, letter_maps = language.functions(tasks)
    for number, task in enumerate(tasks):
        letters = rng.integers(language.num_letters, size=language.length)
        moved = letters[sources[number]]
        answer = letter_maps[number][np.arange(language.length), moved]
        names = active_operations(language, task)
        expected = apply_in_plain_python(names, letters.tolist(), language.num_letters)
        assert answer.tolist() == expected


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_tasks_are_different_functions_and_none_is_the_identity(language):
    sources, letter_maps = language.functions(language.tasks())
    identity = (
        np.arange(language.length).tobytes(),
        np.tile(np.arange(language.num_letters), (language.length, 1)).tobytes(),
    )
    pairs = zip(sources, letter_maps, strict=True)
    functions = {(source.tobytes(), letter_map.tobytes()) for source, letter_map in pairs}
    assert len(functions) == len(language.tasks())
    assert identity not in functions


def test_instructions_name_the_operations_of_a_task_in_all_orders():
    language = Language(5, 3, 4, 4)
    instructions = language.instructions(language.tasks())
    for task, orders in zip(language.tasks(), instructions, strict=True):
        sentences = [language.text(tokens) for tokens in orders]
        for sentence in sentences:
            words = sentence.removesuffix(" :").split(" and ")
            assert len(words) == 3
            assert set(words) - {"keep"} == set(active_operations(language, task))
        assert len(set(sentences)) == {1: 3, 2: 6, 3: 6}[task.sum()]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_modules": 11}, "num_modules must be at most 10, got 11"),
        ({"num_modules": 2}, "num_hot must be at most num_modules=2, got 3"),
        ({"length": 5}, "length must be even"),
        ({"num_letters": 11}, "num_letters must be at most 10, got 11"),
        ({"length": 2}, "length"),
    ],
)
def test_invalid_languages_are_refused(fields, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Language(**fields)
