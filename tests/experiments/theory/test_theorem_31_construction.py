import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.experiments.theory import _theorem_31
from recombine.parts import khot
from recombine.parts.families.hyperteacher import Hyperteacher, Teacher
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch

TWO_LAYERS = Hyperteacher(num_layers=2)
FAMILY = Hyperteacher(num_modules=5, num_hot=2, d_input=3, d_hidden=2, num_outputs=4)


def to_float64(world):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), world)


def made_up_world(seed: int) -> Teacher:
    """A world with biases of both signs, and with one weight that is 0 in all modules."""
    rng = np.random.default_rng(seed)
    modules = rng.normal(size=(5, 3, 2))
    modules[:, 1, 0] = 0.0
    return Teacher(
        (jnp.asarray(modules),),
        (jnp.asarray(rng.normal(size=(5, 2))),),
        jnp.asarray(rng.normal(size=(2, 4))),
    )


def points(where: str, num: int = 20_000):
    rng = np.random.default_rng(1)
    z = rng.random((num, 5))
    x = rng.uniform(-1, 1, (num, 3))
    # Some coordinates are on the edge of the set.
    z = np.where(rng.random(z.shape) < 0.1, z.round(), z)
    x = np.where(rng.random(x.shape) < 0.1, x.round(), x)
    if where == "cube":
        return z, x
    return z * (rng.random((num, 5)).argsort(axis=1) < 2), x


def largest_error(net, world, where: str = "compact") -> float:
    """The largest error, compared with the paper's formula of the teacher in NumPy."""
    z, x = points(where)
    weights = np.einsum("nm,mih->nih", z, np.asarray(world.modules[0])) / math.sqrt(2)
    biases = z @ np.asarray(world.biases[0]) / math.sqrt(2)
    hidden = np.maximum(np.einsum("ni,nih->nh", x, weights) + biases, 0)
    true_outputs = hidden @ np.asarray(world.readout)
    outputs = net.many(jnp.asarray(x)[:, None], jnp.asarray(z))[0][:, 0]
    return float(np.abs(outputs - true_outputs).max())


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("make", [_theorem_31.shallow, _theorem_31.deep])
@pytest.mark.parametrize("where", ["compact", "cube"])
@pytest.mark.parametrize("seed", [0, 1])
def test_within_eps(make, where, seed):
    world = made_up_world(seed)
    for eps in (1.0, 1e-3):
        net = make(FAMILY, world, eps, where == "cube")
        assert eps / 30 < largest_error(net, world, where) <= eps


def test_the_whole_cube_needs_more():
    world = made_up_world(0)
    assert largest_error(_theorem_31.shallow(FAMILY, world, 1e-2), world, "cube") > 1e-2


@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 9, 32])
def test_the_error_falls_with_the_square_of_the_pieces(pieces):
    world = made_up_world(2)
    allowed = _theorem_31.slack(FAMILY, world) / pieces**2
    net = _theorem_31.network(FAMILY, world, pieces)
    assert 0.2 * allowed < largest_error(net, world) <= allowed
    # 2 I H squares of n - 1 ReLUs (n if n is even), the teacher's biases and its hidden layer.
    assert [layer.weight.shape[0] for layer in net.layers] == [12 * (pieces - pieces % 2) + 2, 2, 4]


def test_m_levels_of_folds_equal_2_to_the_m_pieces():
    world = made_up_world(3)
    z, x = (jnp.asarray(part) for part in points("compact", 500))
    for levels in (1, 2, 5):
        folded = _theorem_31.folded(FAMILY, world, levels)
        plain = _theorem_31.network(FAMILY, world, 2**levels)
        np.testing.assert_allclose(
            folded.many(x[:, None], z)[0], plain.many(x[:, None], z)[0], atol=1e-12
        )
        assert _theorem_31.neurons(folded) == levels * (4 * 6 + 2) + 2


