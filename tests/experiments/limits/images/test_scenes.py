"""Scenes: their codes say what is in them, and drawing shows it."""

import jax
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.experiments.limits._images.scenes import (
    COLOURS,
    FLAT,
    SIDE,
    SIZES,
    Crowd,
    Cube,
    Things,
)
from recombine.parts.prng import new_key


def drawings(scenes, code, count=16):
    return np.asarray(
        jax.vmap(lambda key: scenes.draw(key, code))(jax.random.split(new_key(0), count))
    )


def inked(images):
    """Which pixels are not the ground's: its channels are alike and dark."""
    return images.max(-1) > -0.6


def test_codes_are_one_hot_by_factor():
    things = Things(3, 4, 2)
    assert things.codes.shape == (24, 9)
    assert things.blocks == (3, 4, 2)
    assert (things.codes.sum(1) == 3).all()
    assert len(np.unique(things.codes, axis=0)) == len(things.factors.drop_duplicates()) == 24
    assert list(things.factors.iloc[-1]) == ["triangle", "yellow", "large"]


def test_an_object_has_its_colour_and_its_size_wherever_it_is():
    things = Things()
    areas = {}
    for code, (_, factors) in zip(things.codes, things.factors.iterrows(), strict=True):
        if factors["shape"] != "disc":
            continue
        images = drawings(things, code)
        assert images.shape == (16, SIDE, SIDE, 3)
        assert np.abs(images).max() <= 1
        ink = inked(images)
        areas.setdefault(factors["size"], []).append(ink.sum((1, 2)).mean())
        brightest = (images[ink].max(0) + 1) / 2
        np.testing.assert_allclose(brightest, COLOURS[factors["colour"]], atol=0.06)
        places = [np.argwhere(one).mean(0) for one in ink]
        assert np.std(places, axis=0).min() > 1, "it is not always at the same place"
    for size, found in areas.items():
        np.testing.assert_allclose(np.mean(found), np.pi * SIZES[size] ** 2, rtol=0.35)


def test_shapes_differ_at_every_size():
    things = Things()
    key = new_key(3)
    for size in range(3):
        rows = (things.values[:, 1] == 0) & (things.values[:, 2] == size)
        ink = [np.asarray(things.draw(key, code)) for code in things.codes[rows]]
        apart = [np.abs(a - b).max() for i, a in enumerate(ink) for b in ink[:i]]
        assert min(apart) > 0.3


def test_a_crowd_shows_each_kind_that_its_code_marks():
    crowd = Crowd(6, 3)
    assert crowd.codes.shape == (6 + 15 + 20, 6)
    assert crowd.factors.shape == (41, 6)
    assert list(crowd.factors.columns[:2]) == ["red disc", "blue square"]
    for code in crowd.codes[[0, 10, -1]]:
        for image in drawings(crowd, code, 4):
            quarters = inked(image).reshape(2, SIDE // 2, 2, SIDE // 2).any((1, 3))
            assert quarters.sum() >= code.sum()
            assert inked(image).sum() > 20 * code.sum()


def test_the_cube_tells_how_flat_how_blue_and_how_large_each_drawing_is():
    cube = Cube(0.3)
    assert cube.codes.shape == (8, 3)
    assert list(cube.factors.iloc[6]) == ["ellipse", "blue", "small"]
    told = jax.vmap(lambda key: cube.vary(key, cube.codes[6]))(jax.random.split(new_key(0), 64))
    off = np.asarray(told - cube.codes[6])
    assert np.abs(off).max(axis=0).min() > 0.2
    assert np.abs(off).max() <= 0.3
    assert np.abs(np.corrcoef(off.T)[np.triu_indices(3, 1)]).max() < 0.4, "each varies by itself"


@pytest.mark.parametrize("flat", [0, 0.3, 1])
@pytest.mark.parametrize("size", [0, 0.3, 1])
def test_the_cube_draws_an_ellipse_of_the_size_and_the_height_that_it_is_told(flat, size):
    ink = (
        drawings(Cube(), np.array([flat, 0, size], np.float32)).max(-1) > 0
    )  # at least half of a pixel
    radius = SIZES["small"] + (SIZES["large"] - SIZES["small"]) * size
    np.testing.assert_allclose(
        ink.sum((1, 2)).mean(), np.pi * radius**2 * (1 - FLAT * flat), rtol=0.1
    )
    places = [np.argwhere(one) for one in ink]
    tall, wide = np.mean([np.ptp(place, axis=0) + 1 for place in places], axis=0)
    assert tall / wide == pytest.approx(1 - FLAT * flat, abs=0.1)


def test_the_cube_is_as_blue_as_it_is_told():
    codes = [np.array([0, colour, 1], np.float32) for colour in (0, 0.5, 1)]
    middle = [drawings(Cube(), code)[:, SIDE // 2, SIDE // 2].mean(axis=0) for code in codes]
    assert np.all(np.diff(middle, axis=0)[:, 2] > 0.3)
    assert np.all(np.diff(middle, axis=0)[:, 0] < -0.3)


def test_things_are_told_by_name():
    same = Things().vary(new_key(0), Things().codes[5])
    assert (np.asarray(same) == Things().codes[5]).all(), "things are told by name"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Things(1, 2, 2), "2 to 6 values, got 1"),
        (lambda: Things(2, 2, 9), "2 to 3 values, got 9"),
        (lambda: Crowd(40), "2 to 36 kinds"),
        (lambda: Crowd(6, 5), "1 to 4 objects"),
        (lambda: Cube(0.5), "below .5, got 0.5"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, says):
    with pytest.raises(InputError, match=says):
        make()
