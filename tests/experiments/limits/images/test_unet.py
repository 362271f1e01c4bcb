"""The U-Net's pieces, against what is known of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.experiments.limits._images.unet import (
    PATCH,
    TELL,
    WAVES,
    Conv,
    Norm,
    UNet,
    _apart,
    _doubled,
    halved,
    together,
)
from recombine.parts.prng import new_key


def test_a_convolution_is_one():
    conv = Conv(new_key(0), 3, 5)
    x = jax.random.normal(new_key(1), (7, 6, 3))
    kernel = conv.weight.reshape(3, 3, 3, 5)
    numbers = ("NHWC", "HWIO", "NHWC")
    wanted = jax.lax.conv_general_dilated(
        x[None], kernel, (1, 1), "SAME", dimension_numbers=numbers
    )[0]
    np.testing.assert_allclose(conv(x), wanted, atol=1e-5)


def test_pixels_of_a_place_come_back():
    image = np.arange(8 * 4 * 3, dtype=np.float32).reshape(8, 4, 3)
    places = together(jnp.array(image))
    assert places.shape == (4, 2, 3 * PATCH**2)
    np.testing.assert_array_equal(_apart(places), image)
    np.testing.assert_allclose(halved(jnp.array(image))[0, 0], image[:2, :2].mean((0, 1)))
    np.testing.assert_allclose(halved(_doubled(jnp.array(image))), image)


def test_a_norm_takes_away_brightness_and_contrast():
    x = jax.random.normal(new_key(0), (5, 5, 16))
    np.testing.assert_allclose(Norm(16)(x), Norm(16)(3 * x + 2), atol=1e-3)


@pytest.mark.parametrize("told", ["together", "apart"])
def test_a_network_begins_with_no_noise_and_shows_every_level(told):
    @jax.jit
    def shown(codes):
        net = UNet(new_key(0), 8, (2, 4), told)
        return jax.vmap(lambda code: net(jnp.ones((28, 28, 3)), jnp.float32(0.3), code))(codes)

    noise, seen = shown(jnp.eye(6)[:2])
    assert noise.shape == (2, 28, 28, 3)
    assert not np.asarray(noise).any()
    widths = {name: value.shape[1] for name, value in seen.items()}
    assert widths == {"down0": 8, "down1": 16, "middle": 16, "up1": 16, "up0": 8}
    assert not np.allclose(*seen["down0"]), "it is told the code"


@pytest.mark.parametrize(("told", "adds_up"), [("apart", True), ("together", False)])
def test_what_a_factor_adds_depends_on_others_unless_it_is_told_apart(told, adds_up):
    tell = TELL[told](iter(jax.random.split(new_key(0), 8)), (2, 1), 32)
    waves = jnp.ones(2 * WAVES)
    shape, other, small, large = (
        jnp.array([1.0, 0]),
        jnp.array([0, 1.0]),
        jnp.array([0.0]),
        jnp.array([1.0]),
    )

    def grown(one):
        return tell(waves, jnp.concatenate([one, large])) - tell(
            waves, jnp.concatenate([one, small])
        )

    assert np.abs(grown(shape)).max() > 0.01, "it is told the size"
    assert np.allclose(grown(shape), grown(other), atol=1e-5) == adds_up
    both = [tell(waves, jnp.concatenate([one, small])) for one in (shape, other)]
    assert not np.allclose(*both, atol=0.01), "it is told the shape"
