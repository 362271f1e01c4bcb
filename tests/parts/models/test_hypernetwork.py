import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.families.hyperteacher import Hyperteacher, Teacher
from recombine.parts.models.hypernetwork import Hypernetwork
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch

NORMALISATIONS = pytest.mark.parametrize("normalisation", ["layer", "none"])


def drawn(model, d_input=3, d_code=4, num_outputs=2, code_type=np.float32):
    code = np.zeros(d_code, code_type)
    example = Batch(np.zeros((5, d_input)), np.zeros((5, num_outputs)), code, code)
    return model.init(new_key(0), example, num_outputs)


def filled(model, **sizes):
    """The network with random numbers in all arrays, also in biases, without compiling anything."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda a: np.float32(rng.normal(0, 0.5, a.shape)),
        jax.eval_shape(lambda: drawn(model, **sizes)),
    )


@jax.jit
def call(net, x, code):
    return net(x, code)


@jax.jit
def call_many(net, x, code):
    return net.many(x, code)


def several(normalisation, d_code=4):
    """A network, and points and codes of six tasks."""
    rng = np.random.default_rng(1)
    net = filled(Hypernetwork(7, normalisation), d_code=d_code)
    return (
        net,
        rng.normal(size=(6, 5, 3)).astype(np.float32),
        rng.normal(size=(6, d_code)).astype(np.float32),
    )


def by_hand(net, x, code):
    """The equation in float64, weight by weight: generate the network and apply it to a point."""
    code = np.float64(code)
    if net.norm is not None:
        code = (code - code.mean()) / np.sqrt(code.var() + 1e-5) * net.norm.weight + net.norm.bias

    def generated(generator, *shape):
        weights = np.empty(shape)
        for i, index in enumerate(np.ndindex(*shape)):
            weights[index] = sum(np.float64(generator.weight[i]) * code) + generator.bias[i]
        return weights

    d_input, d_hidden, num_outputs = len(x), len(net.hidden.bias.bias), len(net.readout.bias.bias)
    kernel = generated(net.hidden.kernel, d_hidden, d_input) / math.sqrt(d_input)
    pre = kernel @ np.float64(x) + generated(net.hidden.bias, d_hidden)
    kernel = generated(net.readout.kernel, num_outputs, d_hidden) / math.sqrt(d_hidden)
    return pre, kernel @ np.maximum(pre, 0) + generated(net.readout.bias, num_outputs)


@NORMALISATIONS
def test_it_applies_the_network_that_the_code_generates(normalisation):
    net, x, code = several(normalisation)
    prediction, activations = call_many(net, x, code)
    assert activations.keys() == {"pre0", "hidden0", "output"}
    for task, point in np.ndindex(6, 5):
        pre, output = by_hand(net, x[task, point], code[task])
        np.testing.assert_allclose(activations["pre0"][task, point], pre, atol=1e-4)
        np.testing.assert_allclose(prediction[task, point], output, atol=1e-4)
    np.testing.assert_array_equal(activations["hidden0"], np.maximum(activations["pre0"], 0))
    np.testing.assert_array_equal(activations["output"], prediction)
    assert (np.asarray(activations["pre0"]) < 0).any()
    # The same for one task at a time, without the axis of tasks.
    single, single_activations = call(net, x[1], code[1])
    np.testing.assert_allclose(single, prediction[1], atol=1e-5)
    assert {name: h.shape for name, h in single_activations.items()} == {
        "pre0": (5, 7),
        "hidden0": (5, 7),
        "output": (5, 2),
    }


def test_before_the_nonlinearity_it_is_linear_in_the_code():
    net, x, codes = several("none")
    first_code, second_code = codes[:2]

    def nonlinearity(net, layer):
        def activation(code):
            return call(net, x[0], code)[1][layer]

        # Coefficients that sum to 1, so that the generators' biases are counted once.
        mixed = activation(3 * first_code - 2 * second_code)
        return np.abs(mixed - 3 * activation(first_code) + 2 * activation(second_code)).max()

    assert nonlinearity(net, "pre0") < 1e-4
    # Controls: after the ReLU it is not linear, and with a LayerNorm it is not either.
    assert nonlinearity(net, "output") > 0.1
    assert nonlinearity(several("layer")[0], "pre0") > 0.1


def test_a_layernorm_removes_the_scale_of_the_code():
    net, x, code = several("layer")
    np.testing.assert_allclose(
        call(net, x[0], code[0])[0], call(net, x[0], 3 * code[0] + 1)[0], atol=1e-3
    )
    net = several("none")[0]
    assert np.abs(call(net, x[0], code[0])[0] - call(net, x[0], 3 * code[0] + 1)[0]).max() > 0.1


def test_a_hyperteacher_is_one_of_its_networks():
    family = Hyperteacher(num_modules=5, num_hot=3, d_input=4, d_hidden=6, num_outputs=2)
    rng = np.random.default_rng(2)
    theta, b, omega = rng.normal(size=(5, 4, 6)), rng.normal(size=(5, 6)), rng.normal(size=(6, 2))
    net = jax.tree.map(np.zeros_like, filled(Hypernetwork(6, "none"), d_input=4, d_code=5))
    # Column m of a generator is module m. The readout does not depend on the task, so it is the
    # bias of its generator.
    net.hidden.kernel.weight[:] = (
        theta.transpose(2, 1, 0).reshape(24, 5) / math.sqrt(family.num_hot) * math.sqrt(4)
    )
    net.hidden.bias.weight[:] = b.T / math.sqrt(family.num_hot)
    net.readout.kernel.bias[:] = omega.T.ravel() * math.sqrt(6)
    world = Teacher((jnp.float32(theta),), (jnp.float32(b),), jnp.float32(omega))
    x, z = jnp.float32(rng.uniform(-1, 1, (9, 4))), jnp.array([0.5, 0, 1, 0, 0.7])
    expected = family.teach(world, z, x)
    assert np.abs(expected).max() > 0.3
    np.testing.assert_allclose(call(net, x, z)[0], expected, atol=1e-5)


def test_generated_kernels_start_with_the_variance_of_a_lecun_draw():
    net = jax.jit(lambda: drawn(Hypernetwork(50), d_input=20, d_code=30, num_outputs=10))()
    assert all(
        isinstance(leaf, jax.Array) and leaf.dtype == np.float32 for leaf in jax.tree.leaves(net)
    )
    # Muon treats them as matrices (out, in).
    shapes = [leaf.shape for leaf in jax.tree.leaves((net.hidden, net.readout)) if leaf.ndim > 1]
    assert shapes == [(50 * 20, 30), (50, 30), (10 * 50, 30), (10, 30)]
    codes = np.random.default_rng(3).normal(size=(20, 30)).astype(np.float32)
    # At unit vectors and without biases, pre0 is a column of the generated weights.
    _, activations = call_many(
        net, np.broadcast_to(np.eye(20, dtype=np.float32), (20, 20, 20)), codes
    )
    kernels = np.asarray(activations["pre0"])
    assert kernels.std() == pytest.approx(20**-0.5, rel=0.05)
    assert abs(kernels.mean()) < 0.05 * 20**-0.5
    for generator in (net.hidden.bias, net.readout.bias):
        assert not generator.weight.any()
        assert not generator.bias.any()
    assert not net.hidden.kernel.bias.any()
    # With normalized codes and points of unit variance, hidden layers have variance 1 and outputs
    # half of that.
    x = np.random.default_rng(4).normal(size=(20, 100, 20)).astype(np.float32)
    prediction, activations = call_many(net, x, codes)
    assert np.var(activations["pre0"]) == pytest.approx(1, rel=0.1)
    assert np.var(prediction) == pytest.approx(0.5, rel=0.15)
    hidden = np.asarray(net.hidden.kernel.weight).ravel()[:5000]
    readout = np.asarray(net.readout.kernel.weight).ravel()[:5000]
    assert abs(np.corrcoef(hidden, readout)[0, 1]) < 0.07, (
        "layers must not share their random numbers"
    )


def test_integer_codes_are_used_as_floats():
    net = filled(Hypernetwork(7), code_type=np.int32)
    x, words = np.full((2, 3), 0.3, np.float32), np.array([1, 9, 2, 4])
    expected = by_hand(net, x[0], [1.0, 9, 2, 4])[1]
    np.testing.assert_allclose(call(net, x, words)[0], [expected, expected], atol=1e-5)


@NORMALISATIONS
def test_products_are_in_the_type_of_the_weights(normalisation):
    net, x, code = jax.tree.map(jnp.asarray, several(normalisation))
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if leaf.ndim == 2 else leaf, net)
    text = str(jax.make_jaxpr(lambda net: net.many(x, code)[0])(low))
    kinds = [
        line.split(" = ")[0].split(":")[1][:4]
        for line in text.splitlines()
        if " = dot_general[" in line
    ]
    assert kinds == ["bf16"] * 6  # four generators and two layers
    (_, expected), (_, low_precision) = call_many(net, x, code), call_many(low, x, code)
    for name, h in low_precision.items():
        assert h.dtype == jnp.float32
        np.testing.assert_allclose(h, expected[name], atol=0.03 * np.abs(expected[name]).max())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_hidden": 0}, r"Hypernetwork\.d_hidden must be at least 1, got 0"),
        ({"d_hidden": 6.5}, r"Hypernetwork\.d_hidden must be a whole number, got 6\.5"),
        (
            {"normalisation": "rms"},
            r"Hypernetwork\.normalisation must be one of 'layer', 'none', got 'rms'",
        ),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(InputError, match=message):
        Hypernetwork(**fields)


@pytest.mark.parametrize(
    ("points", "code"), [((5, 3, 2), (4,)), ((5,), (4,)), ((5, 3), (4, 2)), ((5, 3), ())]
)
def test_images_and_sequences_are_refused(points, code):
    example = Batch(np.zeros(points), np.zeros((5, 2)), np.zeros(code), np.zeros(4))
    with pytest.raises(
        InputError, match=r"Hypernetwork needs points \(n, d\) and a flat code: choose an encoding"
    ):
        Hypernetwork(6).init(new_key(0), example, 2)
