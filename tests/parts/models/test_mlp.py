import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.models.mlp import MLP
from recombine.parts.perceptron import LONG_CODE
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch

TRUNCATED = 0.87962566  # standard deviation of a standard normal that is cut at -2 and 2


def drawn(model, d_input=3, d_code=4, num_outputs=2, num_tokens=0):
    code = np.zeros(d_code, np.int32 if num_tokens else np.float32)
    example = Batch(np.zeros((5, d_input)), np.zeros((5, num_outputs)), code, code)
    return model.init(new_key(0), example, num_outputs, num_tokens)


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


def by_hand(net, x, code):
    """A plain network on the concatenation [code, x], one point at a time, in float64."""
    layers = [
        (np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64))
        for layer in net.layers
    ]
    pre = []
    for point in np.asarray(x):
        h = np.concatenate([np.asarray(code, np.float64), point])
        pre.append([])
        for i, (weight, bias) in enumerate(layers):
            pre[-1].append(weight @ h + bias)
            h = np.maximum(pre[-1][-1], 0) if i < len(layers) - 1 else pre[-1][-1]
    return [np.stack(layer) for layer in zip(*pre, strict=True)]


@pytest.mark.parametrize("widths", [(7,), (6, 9, 5)])
def test_it_is_a_plain_network_on_code_and_point_together(widths):
    net, rng = filled(MLP(widths)), np.random.default_rng(1)
    x, code = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=4).astype(np.float32)
    prediction, activations = call(net, x, code)
    *hidden, output = by_hand(net, x, code)
    np.testing.assert_allclose(prediction, output, atol=1e-5)
    np.testing.assert_array_equal(activations["output"], prediction)
    names = {f"{kind}{i}" for kind in ("pre", "hidden") for i in range(len(widths))}
    assert activations.keys() == {*names, "output"}
    for i, expected in enumerate(hidden):
        assert activations[f"pre{i}"].shape == (5, widths[i])
        assert expected.min() < 0 < expected.max()
        np.testing.assert_allclose(activations[f"pre{i}"], expected, atol=1e-5)
        np.testing.assert_array_equal(
            activations[f"hidden{i}"], np.maximum(activations[f"pre{i}"], 0)
        )


FUNCTIONS = {
    "relu": lambda h: np.maximum(h, 0),
    "gelu": lambda h: h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))),
    "silu": lambda h: h / (1 + np.exp(-h)),
    "tanh": np.tanh,
}


def with_options(model, net, x, code):
    """The inputs and outputs of the hidden layers and the prediction at one point, in float64."""
    h, pre, hidden = np.concatenate([code, x]).astype(np.float64), [], []
    for i in range(len(model.widths)):
        u = np.float64(net.layers[i].weight) @ h + np.float64(net.layers[i].bias)
        if model.normalisation == "layer":
            u = (u - u.mean()) / np.sqrt(u.var() + 1e-5) * net.norms[i].weight + net.norms[i].bias
        if model.normalisation == "rms":
            u = u / np.sqrt(np.mean(u**2) + 1e-5) * net.norms[i].weight
        activated = FUNCTIONS[model.activation](u)
        h = h + activated if model.residual and i > 0 else activated
        pre.append(u)
        hidden.append(h)
    return pre, hidden, np.float64(net.layers[-1].weight) @ h + np.float64(net.layers[-1].bias)


@pytest.mark.parametrize(
    ("activation", "normalisation", "residual"),
    [
        ("gelu", "none", False),
        ("silu", "layer", False),
        ("tanh", "rms", False),
        ("relu", "none", True),
        ("relu", "layer", True),
        ("gelu", "rms", True),
    ],
)
def test_options_of_the_hidden_layers(activation, normalisation, residual):
    model = MLP((7, 7, 7), activation=activation, normalisation=normalisation, residual=residual)
    net, rng = filled(model), np.random.default_rng(1)
    x, code = (
        rng.normal(size=(2, 5, 3)).astype(np.float32),
        rng.normal(size=(2, 4)).astype(np.float32),
    )
    prediction, activations = jax.jit(lambda net, x, code: net.many(x, code))(net, x, code)
    for task, point in np.ndindex(2, 5):
        pre, hidden, output = with_options(model, net, x[task, point], code[task])
        np.testing.assert_allclose(prediction[task, point], output, atol=1e-4)
        for i in range(3):
            np.testing.assert_allclose(activations[f"pre{i}"][task, point], pre[i], atol=1e-4)
            np.testing.assert_allclose(activations[f"hidden{i}"][task, point], hidden[i], atol=1e-4)


