"""Prompts agree with their factors, list every combination once, and are split by the support."""

import itertools

import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.conditions import connected
from recombine.parts.supports.missing_module import MissingModule
from recombine.probe.prompts import Prompts, judge

ANIMALS = ["cat", "dog", "owl", "fox", "elk", "hen"]


def test_three_active_animals():
    prompts = Prompts({"animal": ANIMALS}, "a photo of {a animal}", num_hot=3)
    assert len(prompts) == 20
    assert "a photo of a cat, a dog and an owl" in prompts.texts
    assert list(prompts.factors) == ANIMALS
    assert (prompts.factors.sum(axis=1) == 3).all()
    for text, row in zip(prompts.texts, prompts.factors.to_dict("records"), strict=True):
        assert {name for name in ANIMALS if name in text} == {
            name for name, hot in row.items() if hot
        }
    assert prompts.held_out.sum() == 5  # a quarter
    assert connected(prompts.factors[~prompts.held_out].to_numpy())
    assert list(prompts.table) == [*ANIMALS, "text", "held_out"]


def test_one_active_concept_per_list_with_the_right_article():
    prompts = Prompts(
        {"colour": ["orange", "red"], "solid": ["cube", "egg", "orange"]}, "{a colour} {solid}"
    )
    expected = [
        "an orange cube",
        "an orange egg",
        "an orange orange",
        "a red cube",
        "a red egg",
        "a red orange",
    ]
    assert prompts.texts == expected
    assert prompts.factors.iloc[1].to_dict() == {"colour": "orange", "solid": "egg"}
    mixed = Prompts(
        {"animal": ANIMALS, "place": ["wood", "sea"]},
        "{animal} in the {place}",
        {"animal": 2, "place": 1},
    )
    assert mixed.texts[1] == "cat and dog in the sea"
    assert mixed.factors.iloc[1].to_dict() == dict.fromkeys(ANIMALS, 0) | {
        "cat": 1,
        "dog": 1,
        "place": "sea",
    }


def test_templates_give_several_samples_of_a_combination():
    prompts = Prompts({"animal": ANIMALS}, ["{a animal}", "a drawing of {animal}"], num_hot=2)
    assert len(prompts) == 2 * 15
    assert prompts.texts[:2] == ["a cat and a dog", "a drawing of cat and dog"]
    for of_combination in np.split(prompts.held_out, 15):  # held out in all samples or in none
        assert len(set(of_combination)) == 1
    assert (np.bincount(prompts.combinations) == 2).all()


def test_a_support_decides_what_is_held_out():
    prompts = Prompts(
        {"animal": ANIMALS}, "{animal}", num_hot=2, support=MissingModule(), frac_test=0.4
    )
    train = prompts.factors[~prompts.held_out].sum()
    assert (train == 0).sum() == 1, "one animal occurs in no train prompt"


def test_sampled_combinations_are_distinct_and_deterministic():
    words = [f"thing{number}" for number in range(60)]
    made = [
        Prompts({"thing": words}, "{thing}", num_hot=3, max_combinations=500, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert len(set(made[0].texts)) == 500
    assert made[0].texts == made[1].texts != made[2].texts
    assert (made[0].held_out == made[1].held_out).all()


def test_judges_that_return_lists_and_dicts():
    factors = Prompts({"animal": ANIMALS}, "{animal}", num_hot=2).factors
    # The images of this test are lists of the animals in them.
    images = [[name for name in factors if row[name]] for row in factors.to_dict("records")]
    assert not judge(images, lambda image: image, factors)["failed"].any()
    without_owls = judge(images, lambda image: [name for name in image if name != "owl"], factors)
    assert (without_owls["failed"] == (factors["owl"] == 1)).all()
    assert (without_owls["owl"] == 0).all()
    as_dicts = judge(images, lambda image: {name: int(name in image) for name in ANIMALS}, factors)
    assert not as_dicts["failed"].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hot": 7}, "7 of 6 concepts of 'animal' cannot be active: set num_hot from 1 to 6"),
        ({"templates": "a photo"}, "does not mention {animal}: add it"),
        ({"templates": "{animal} {size}"}, "has the unknown slot {size}: the lists are animal"),
        ({"concepts": {}}, "there is no list of concepts"),
        ({"concepts": {"animal": ["cat", "cat"]}}, "'animal' lists a concept twice"),
        (
            {
                "concepts": {"animal": ANIMALS, "pet": ["cat", "dog", "rat"]},
                "templates": "{animal} {pet}",
            },
            "two lists",
        ),
        ({"num_hot": {"beast": 2}}, "num_hot has no number for 'animal'"),
        (
            {"concepts": {"animal": [str(n) for n in range(100)]}, "num_hot": 5},
            "75,287,520 combinations: set max_",
        ),
    ],
)
def test_wrong_prompts_are_refused(change, message):
    options = {"concepts": {"animal": ANIMALS}, "templates": "{animal}", "num_hot": 2} | change
    with pytest.raises(InputError) as error:
        Prompts(**options)
    assert message in str(error.value)


def test_wrong_judges_are_refused():
    factors = Prompts({"animal": ANIMALS}, "{animal}", num_hot=2).factors
    images = list(itertools.repeat(0, len(factors)))
    for judging, message in {
        lambda image: None: "the judge returned NoneType for image 0: it must return a dict of",
        lambda image: {"cat": 1}: "the judge returned no value of 'dog' for image 0",
        lambda image: ["cow"]: "returned the unknown factor 'cow': the factors are cat",
    }.items():
        with pytest.raises(InputError, match=message):
            judge(images, judging, factors)
    with pytest.raises(InputError, match="there are 3 images and 15 rows of factors"):
        judge(images[:3], lambda image: [], factors)
