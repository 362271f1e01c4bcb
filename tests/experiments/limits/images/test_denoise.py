"""Training and sampling: an oracle of the noise makes its image, activations are of the step that is asked for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.experiments.limits._images import denoise, judge
from recombine.experiments.limits._images.scenes import SIDE, Things
from recombine.parts.prng import new_key
from tests.experiments.limits.images.small import Small

CUBE = Things(2, 2, 2)


class Oracle(eqx.Module):
    """Knows the image that a code means: a plane of one brightness."""

    def __call__(self, image, noise, code):
        clean = jnp.full((SIDE, SIDE, 3), code @ jnp.linspace(-0.3, 0.3, len(code)))
        return clean, {"level": noise[None], "mean": image.mean()[None]}


def test_an_oracle_of_the_noise_makes_its_image():
    images, _ = denoise.sample(Oracle(), CUBE.codes, 0, num_steps=20)
    wanted = CUBE.codes @ np.linspace(-0.3, 0.3, 6)
    np.testing.assert_allclose(
        images, np.broadcast_to(wanted[:, None, None, None], images.shape), atol=1e-3
    )


def test_activations_are_of_the_fraction_that_is_asked_for():
    _, seen = denoise.sample(Oracle(), CUBE.codes[:2], 0, num_steps=20, kept=(0, 0.5, 1))
    assert set(seen) == {f"{name}@{f}" for name in ("level", "mean") for f in ("0", "0.5", "1")}
    levels = np.linspace(1, 0, 21)
    found = [float(seen[f"level@{f}"][0, 0]) for f in ("0", "0.5", "1")]
    np.testing.assert_allclose(found, levels[[0, 10, 19]], rtol=1e-5)


def test_images_are_the_same_however_many_are_made_at_once():
    images, seen = denoise.sample(Oracle(), CUBE.codes, 0, num_steps=4, num=3)
    whole, _ = denoise.sample(Oracle(), CUBE.codes, 0, num_steps=4, num=8)
    assert images.shape == (8, SIDE, SIDE, 3)
    np.testing.assert_allclose(images, whole, atol=1e-5)
    assert seen["mean@0.5"].shape == (8, 1)
    assert len(np.unique(seen["mean@0.5"])) == 8, "no two begin with the same noise"


class Guess(eqx.Module):
    """Says 0, and keeps what it was told."""

    told: list = eqx.field(static=True)

    def __call__(self, image, noise, code):
        jax.debug.callback(lambda n, c: self.told.append((float(n), c.tolist())), noise, code)
        return 0 * image, {}


def test_training_draws_the_codes_that_are_trained_and_every_level():
    told: list = []
    found = denoise.loss(Guess(told), new_key(1), CUBE, jnp.array(CUBE.codes), jnp.int32(3), 64)
    jax.effects_barrier()
    images, _ = judge.draw(CUBE, new_key(2), 256)
    share, much = denoise.level(jnp.linspace(0, 1, 1000))
    wanted = float(jnp.square(images).mean() * (1 / jnp.maximum(much, denoise.LEAST) ** 2).mean())
    assert float(found) == pytest.approx(wanted, rel=0.1)
    np.testing.assert_allclose(share**2 + much**2, 1, rtol=1e-5)
    assert {tuple(code) for _, code in told} == {tuple(code) for code in CUBE.codes[:3].tolist()}
    levels = sorted(level for level, _ in told)
    assert all(i / 64 <= level <= (i + 1) / 64 for i, level in enumerate(levels))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(denoise, "UNet", Small)


def leaves(nets, place=0):
    return np.concatenate([np.ravel(leaf[place]) for leaf in jax.tree.leaves(nets)])


@pytest.mark.usefixtures("small")
def test_networks_train_side_by_side_as_they_do_alone_and_stop_on_the_way():
    rows = [np.array([0, 1, 2]), np.array([5])]
    steps: list[int] = []
    both = dict(denoise.train(denoise.Shape(CUBE, 8, 6, 4, 2), rows, [0, 3], (2,), steps.append))
    assert list(both) == [2, 6]
    assert steps == [2, 6]
    assert not np.allclose(leaves(both[2]), leaves(both[6]))
    alone = denoise.Shape(CUBE, 8, 6, 4, 1)
    for place, seed in enumerate((0, 3)):
        one = dict(denoise.train(alone, [rows[place]], [seed]))
        np.testing.assert_allclose(leaves(one[6]), leaves(both[6], place), rtol=1e-4, atol=1e-6)
    other = dict(denoise.train(alone, [rows[1]], [0]))
    assert not np.allclose(leaves(other[6]), leaves(both[6]), rtol=1e-4), "what is trained matters"


@pytest.mark.usefixtures("small")
def test_training_lowers_the_loss():
    shape = denoise.Shape(CUBE, 8, 150, 16, 1)
    first, last = dict(denoise.train(shape, [np.arange(8)], [0], (1,))).values()
    codes, key = jnp.array(CUBE.codes), new_key(5)
    before, after = (
        float(
            denoise.loss(
                jax.tree.map(lambda leaf: leaf[0], nets), key, CUBE, codes, jnp.int32(8), 64
            )
        )
        for nets in (first, last)
    )
    assert after < 0.8 * before


def test_a_judge_learns_to_tell_two_sizes():
    found = judge.train(CUBE, 60, 32)
    images, codes = judge.draw(CUBE, new_key(7), 128)
    right = judge.right(found, CUBE, np.asarray(images), np.asarray(codes))
    assert right[:, 1:].mean() > 0.9, "colours and sizes are easy"
    assert judge.accuracy(found, CUBE, 128, seed=7) == pytest.approx(right.all(1).mean())


class Knowing(eqx.Module):
    """A judge that reads the code off the first pixels."""

    def __call__(self, image):
        return image.reshape(-1)[:6]


def test_a_judge_is_right_factor_by_factor():
    images = np.zeros((8, SIDE, SIDE, 3), np.float32)
    images.reshape(8, -1)[:, :6] = CUBE.codes
    told = CUBE.codes.copy()
    told[0, :2] = told[0, 1::-1]  # another shape than is drawn
    found = judge.right(Knowing(), CUBE, images, told)
    assert found.shape == (8, 3)
    assert found.sum() == 23
    assert not found[0, 0]
