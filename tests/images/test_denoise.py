"""Training and sampling: an oracle of the noise makes its image, activations are of the step that is asked for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.images import denoise, judge
from recombine.images.scenes import SIDE, Things
from recombine.random import new_key

CUBE = Things(2, 2, 2)


class Oracle(eqx.Module):
    """Knows the image that a code means: a plane of one brightness."""

    def __call__(self, image, noise, code):
        clean = jnp.full((SIDE, SIDE, 3), code @ jnp.linspace(-0.3, 0.3, len(code)))
        share, much = denoise.level(noise)
        return (image - share * clean) / much, {"level": noise[None], "mean": image.mean()[None]}


def test_an_oracle_of_the_noise_makes_its_image():
    images, _ = denoise.sample(Oracle(), CUBE.codes, 0, num_steps=20)
    wanted = CUBE.codes @ np.linspace(-0.3, 0.3, 6)
    np.testing.assert_allclose(images, np.broadcast_to(wanted[:, None, None, None], images.shape), atol=1e-3)


def test_activations_are_of_the_fraction_that_is_asked_for():
    _, seen = denoise.sample(Oracle(), CUBE.codes[:2], 0, num_steps=20, kept=(0, 0.5, 1))
    assert set(seen) == {f"{name}@{f}" for name in ("level", "mean") for f in ("0", "0.5", "1")}
    levels = np.linspace(denoise.LAST, 0, 21)
    found = [float(seen[f"level@{f}"][0, 0]) for f in ("0", "0.5", "1")]
    np.testing.assert_allclose(found, levels[[0, 10, 19]], rtol=1e-5)


def test_many_images_are_made_in_parts(monkeypatch):
    monkeypatch.setattr(denoise, "MOST", 3)
    images, seen = denoise.sample(Oracle(), CUBE.codes, 0, num_steps=4)
    assert images.shape == (8, SIDE, SIDE, 3)
    assert seen["mean@0.5"].shape == (8, 1)
    assert len(np.unique(seen["mean@0.5"])) == 8, "no two begin with the same noise"


class Guess(eqx.Module):
    """Says that there is no noise, and keeps what it was told."""

    told: list = eqx.field(static=True)

    def __call__(self, image, noise, code):
        jax.debug.callback(lambda n, c: self.told.append((float(n), c.tolist())), noise, code)
        return 0 * image, {}


def test_training_draws_the_codes_that_are_trained_and_every_level():
    told: list = []
    found = denoise.loss(Guess(told), new_key(1), CUBE, jnp.array(CUBE.codes), jnp.int32(3), 64)
    jax.effects_barrier()
    assert float(found) == pytest.approx(1, abs=0.05), "the noise itself, of variance 1"
    assert {tuple(code) for _, code in told} == {tuple(code) for code in CUBE.codes[:3].tolist()}
    levels = sorted(level for level, _ in told)
    assert all(i / 64 <= level <= (i + 1) / 64 for i, level in enumerate(levels))


@pytest.mark.slow
def test_training_is_the_same_each_time_and_stops_on_the_way():
    rows = np.array([0, 1, 2])
    one = denoise.train(CUBE, rows, 8, seed=0, num_steps=3, batch=4, stops=(2,))
    other = denoise.train(CUBE, rows, 8, seed=0, num_steps=3, batch=4, stops=(2,))
    assert list(one) == [2, 3]
    leaves = [jax.tree.leaves(eqx.filter(net, eqx.is_array)) for net in (one[2], one[3], other[3])]
    assert all(np.array_equal(a, b) for a, b in zip(leaves[1], leaves[2], strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(leaves[0], leaves[1], strict=True))
    image, seen = denoise.sample(one[3], CUBE.codes[:2], 0, num_steps=2)
    assert np.isfinite(image).all()
    assert {name.split("@")[0] for name in seen} == {"down0", "down1", "down2", "middle", "up0", "up1", "up2"}


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