def test_norms_start_with_gain_one_and_shift_zero():
    per_layer = {"none": 0, "layer": 2, "rms": 1}
    nets = jax.jit(lambda: {name: drawn(MLP((7, 6), normalisation=name)) for name in per_layer})()
    for name, net in nets.items():
        assert [leaf.shape for leaf in jax.tree.leaves(net.norms)] == [(7,)] * per_layer[name] + [
            (6,)
        ] * per_layer[name]
        for norm in net.norms:
            np.testing.assert_array_equal(norm.weight, np.ones(norm.shape))
            assert norm.bias is None or not norm.bias.any()
        for layer, plain in zip(net.layers, nets["none"].layers, strict=True):
            np.testing.assert_array_equal(layer.weight, plain.weight)


def test_kernels_are_lecun_truncated_normal_and_biases_zero():
    net = jax.jit(lambda: drawn(MLP((100, 400)), d_input=20, d_code=80, num_outputs=30))()
    assert all(
        isinstance(leaf, jax.Array) and leaf.dtype == np.float32 for leaf in jax.tree.leaves(net)
    )
    assert [layer.weight.shape for layer in net.layers] == [(100, 100), (400, 100), (30, 400)]
    for layer in net.layers:
        kernel, fan_in = np.asarray(layer.weight), layer.weight.shape[1]
        # The first layer's fan-in is code and point together.
        assert kernel.std() == pytest.approx(fan_in**-0.5, rel=0.04)
        assert abs(kernel.mean()) < 5 * (fan_in * kernel.size) ** -0.5
        bound = 2 * fan_in**-0.5 / TRUNCATED
        assert 0.98 * bound < np.abs(kernel).max() <= 1.0001 * bound
        np.testing.assert_array_equal(layer.bias, np.zeros(len(kernel)))
    first, second = (np.asarray(layer.weight).ravel()[:10_000] for layer in net.layers[:2])
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05, (
        "layers must not share their random numbers"
    )


def test_integer_codes_are_used_as_floats():
    net = filled(MLP((6,)), num_tokens=17)
    assert net.embedding is None
    assert len(jax.tree.leaves(net)) == 4
    x, words = np.full((2, 3), 0.3, np.float32), np.array([1, 9, 2, 4])
    prediction, _ = call(net, x, words)
    np.testing.assert_allclose(prediction, by_hand(net, x, [1.0, 9, 2, 4])[-1], atol=1e-5)


def test_integer_codes_can_be_embedded():
    net = filled(MLP((6,), tokens="embed", d_embed=5), num_tokens=17)
    assert len(jax.tree.leaves(net)) == 5
    table = np.asarray(net.embedding.weight)
    assert table.shape == (17, 5)
    assert net.layers[0].weight.shape == (6, 4 * 5 + 3)
    x, words = np.full((2, 3), 0.3, np.float32), np.array([1, 9, 16, 4])
    code = np.concatenate([table[1], table[9], table[16], table[4]])
    np.testing.assert_allclose(call(net, x, words)[0], by_hand(net, x, code)[-1], atol=1e-5)


def test_float_codes_are_never_embedded():
    net = filled(MLP((6,), tokens="embed"))
    assert net.embedding is None
    assert net.layers[0].weight.shape == (6, 4 + 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"widths": ()}, r"MLP\.widths must name at least one hidden layer"),
        ({"widths": (8, 0)}, r"MLP\.widths must all be at least 1, got \(8, 0\)"),
        ({"widths": (8, -8)}, r"MLP\.widths must all be at least 1"),
        (
            {"widths": (8.5,)},
            r"MLP\.widths must be a tuple of whole numbers, .* 128,128, got \(8\.5,\)",
        ),
        (
            {"widths": 8},
            r"MLP\.widths must be a tuple of whole numbers, .* 128,128, got 8",
        ),
        ({"tokens": "words"}, r"MLP\.tokens must be one of 'float', 'embed', got 'words'"),
        ({"d_embed": 0}, r"MLP\.d_embed must be at least 1, got 0"),
        (
            {"activation": "sine"},
            r"MLP\.activation must be one of 'relu', 'gelu', 'silu', 'tanh', got 'sine'",
        ),
        (
            {"normalisation": "batch"},
            r"MLP\.normalisation must be one of 'none', 'layer', 'rms', got 'batch'",
        ),
        ({"residual": 1}, r"MLP\.residual must be True or False, got 1"),
        (
            {"residual": True, "widths": (8, 8, 9)},
            r"MLP\.residual .* make all widths equal, got \(8, 8, 9\)",
        ),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(InputError, match=message):
        MLP(**fields)


def test_widths_may_be_a_list():
    assert MLP([8, 8]) == MLP((8, 8))
    assert hash(MLP([8, 8])) == hash(MLP((8, 8)))


@pytest.mark.parametrize(
    ("points", "code"), [((5, 3, 2), (4,)), ((5,), (4,)), ((5, 3), (4, 2)), ((5, 3), ())]
)
def test_images_and_tables_are_refused(points, code):
    example = Batch(np.zeros(points), np.zeros((5, 2)), np.zeros(code), np.zeros(4))
    with pytest.raises(InputError, match=r"points \(n, d\) and a flat code"):
        MLP((6,)).init(new_key(0), example, 2)


