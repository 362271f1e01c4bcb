"""Training and sampling, with an oracle that knows the clean image."""

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
    """Knows the image of each code: all pixels have one brightness."""

    def __call__(self, image, noise, code):
        clean = jnp.full((SIDE, SIDE, 3), code @ jnp.linspace(-0.3, 0.3, len(code)))
        return clean, {"level": noise[None], "mean": image.mean()[None]}


def test_an_oracle_generates_its_image():
    images, _ = denoise.sample(Oracle(), CUBE.codes, 0, num_steps=20)
    wanted = CUBE.codes @ np.linspace(-0.3, 0.3, 6)
    np.testing.assert_allclose(
        images, np.broadcast_to(wanted[:, None, None, None], images.shape), atol=1e-3
    )


def test_activations_are_recorded_at_the_given_fractions():
    _, recorded = denoise.sample(Oracle(), CUBE.codes[:2], 0, num_steps=20, recorded_at=(0, 0.5, 1))
    assert set(recorded) == {f"{name}@{f}" for name in ("level", "mean") for f in ("0", "0.5", "1")}
    levels = np.linspace(1, 0, 21)
    measured = [float(recorded[f"level@{f}"][0, 0]) for f in ("0", "0.5", "1")]
    np.testing.assert_allclose(measured, levels[[0, 10, 19]], rtol=1e-5)


def test_images_do_not_depend_on_the_batch_size():
    images, recorded = denoise.sample(Oracle(), CUBE.codes, 0, num_steps=4, batch=3)
    whole, _ = denoise.sample(Oracle(), CUBE.codes, 0, num_steps=4, batch=8)
    assert images.shape == (8, SIDE, SIDE, 3)
    np.testing.assert_allclose(images, whole, atol=1e-5)
    assert recorded["mean@0.5"].shape == (8, 1)
    assert len(np.unique(recorded["mean@0.5"])) == 8, "each starts with its own noise"


class Guess(eqx.Module):
    """Predicts 0, and keeps its inputs."""

    inputs: list = eqx.field(static=True)

    def __call__(self, image, noise, code):
        jax.debug.callback(lambda n, c: self.inputs.append((float(n), c.tolist())), noise, code)
        return 0 * image, {}


def test_training_draws_train_codes_and_all_noise_levels():
    inputs: list = []
    loss = denoise.loss(Guess(inputs), new_key(1), CUBE, jnp.array(CUBE.codes), jnp.int32(3), 64)
    jax.effects_barrier()
    images, _ = judge.draw(CUBE, new_key(2), 256)
    image_part, noise_part = denoise.image_and_noise(jnp.linspace(0, 1, 1000))
    weights = 1 / jnp.maximum(noise_part, denoise.MIN_NOISE) ** 2
    expected = float(jnp.square(images).mean() * weights.mean())
    assert float(loss) == pytest.approx(expected, rel=0.1)
    np.testing.assert_allclose(image_part**2 + noise_part**2, 1, rtol=1e-5)
    assert {tuple(code) for _, code in inputs} == {tuple(code) for code in CUBE.codes[:3].tolist()}
    levels = sorted(level for level, _ in inputs)
    assert all(i / 64 <= level <= (i + 1) / 64 for i, level in enumerate(levels))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(denoise, "UNet", Small)


def leaves(networks, number=0):
    return np.concatenate([np.ravel(leaf[number]) for leaf in jax.tree.leaves(networks)])


@pytest.mark.usefixtures("small")
def test_networks_train_side_by_side_as_alone_and_are_given_at_eval_steps():
    rows = [np.array([0, 1, 2]), np.array([5])]
    steps: list[int] = []
    both = dict(denoise.train(denoise.Shape(CUBE, 8, 6, 4, 2), rows, [0, 3], (2,), steps.append))
    assert list(both) == [2, 6]
    assert steps == [2, 6]
    assert not np.allclose(leaves(both[2]), leaves(both[6]))
    alone = denoise.Shape(CUBE, 8, 6, 4, 1)
    for number, seed in enumerate((0, 3)):
        single = dict(denoise.train(alone, [rows[number]], [seed]))
        np.testing.assert_allclose(leaves(single[6]), leaves(both[6], number), rtol=1e-4, atol=1e-6)
    other = dict(denoise.train(alone, [rows[1]], [0]))
    assert not np.allclose(leaves(other[6]), leaves(both[6]), rtol=1e-4), (
        "the train combinations matter"
    )


@pytest.mark.usefixtures("small")
def test_training_lowers_the_loss():
    shape = denoise.Shape(CUBE, 8, 150, 16, 1)
    first, last = dict(denoise.train(shape, [np.arange(8)], [0], (1,))).values()
    codes = jnp.array(CUBE.codes)

    def loss(networks):
        network = jax.tree.map(lambda leaf: leaf[0], networks)
        return float(denoise.loss(network, new_key(5), CUBE, codes, jnp.int32(8), 64))

    assert loss(last) < 0.8 * loss(first)


def test_a_judge_learns_colors_and_sizes():
    trained = judge.train(CUBE, 60, 32)
    images, codes = judge.draw(CUBE, new_key(7), 128)
    is_correct = judge.is_correct(trained, CUBE, np.asarray(images), np.asarray(codes))
    assert is_correct[:, 1:].mean() > 0.9, "colors and sizes are easy"
    assert judge.accuracy(trained, CUBE, 128, seed=7) == pytest.approx(is_correct.all(1).mean())


class Knowing(eqx.Module):
    """A judge that finds the code in the first pixels."""

    def __call__(self, image):
        return image.reshape(-1)[:6]


def test_a_judge_is_right_factor_by_factor():
    images = np.zeros((8, SIDE, SIDE, 3), np.float32)
    images.reshape(8, -1)[:, :6] = CUBE.codes
    codes = CUBE.codes.copy()
    codes[0, :2] = codes[0, 1::-1]  # another shape than the drawn one
    is_correct = judge.is_correct(Knowing(), CUBE, images, codes)
    assert is_correct.shape == (8, 3)
    assert is_correct.sum() == 23
    assert not is_correct[0, 0]
