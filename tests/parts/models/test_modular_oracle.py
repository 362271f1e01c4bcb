import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.families.hyperteacher import Hyperteacher, Teacher
from recombine.parts.models.modular_oracle import Mixture, ModularOracle
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch

LAYERS = pytest.mark.parametrize("num_layers", [1, 2])
teach = jax.jit(Hyperteacher.teach, static_argnums=0)


def small(num_layers=1):
    return Hyperteacher(
        num_modules=5, num_hot=3, d_input=3, d_hidden=6, num_outputs=2, num_layers=num_layers
    )


def teacher_of(family, fill):
    """A teacher of the family's shapes; `fill` gives an array of a shape."""
    d_inputs = [family.d_input] + [family.d_hidden] * (family.num_layers - 1)
    modules = tuple(fill((family.num_modules, d, family.d_hidden)) for d in d_inputs)
    biases = tuple(fill((family.num_modules, family.d_hidden)) for _ in d_inputs)
    return jax.tree.map(
        jnp.float32, Teacher(modules, biases, fill((family.d_hidden, family.num_outputs)))
    )


def drawn(model, family, code=None, world=None):
    code = np.zeros(family.num_modules, np.float32) if code is None else code
    world = teacher_of(family, np.zeros) if world is None else world
    example = Batch(np.zeros((4, family.d_input)), np.zeros((4, family.num_outputs)), code, code)
    return model.init(new_key(0), example, family.num_outputs, 0, world)


def as_student(world):
    """The student with the arrays of a teacher."""
    modules = tuple(layer.transpose(0, 2, 1) for layer in world.modules)
    return Mixture(modules, tuple(layer.T for layer in world.biases), world.readout.T)


def several(num_layers=1):
    """A teacher, and points and tasks of four tasks."""
    family, rng = small(num_layers), np.random.default_rng(0)
    world = teacher_of(family, lambda shape: rng.normal(0, 0.7, shape))
    x = jnp.asarray(rng.uniform(-1, 1, (4, 7, 3)), jnp.float32)
    z = jnp.asarray(rng.uniform(0.5, 1, (4, 5)) * (rng.random((4, 5)) < 0.6), jnp.float32)
    return family, world, x, z


@jax.jit
def call_many(net, x, code):
    return net.many(x, code)


@LAYERS
def test_with_the_teachers_arrays_it_is_the_teacher(num_layers):
    family, world, x, z = several(num_layers)
    prediction, _ = call_many(as_student(world), x, z / math.sqrt(family.num_hot))
    for task in range(4):
        expected = teach(family, world, z[task], x[task])
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(prediction[task], expected, atol=1e-5)


def test_it_has_the_same_shapes_as_the_teacher():
    for num_layers in (1, 2):
        family = small(num_layers)
        student = jax.eval_shape(lambda family=family: drawn(ModularOracle(), family))
        teacher = jax.eval_shape(lambda family=family: as_student(family.init(new_key(0))))
        assert jax.tree.map(lambda leaf: leaf.shape, student) == jax.tree.map(
            lambda leaf: leaf.shape, teacher
        )
    wide = jax.eval_shape(lambda: drawn(ModularOracle(d_hidden=64), small(2)))
    assert [layer.shape for layer in wide.modules] == [(5, 64, 3), (5, 64, 64)]
    assert [layer.shape for layer in wide.biases] == [(64, 5), (64, 5)]
    assert wide.readout.shape == (2, 64)


def test_a_rotated_code_is_undone_by_rotated_modules():
    _, world, x, z = several()
    rotation = jnp.asarray(
        np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0], jnp.float32
    )
    net = as_student(world)
    rotated = Mixture(
        tuple(jnp.einsum("jm,mhi->jhi", rotation, layer) for layer in net.modules),
        tuple(layer @ rotation.T for layer in net.biases),
        net.readout,
    )
    expected = call_many(net, x, z)[0]
    np.testing.assert_allclose(call_many(rotated, x, z @ rotation.T)[0], expected, atol=1e-5)
    assert np.abs(call_many(net, x, z @ rotation.T)[0] - expected).max() > 0.1


@LAYERS
def test_every_layer_is_a_mixture_written_out(num_layers):
    _, world, x, z = several(num_layers)
    prediction, activations = call_many(as_student(world), x, z)
    assert activations.keys() == {
        f"{kind}{i}" for kind in ("pre", "hidden") for i in range(num_layers)
    } | {"output"}
    for task, point in np.ndindex(4, 7):
        h = np.float64(x[task, point])
        for i in range(num_layers):
            pre = sum(
                float(z[task, m])
                * (np.float64(world.modules[i][m]).T @ h + np.float64(world.biases[i][m]))
                for m in range(5)
            )
            np.testing.assert_allclose(activations[f"pre{i}"][task, point], pre, atol=1e-5)
            h = np.maximum(pre, 0)
            np.testing.assert_allclose(activations[f"hidden{i}"][task, point], h, atol=1e-5)
        np.testing.assert_allclose(
            prediction[task, point], np.float64(world.readout).T @ h, atol=1e-5
        )
    # The same for one task at a time.
    single, single_activations = as_student(world)(x[1], z[1])
    np.testing.assert_allclose(single, prediction[1], atol=1e-5)
    assert single_activations.keys() == activations.keys()
    np.testing.assert_array_equal(single_activations["output"], single)