def plain_network(net, x, code):
    """A plain network on the concatenation [code, x] in JAX, one task at a time."""
    code = code if net.embedding is None else net.embedding.weight[code].ravel()
    h = jnp.concatenate([jnp.broadcast_to(code, (len(x), len(code))), x], axis=1)
    for layer in net.layers[:-1]:
        h = jnp.maximum(h @ layer.weight.T + layer.bias, 0)
    return h @ net.layers[-1].weight.T + net.layers[-1].bias


CODES = pytest.mark.parametrize(
    ("d_code", "num_tokens"),
    [(4, 0), (LONG_CODE, 0), (LONG_CODE + 1, 0), (90, 0), (4, 17), (20, 17)],
    ids=str,
)


def several(d_code, num_tokens):
    """A network, and points and codes of six tasks; tokens are embedded with five numbers each."""
    rng = np.random.default_rng(2)
    net = filled(MLP((7, 6), tokens="embed", d_embed=5), d_code=d_code, num_tokens=num_tokens)
    assert (net.embedding is not None) == bool(num_tokens)
    x = rng.normal(size=(6, 5, 3)).astype(np.float32)
    code = (
        rng.integers(0, 17, (6, d_code))
        if num_tokens
        else rng.normal(0, 0.3, (6, d_code)).astype(np.float32)
    )
    return net, x, code


@CODES
def test_many_tasks_at_once_equal_the_tasks_one_by_one(d_code, num_tokens):
    net, x, code = several(d_code, num_tokens)
    prediction, activations = jax.jit(lambda net, x, code: net.many(x, code))(net, x, code)
    for i in range(len(x)):
        vector = net.embedding.weight[code[i]].ravel() if num_tokens else code[i]
        *hidden, output = by_hand(net, x[i], vector)
        np.testing.assert_allclose(prediction[i], output, atol=1e-4)
        for layer, expected in enumerate(hidden):
            np.testing.assert_allclose(activations[f"pre{layer}"][i], expected, atol=1e-4)
            np.testing.assert_allclose(
                activations[f"hidden{layer}"][i], np.maximum(expected, 0), atol=1e-4
            )
        single, single_activations = call(net, x[i], code[i])
        np.testing.assert_allclose(single, prediction[i], atol=1e-5)
        assert single_activations.keys() == activations.keys()
    assert np.abs(prediction - prediction[:1]).max() > 0.1, "the tasks differ"


@CODES
def test_gradients_through_many_tasks_equal_those_one_by_one(d_code, num_tokens):
    net, x, code = jax.tree.map(jnp.asarray, several(d_code, num_tokens))
    y = np.random.default_rng(3).normal(size=(6, 5, 2)).astype(np.float32)
    together = jax.jit(jax.grad(lambda net: jnp.square(net.many(x, code)[0] - y).mean()))(net)
    alone = jax.jit(
        jax.grad(
            lambda net: jnp.square(
                jax.vmap(lambda a, b: plain_network(net, a, b))(x, code) - y
            ).mean()
        )
    )(net)
    for leaf, expected in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(leaf, expected, atol=1e-4 * np.abs(expected).max())
        assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("d_code", [4, LONG_CODE + 1], ids=["short", "long"])
def test_products_are_in_the_type_of_the_weights(d_code):
    net, x, code = jax.tree.map(jnp.asarray, several(d_code, 0))
    low = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.bfloat16 if leaf.ndim == 2 else jnp.float32), net
    )
    assert types(low, x, code, "dot_general") == ["bf16"] * (3 if d_code == 4 else 4)
    prediction = low.many(x, code)[0]
    assert prediction.dtype == jnp.float32
    np.testing.assert_allclose(prediction, net.many(x, code)[0], atol=0.1)


def types(net, x, code, operation):
    """The types in which an operation is computed, in order."""
    text = str(jax.make_jaxpr(lambda net: net.many(x, code)[0])(net))
    return [
        line.split(" = ")[0].split(":")[1][:4]
        for line in text.splitlines()
        if f" = {operation}" in line
    ]


@pytest.mark.parametrize("normalisation", ["layer", "rms"])
def test_norms_are_float32_whatever_the_type_of_the_weights(normalisation):
    _, x, code = jax.tree.map(jnp.asarray, several(4, 0))
    net = jax.tree.map(jnp.asarray, filled(MLP((7, 7), normalisation=normalisation, residual=True)))
    low = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.bfloat16 if leaf.ndim == 2 else jnp.float32), net
    )
    assert types(low, x, code, "dot_general") == ["bf16"] * 3
    assert [*types(low, x, code, "rsqrt"), *types(low, x, code, "sqrt")] == ["f32["] * 2
    (_, expected), (_, low_precision) = jax.jit(lambda: (net.many(x, code), low.many(x, code)))()
    for name, h in low_precision.items():
        assert h.dtype == jnp.float32
        np.testing.assert_allclose(h, expected[name], atol=0.03 * np.abs(expected[name]).max())