def test_slack_equals_the_sum_in_the_proof():
    world = made_up_world(4)
    theta, omega = np.asarray(world.modules[0]), np.abs(np.asarray(world.readout))
    for whole, rows in ((False, khot.all_rows(5, 2)), (True, khot.all_rows(5, 5))):
        # The maximum over all listed sums of active modules; weights of 0 or 1 attain it.
        largest = np.abs(np.einsum("nm,mih->nih", rows, theta)).max(axis=0) / math.sqrt(2)
        expected = (largest.sum(axis=0) @ omega).max()
        np.testing.assert_allclose(_theorem_31.slack(FAMILY, world, whole), expected)


def test_no_fewer_pieces_guarantee_eps():
    world = made_up_world(5)
    slack = _theorem_31.slack(FAMILY, world)
    for eps in (0.5, 0.01):
        n = _theorem_31.pieces(FAMILY, world, eps)
        assert n % 2 == 1
        assert slack / n**2 <= eps < slack / (n - 2) ** 2
        levels = _theorem_31.levels(FAMILY, world, eps)
        assert slack / 4**levels <= eps < slack / 4 ** (levels - 1)


def test_the_exact_network_is_exact_for_zeros_and_ones_only():
    world = made_up_world(6)
    net = _theorem_31.exact(FAMILY, world)
    assert _theorem_31.neurons(net) == 3 * 5 + 2 * 2
    z = jnp.asarray(khot.all_rows(5, 5), float)
    x = jnp.asarray(points("cube", len(z) * 50)[1]).reshape(len(z), 50, 3)
    true = jax.vmap(lambda z, x: FAMILY.teach(world, z, x))(z, x)
    np.testing.assert_allclose(net.many(x, z)[0], true, atol=1e-12)
    assert largest_error(net, world) > 0.1


def test_a_table_computes_its_own_tasks_only():
    world, tasks = made_up_world(7), khot.all_rows(5, 2)
    net = _theorem_31.memorise(FAMILY, world, tasks[:-1])
    assert _theorem_31.neurons(net) == 2 * (len(tasks) - 1)
    z = jnp.asarray(tasks, float)
    x = jnp.asarray(points("cube", len(z) * 50)[1]).reshape(len(z), 50, 3)
    true_outputs = jax.vmap(lambda z, x: FAMILY.teach(world, z, x))(z, x)
    error = jnp.abs(net.many(x, z)[0] - true_outputs).max(axis=(1, 2))
    assert error[:-1].max() < 1e-12
    assert error[-1] > 0.1
    assert not net.many(x[-1:], z[-1:])[0].any(), "all copies are switched off"


def test_the_bound_holds_and_is_tight_up_to_a_factor_of_2():
    shares = []
    for num_modules, seed in ((3, 0), (16, 1), (512, 2)):
        family = Hyperteacher(num_modules=num_modules, max_tasks=1)
        world = to_float64(family.init(new_key(seed)))
        c1, c2 = _theorem_31.constants(family)
        for eps in (1.0, 1e-5):
            net = jax.eval_shape(_theorem_31.plan("shallow", family, world, eps), world)
            shares.append(_theorem_31.neurons(net) / (c1 / math.sqrt(eps) + c2 * num_modules))
    assert 0.5 < max(shares) <= 1
    assert c2 == 0


def test_the_worst_possible_world_is_just_within_the_bound():
    family = Hyperteacher(num_modules=5, num_hot=3, d_input=4, d_hidden=9, num_outputs=2)
    theta, omega = (2 / 0.87962566 * math.sqrt(math.sqrt(3) / fan_in) for fan_in in (4, 9))
    world = Teacher((jnp.full((5, 4, 9), theta),), (jnp.zeros((5, 9)),), jnp.full((9, 2), omega))
    num_neurons = sum(_theorem_31.widths("shallow", family, world, 1e-6))
    share = num_neurons / (_theorem_31.constants(family)[0] * 1e3)
    assert 0.75 < share <= 1  # the rest is needed for eps = 1


