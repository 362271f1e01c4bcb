"""Scenes: their codes and their drawings agree."""

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
    """Which pixels are not background, which is dark."""
    return images.max(-1) > -0.6


def test_codes_are_one_hot_by_factor():
    things = Things(3, 4, 2)
    assert things.codes.shape == (24, 9)
    assert things.blocks == (3, 4, 2)
    assert (things.codes.sum(1) == 3).all()
    assert len(np.unique(things.codes, axis=0)) == len(things.factors.drop_duplicates()) == 24
    assert list(things.factors.iloc[-1]) == ["triangle", "yellow", "large"]


def test_an_object_has_its_color_and_its_size_at_every_position():
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
        centers = [np.argwhere(pixels).mean(0) for pixels in ink]
        assert np.std(centers, axis=0).min() > 1, "positions vary"
    for size, means in areas.items():
        np.testing.assert_allclose(np.mean(means), np.pi * SIZES[size] ** 2, rtol=0.35)


def test_shapes_differ_at_every_size():
    things = Things()
    key = new_key(3)
    for size in range(3):
        rows = (things.values[:, 1] == 0) & (things.values[:, 2] == size)
        ink = [np.asarray(things.draw(key, code)) for code in things.codes[rows]]
        differences = [np.abs(a - b).max() for i, a in enumerate(ink) for b in ink[:i]]
        assert min(differences) > 0.3


def test_a_crowd_shows_each_kind_of_its_code():
    crowd = Crowd(6, 3)
    assert crowd.codes.shape == (6 + 15 + 20, 6)
    assert crowd.factors.shape == (41, 6)
    assert list(crowd.factors.columns[:2]) == ["red disc", "blue square"]
    for code in crowd.codes[[0, 10, -1]]:
        for image in drawings(crowd, code, 4):
            quarters = inked(image).reshape(2, SIDE // 2, 2, SIDE // 2).any((1, 3))
            assert quarters.sum() >= code.sum()
            assert inked(image).sum() > 20 * code.sum()


def test_the_codes_of_the_cube_vary_between_drawings():
    cube = Cube(0.3)
    assert cube.codes.shape == (8, 3)
    assert list(cube.factors.iloc[6]) == ["ellipse", "blue", "small"]
    codes = jax.vmap(lambda key: cube.vary(key, cube.codes[6]))(jax.random.split(new_key(0), 64))
    offsets = np.asarray(codes - cube.codes[6])
    assert np.abs(offsets).max(axis=0).min() > 0.2
    assert np.abs(offsets).max() <= 0.3
    correlations = np.corrcoef(offsets.T)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 0.4, "factors vary independently"


@pytest.mark.parametrize("flat", [0, 0.3, 1])
@pytest.mark.parametrize("size", [0, 0.3, 1])
def test_the_cube_draws_an_ellipse_of_the_size_and_the_height_of_its_code(flat, size):
    images = drawings(Cube(), np.array([flat, 0, size], np.float32))
    ink = images.max(-1) > 0  # at least half of a pixel is covered
    radius = SIZES["small"] + (SIZES["large"] - SIZES["small"]) * size
    np.testing.assert_allclose(
        ink.sum((1, 2)).mean(), np.pi * radius**2 * (1 - FLAT * flat), rtol=0.1
    )
    positions = [np.argwhere(pixels) for pixels in ink]
    height, width = np.mean([np.ptp(points, axis=0) + 1 for points in positions], axis=0)
    assert height / width == pytest.approx(1 - FLAT * flat, abs=0.1)


def test_the_cube_is_as_blue_as_its_code():
    codes = [np.array([0, colour, 1], np.float32) for colour in (0, 0.5, 1)]
    middle = [drawings(Cube(), code)[:, SIDE // 2, SIDE // 2].mean(axis=0) for code in codes]
    assert np.all(np.diff(middle, axis=0)[:, 2] > 0.3)
    assert np.all(np.diff(middle, axis=0)[:, 0] < -0.3)


def test_the_codes_of_things_do_not_vary():
    code = Things().vary(new_key(0), Things().codes[5])
    assert (np.asarray(code) == Things().codes[5]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Things(1, 2, 2), "2 to 6 values, got 1"),
        (lambda: Things(2, 2, 9), "2 to 3 values, got 9"),
        (lambda: Crowd(40), "2 to 36 kinds"),
        (lambda: Crowd(6, 5), "1 to 4 objects"),
        (lambda: Cube(0.5), "below .5, got 0.5"),
    ],
)
def test_scenes_that_cannot_be_drawn_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
