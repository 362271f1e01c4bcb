"""The instruction language: what sentences mean, and that no two tasks mean the same."""

import re

import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.experiments.instrument import instructions as experiment
from recombine.experiments.instrument._instructions.grammar import OPERATIONS, Language


def carried_out(names: list[str], given: list[int], num_letters: int) -> list[int]:
    """Operations in plain Python, one after the other, in the order of their names below."""
    n, m = len(given), num_letters
    steps = {
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
    assert list(steps) == list(OPERATIONS)
    for name, step in steps.items():
        given = step(given) if name in names else given
    return given


@pytest.mark.parametrize("sizes", [*experiment.LANGUAGES.values(), (10, 3, 8, 10)])
def test_tables_do_what_the_operations_do_one_after_the_other(sizes):
    language, rng = Language(*sizes), np.random.default_rng(0)
    tasks = language.tasks()
    where, becomes = language.functions(tasks)
    for number, task in enumerate(tasks):
        given = rng.integers(language.num_letters, size=language.length)
        answer = becomes[number][np.arange(language.length), given[where[number]]]
        names = [name for name, there in zip(language.operations, task, strict=True) if there]
        assert answer.tolist() == carried_out(names, given.tolist(), language.num_letters)


@pytest.mark.parametrize("sizes", [*experiment.LANGUAGES.values(), (10, 3, 8, 10)])
def test_every_task_is_another_function_and_none_does_nothing(sizes):
    language = Language(*sizes)
    where, becomes = language.functions(language.tasks())
    nothing = (
        np.arange(language.length),
        np.tile(np.arange(language.num_letters), (language.length, 1)),
    )
    known = {(one.tobytes(), other.tobytes()) for one, other in zip(where, becomes, strict=True)}
    assert len(known) == len(language.tasks())
    assert (nothing[0].tobytes(), nothing[1].tobytes()) not in known


def test_instructions_name_the_operations_of_a_task_in_all_orders():
    language = Language(5, 3, 4, 4)
    told = language.instructions(language.tasks())
    for task, orders in zip(language.tasks(), told, strict=True):
        sentences = [language.text(tokens) for tokens in orders]
        names = {name for name, there in zip(language.operations, task, strict=True) if there}
        for sentence in sentences:
            words = sentence.removesuffix(" :").split(" and ")
            assert len(words) == 3
            assert set(words) - {"keep"} == names
        assert len(set(sentences)) == {1: 3, 2: 6, 3: 6}[task.sum()]


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"num_modules": 11}, "num_modules must be at most 10, got 11"),
        ({"num_modules": 2}, "num_hot must be at most num_modules=2, got 3"),
        ({"length": 5}, "length must be even"),
        ({"num_letters": 11}, "num_letters must be at most 10, got 11"),
        ({"length": 2}, "length"),
    ],
)
def test_what_makes_no_language_is_refused(sizes, says):
    with pytest.raises(InputError, match=re.escape(says)):
        Language(**sizes)