@pytest.mark.parametrize("make", [_theorem_31.shallow, _theorem_31.deep])
def test_biases_far_below_zero_are_allowed(make):
    world = made_up_world(8)
    world = world._replace(biases=(world.biases[0] - 30.0,), modules=(20 * world.modules[0],))
    assert largest_error(make(FAMILY, world, 0.1), world) <= 0.1


def test_theta_and_omega_are_within_the_bounds_of_the_constants():
    family = Hyperteacher(num_modules=2000, num_hot=1, d_input=4, d_hidden=9, max_tasks=1)
    world = family.init(new_key(0))
    largest_theta = float(jnp.abs(world.modules[0]).max())
    largest_omega = 2 / 0.87962566 * math.sqrt(math.sqrt(3) / 9)
    c1 = 2 * 36 * (math.sqrt(9 * 4 * largest_theta * largest_omega) + 1) + 2 * 9
    assert 0.99 * _theorem_31.constants(family)[0] < c1 <= _theorem_31.constants(family)[0]


def test_below_the_crossing_deep_is_smaller_and_just_above_it_is_not():
    for size in (2, 16):
        family = Hyperteacher(num_modules=8, d_input=size, d_hidden=size, num_outputs=size)
        world = to_float64(family.init(new_key(size)))
        crossing = _theorem_31.crossing(family, world)

        def num_neurons(construction, eps):
            plan = _theorem_31.plan(construction, family, world, eps)  # noqa: B023
            return _theorem_31.neurons(jax.eval_shape(plan, world))  # noqa: B023

        just_above = crossing * 1.0001
        assert num_neurons("deep", just_above) >= num_neurons("shallow", just_above)
        for factor in (0.9999, 0.6, 0.3, 0.1, 1e-3):
            eps = crossing * factor
            assert num_neurons("deep", eps) < num_neurons("shallow", eps)


@pytest.mark.parametrize("construction", ["shallow", "deep", "exact", "memorise"])
def test_constructions_have_the_structure_of_a_student(construction):
    with jax.enable_x64(False):
        world = FAMILY.init(new_key(0))
        net = jax.jit(_theorem_31.plan(construction, FAMILY, world, 0.1))(world)
        widths = tuple(layer.weight.shape[0] for layer in net.layers[:-1])
        x, task = jnp.zeros((1, 3)), jnp.zeros(5)
        student = MLP(widths=widths).init(new_key(1), Batch(x, None, task, task), 4)
        assert jax.tree.structure(net) == jax.tree.structure(student)
        shapes = [
            [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)] for tree in (net, student)
        ]
        assert shapes[0] == shapes[1]
        assert _theorem_31.neurons(net) == sum(widths)
        assert _theorem_31.widths(construction, FAMILY, world, 0.1) == widths
        whole = jax.eval_shape(_theorem_31.plan(construction, FAMILY, world, 0.1, True), world)
        widths = tuple(layer.weight.shape[0] for layer in whole.layers[:-1])
        assert _theorem_31.widths(construction, FAMILY, world, 0.1, True) == widths
        assert _theorem_31.parameters(net) == sum(math.prod(shape) for shape, _ in shapes[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _theorem_31.network(TWO_LAYERS, TWO_LAYERS.init(new_key(0)), 3), "num_layers=1"),
        (lambda: _theorem_31.exact(TWO_LAYERS, TWO_LAYERS.init(new_key(0))), "num_layers=1"),
        (lambda: _theorem_31.shallow(FAMILY, made_up_world(0), 0.0), "eps must be above 0"),
        (lambda: _theorem_31.deep(FAMILY, made_up_world(0), -1.0), "eps must be above 0"),
        (lambda: _theorem_31.network(FAMILY, made_up_world(0), 0), "at least 1 piece"),
        (lambda: _theorem_31.folded(FAMILY, made_up_world(0), 0), "at least 1 level"),
        (
            lambda: _theorem_31.memorise(FAMILY, made_up_world(0), np.full((1, 5), 0.5)),
            "weights are 0 or 1",
        ),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