def test_absent_modules_learn_nothing():
    _, world, x, _ = several(2)
    code = jnp.broadcast_to(jnp.array([0.5, 0, 1, 0, 0.7]), (4, 5))
    slope = jax.jit(jax.grad(lambda net: jnp.square(net.many(x, code)[0] - 1).mean()))(
        as_student(world)
    )
    for modules, biases in zip(slope.modules, slope.biases, strict=True):
        learned = np.abs(modules).max(axis=(1, 2)), np.abs(biases).max(axis=0)
        assert np.array_equal(np.stack(learned) > 0, [[True, False, True, False, True]] * 2)


def test_only_the_teachers_shapes_are_used():
    family = small(2)
    worlds = [
        teacher_of(family, lambda shape, value=value: np.full(shape, value))
        for value in (np.nan, 7.0)
    ]
    first, second = (
        jax.jit(lambda world: drawn(ModularOracle(), family, world=world))(world)
        for world in worlds
    )
    for leaf, other_leaf in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(leaf, other_leaf)
        assert np.isfinite(leaf).all()


def test_matrices_start_with_the_teachers_variance():
    family = Hyperteacher(num_modules=8, d_input=20, d_hidden=100, num_outputs=200, num_layers=2)
    net = jax.jit(lambda: drawn(ModularOracle(), family))()
    # The fan-in is the input of one module, as for the teacher.
    for fan_in, kernel in ((20, net.modules[0]), (100, net.modules[1]), (100, net.readout)):
        assert np.var(kernel) == pytest.approx(math.sqrt(3) / fan_in, rel=0.04)
        assert abs(np.mean(kernel)) < 5 * np.std(kernel) / math.sqrt(kernel.size)
    assert not any(np.any(layer) for layer in net.biases)
    draws = [np.asarray(kernel).ravel()[:16_000] for kernel in (*net.modules, net.readout)]
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 0.05, (
        "layers must not share their random numbers"
    )


def test_products_are_in_the_type_of_the_weights():
    _, world, x, code = several(2)
    net = as_student(world)
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), net)
    text = str(jax.make_jaxpr(lambda net: net.many(x, code)[0])(low))
    kinds = [
        line.split(" = ")[0].split(":")[1][:4]
        for line in text.splitlines()
        if " = dot_general[" in line
    ]
    assert kinds == ["bf16"] * 7  # for each layer a mixture, a bias and a product, then the readout
    (_, expected), (_, low_precision) = call_many(net, x, code), call_many(low, x, code)
    for name, h in low_precision.items():
        assert h.dtype == jnp.float32
        np.testing.assert_allclose(h, expected[name], atol=0.03 * np.abs(expected[name]).max())


@pytest.mark.parametrize(
    "code",
    [
        np.zeros(4, np.float32),
        np.zeros(250, np.float32),
        np.zeros(5, np.int32),
        np.zeros((5, 2), np.float32),
    ],
    ids=["too short", "few-shot", "words", "sequence"],
)
def test_codes_that_are_no_module_weights_are_refused(code):
    with pytest.raises(
        InputError, match=r"one float for each of 5 modules, got .* choose Identity or Orthogonal"
    ):
        drawn(ModularOracle(), small(), code)


def test_worlds_that_are_no_hyperteacher_are_refused():
    world = teacher_of(small(), np.zeros)
    flat = world._replace(modules=(jnp.zeros((5, 6)),))
    for other in ((), {"modules": world.modules}, world._replace(modules=()), flat, world.modules):
        with pytest.raises(
            InputError, match="has the structure of a hyperteacher: choose family=Hyperteacher"
        ):
            drawn(ModularOracle(), small(), world=other)


def test_it_needs_a_world():
    example = Batch(np.zeros((4, 3)), np.zeros((4, 2)), np.zeros(5, np.float32), np.zeros(5))
    with pytest.raises(InputError, match="the structure of a hyperteacher"):
        ModularOracle().init(new_key(0), example, 2)


@pytest.mark.parametrize(
    ("width", "message"), [(-1, "at least 0, got -1"), (8.0, "a whole number, got 8.0")]
)
def test_errors_name_the_field(width, message):
    with pytest.raises(InputError, match=rf"ModularOracle\.d_hidden must be {message}"):
        ModularOracle(d_hidden=width)
