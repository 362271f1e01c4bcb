import jax
import numpy as np
import pytest

from recombine.parts.encodings.language import Language
from recombine.parts.families.goal_grid import GoalGrid
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.prng import new_key


@jax.jit
def encode(task):
    speaker = Language().init(new_key(0), Hyperteacher())
    return Language().encode(speaker, new_key(0), task, None)


def sentence(task):
    return np.asarray(encode(np.asarray(task, np.float32))).tolist()


def test_a_sentence_worked_out_by_hand():
    # M = 3: words 1, 2, 3 are the modules, words 4, 5, …, 14 the weights 0, 0.1, …, 1.
    assert sentence([0.5, 0, 1]) == [1, 9, 2, 4, 3, 14]
    assert Language().num_tokens(Hyperteacher(num_modules=3)) == 17


def test_a_sentence_names_every_module_in_order():
    words = sentence(np.zeros(7))
    assert words[::2] == [1, 2, 3, 4, 5, 6, 7]
    assert words[1::2] == [8] * 7
    assert not jax.tree.leaves(Language().init(new_key(0), Hyperteacher())), "nothing to draw"


@pytest.mark.parametrize("tenths", range(11))
def test_the_word_does_not_depend_on_how_a_weight_was_rounded(tenths):
    one, ten, tenth = np.float32(1), np.float32(10), np.float32(0.1)
    weights = [
        np.float32(tenths) / ten,
        np.float32(tenths) * tenth,
        one - np.float32(10 - tenths) / ten,
    ]
    weights += [np.nextafter(weights[0], np.float32(2)), np.nextafter(weights[0], np.float32(-1))]
    assert len({float(weight) for weight in weights}) >= 3
    assert {sentence([weight, 0])[1] for weight in weights} == {3 + tenths}


def test_words_are_whole_numbers_below_the_vocabulary():
    family = Hyperteacher(num_modules=6)
    tasks = jax.jit(jax.vmap(family.weigh))(jax.random.split(new_key(0), 41), family.tasks())
    words = np.asarray(jax.jit(jax.vmap(encode))(tasks))
    assert words.shape == (41, 12)
    assert np.issubdtype(words.dtype, np.integer)
    assert words.min() >= 1
    assert words.max() == 6 + 11 < Language().num_tokens(family) == 23
    # Different discrete tasks have different sentences.
    assert len(np.unique(words, axis=0)) == len(np.unique(np.round(np.asarray(tasks), 3), axis=0))


def test_as_floats_a_sentence_is_an_affine_copy_of_the_task():
    task = np.array([0.5, 0, 0.6, 1.0])
    np.testing.assert_allclose((np.array(sentence(task)[1::2]) - 5) / 10, task)


def test_the_familys_own_sentence_is_used():
    family = GoalGrid(num_mazes=2)
    task = family.modules(np.array([[3, 1, 0, 4]]))[0].astype(np.float32)
    speaker = Language().init(new_key(0), family)
    words = np.asarray(
        jax.jit(lambda task: Language().encode(speaker, new_key(0), task, None))(task)
    )
    assert Language().num_tokens(family) == len(family.vocabulary) == 7 + 4 + 5 + 2 + 5
    spoken = " ".join(family.vocabulary[word] for word in words)
    assert spoken == "In the bottom-right quadrant, find and throw the clock in maze 1."
