"""The parts of the U-Net, compared with their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.experiments.limits._images.unet import (
    CONDITIONINGS,
    PATCH,
    WAVES,
    Conv,
    Norm,
    UNet,
    channels_to_pixels,
    downsample,
    pixels_to_channels,
    upsample,
)
from recombine.parts.prng import new_key


def test_a_convolution_is_that_of_jax():
    conv = Conv(new_key(0), 3, 5)
    x = jax.random.normal(new_key(1), (7, 6, 3))
    kernel = conv.weight.reshape(3, 3, 3, 5)
    layout = ("NHWC", "HWIO", "NHWC")
    expected = jax.lax.conv_general_dilated(
        x[None], kernel, (1, 1), "SAME", dimension_numbers=layout
    )[0]
    np.testing.assert_allclose(conv(x), expected, atol=1e-5)


def test_patches_and_resolutions_can_be_undone():
    image = np.arange(8 * 4 * 3, dtype=np.float32).reshape(8, 4, 3)
    patches = pixels_to_channels(jnp.array(image))
    assert patches.shape == (4, 2, 3 * PATCH**2)
    np.testing.assert_array_equal(channels_to_pixels(patches), image)
    np.testing.assert_allclose(downsample(jnp.array(image))[0, 0], image[:2, :2].mean((0, 1)))
    np.testing.assert_allclose(downsample(upsample(jnp.array(image))), image)


def test_a_norm_removes_brightness_and_contrast():
    x = jax.random.normal(new_key(0), (5, 5, 16))
    np.testing.assert_allclose(Norm(16)(x), Norm(16)(3 * x + 2), atol=1e-3)


@pytest.mark.parametrize("conditioning", ["joint", "summed"])
def test_an_untrained_network_predicts_0_and_gives_activations_of_every_level(conditioning):
    @jax.jit
    def predict(codes):
        network = UNet(new_key(0), 8, (2, 4), conditioning)
        image = jnp.ones((28, 28, 3))
        return jax.vmap(lambda code: network(image, jnp.float32(0.3), code))(codes)

    images, activations = predict(jnp.eye(6)[:2])
    assert images.shape == (2, 28, 28, 3)
    assert not np.asarray(images).any()
    widths = {name: value.shape[1] for name, value in activations.items()}
    assert widths == {"down0": 8, "down1": 16, "middle": 16, "up1": 16, "up0": 8}
    assert not np.allclose(*activations["down0"]), "they depend on the code"


@pytest.mark.parametrize(("conditioning", "is_additive"), [("summed", True), ("joint", False)])
def test_factors_interact_only_in_a_joint_conditioning(conditioning, is_additive):
    embed = CONDITIONINGS[conditioning](iter(jax.random.split(new_key(0), 8)), (2, 1), 32)
    disc = jnp.array([1.0, 0])
    square = jnp.array([0, 1.0])

    def embedding(shape, size):
        return embed(jnp.ones(2 * WAVES), jnp.append(shape, size))

    def effect_of_size(shape):
        return embedding(shape, 1.0) - embedding(shape, 0.0)

    assert np.abs(effect_of_size(disc)).max() > 0.01
    assert np.allclose(effect_of_size(disc), effect_of_size(square), atol=1e-5) == is_additive
    assert not np.allclose(embedding(disc, 0.0), embedding(square, 0.0), atol=0.01)
