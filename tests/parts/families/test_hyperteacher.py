import math
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from recombine.basics.errors import InputError
from recombine.parts.families.hyperteacher import Hyperteacher, Teacher
from recombine.parts.prng import new_key
from tests.tables import khot_table
from tests.timing import cpu_seconds

KEY = new_key(0)
# Compiled once for each shape, which is faster than one operation at a time.
init, teach, score = (
    jax.jit(getattr(Hyperteacher, name), static_argnums=0) for name in ("init", "teach", "score")
)
sample = jax.jit(Hyperteacher.sample, static_argnums=(0, 4))
TRUNCATED = 0.87962566  # standard deviation of a standard normal that is cut at -2 and 2


def small(num_layers=1, **changes):
    sizes = {"num_modules": 5, "num_hot": 3, "d_input": 3, "d_hidden": 6, "num_outputs": 2}
    return Hyperteacher(**sizes | {"num_layers": num_layers} | changes)


def world_of(family, rng, low=-1.0):
    """A teacher of random numbers that are not drawn by the code under test."""
    d_inputs = [family.d_input] + [family.d_hidden] * (family.num_layers - 1)
    modules = [rng.uniform(low, 1, (family.num_modules, d, family.d_hidden)) for d in d_inputs]
    biases = [rng.uniform(low, 1, (family.num_modules, family.d_hidden)) for _ in d_inputs]
    readout = rng.uniform(-1, 1, (family.d_hidden, family.num_outputs))
    return jax.tree.map(np.float32, Teacher(tuple(modules), tuple(biases), readout))


def answer_by_hand(world, z, x, num_hot):
    """The paper's equation, one point and one module at a time, in float64."""
    answers = []
    for h in np.asarray(x, np.float64):
        for theta, b in zip(world.modules, world.biases, strict=True):
            weight, bias = np.zeros(theta.shape[1:]), np.zeros(b.shape[1:])
            for m in range(len(z)):
                weight += float(z[m]) / math.sqrt(num_hot) * np.asarray(theta[m], np.float64)
                bias += float(z[m]) / math.sqrt(num_hot) * np.asarray(b[m], np.float64)
            h = np.maximum(weight.T @ h + bias, 0)
        answers.append(np.asarray(world.readout, np.float64).T @ h)
    return np.stack(answers)


def unique(rows):
    packed = np.packbits(rows, axis=1)
    return len(set(packed.view(f"V{packed.shape[1]}").ravel().tolist())) == len(rows)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_the_teacher_is_the_papers_equation(num_layers):
    family, rng = small(num_layers), np.random.default_rng(0)
    world = world_of(family, rng)
    z, x = np.array([0.5, 0, 1, 0, 0.7], np.float32), rng.uniform(-1, 1, (7, 3)).astype(np.float32)
    expected = answer_by_hand(world, z, x, family.num_hot)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(
        teach(family, world, jnp.asarray(z), jnp.asarray(x)), expected, atol=1e-5
    )


def test_samples_are_points_of_the_task():
    family = small()
    world, z = world_of(family, np.random.default_rng(2)), jnp.array([0.0, 0.6, 0, 0, 0.9])
    x, y = sample(family, world, new_key(1), z, 200)
    np.testing.assert_allclose(y, answer_by_hand(world, z, x, family.num_hot), atol=1e-5)
    assert x.shape == (200, 3)
    assert -1 <= x.min() < -0.98 < 0.98 < x.max() <= 1
    # Uniform on [-1, 1]: mean 0 and variance 1/3, with standard errors 0.024 and 0.012.
    assert abs(float(x.mean())) < 0.1
    assert abs(float(x.var()) - 1 / 3) < 0.05


def test_before_the_relu_the_teacher_is_linear_in_its_modules():
    # With positive modules, biases and points every ReLU is active, so f is linear in z.
    family, rng = small(), np.random.default_rng(1)
    x = jnp.asarray(rng.uniform(0, 1, (9, 3)), jnp.float32)
    first = jnp.array([0.5, 0, 1, 0, 0])
    second = jnp.array([0, 0.8, 0.6, 0, 0.5])
    world = world_of(family, rng, low=0.0)
    mixed = teach(family, world, 2 * first + 3 * second, x)
    np.testing.assert_allclose(
        mixed, 2 * teach(family, world, first, x) + 3 * teach(family, world, second, x), rtol=1e-4
    )
    # Control: with modules of both signs, the ReLU makes it nonlinear.
    world = world_of(family, rng)
    mixed = teach(family, world, 2 * first + 3 * second, x)
    nonlinear = mixed - 2 * teach(family, world, first, x) - 3 * teach(family, world, second, x)
    assert jnp.abs(nonlinear).max() > 0.1


def test_absent_modules_do_not_matter():
    family = small()
    world, x = world_of(family, np.random.default_rng(3)), jnp.full((4, 3), 0.5)
    z = jnp.array([0.5, 0, 1, 0, 0])
    others = np.arange(5)[:, None] != 1
    changed = world._replace(
        modules=(np.where(others[:, None], world.modules[0], np.float32(9)),),
        biases=(np.where(others, world.biases[0], np.float32(9)),),
    )
    np.testing.assert_array_equal(teach(family, world, z, x), teach(family, changed, z, x))


def test_the_initialiser_has_the_papers_variance():
    family = Hyperteacher(num_modules=8, d_input=20, d_hidden=100, num_outputs=200, num_layers=2)
    world = jax.tree.map(np.asarray, init(family, KEY))
    kernels = {20: world.modules[0], 100: world.modules[1]}
    assert [kernel.shape for kernel in kernels.values()] == [(8, 20, 100), (8, 100, 100)]
    # The fan-in is one module's input: a module is used with its own weight, not summed over all M.
    for fan_in, kernel in [*kernels.items(), (100, world.readout)]:
        variance = math.sqrt(3) / fan_in
        assert abs(kernel.mean()) < 5 * math.sqrt(variance / kernel.size)
        assert kernel.var() == pytest.approx(
            variance, rel=0.04
        )  # 16,000 numbers: a standard error of 1 percent
        bound = 2 * math.sqrt(variance) / TRUNCATED
        assert 0.99 * bound < np.abs(kernel).max() <= 1.0001 * bound
    for bias in world.biases:
        assert bias.shape == (8, 100)
        assert 0 <= bias.min() < 0.01 < 0.49 < bias.max() < 0.5
        assert bias.mean() == pytest.approx(0.25, abs=0.02)
    other = init(family, new_key(1))
    kernels = [*world.biases, *other.biases, *world.modules[0], *other.modules[0]]
    assert len({np.asarray(kernel).tobytes() for kernel in kernels}) == len(kernels), (
        "no two draws are alike"
    )


@pytest.mark.parametrize(
    ("num_modules", "num_hot", "size"), [(16, 3, 696), (28, 6, 499_177), (4, 4, 15), (1, 1, 1)]
)
def test_the_table_lists_every_task_once(num_modules, num_hot, size):
    table = Hyperteacher(num_modules=num_modules, num_hot=num_hot).tasks()
    assert table.shape == (size, num_modules)
    assert np.isin(table, (0, 1)).all()
    counts = np.bincount(table.sum(axis=1), minlength=num_hot + 1)
    assert counts.tolist() == [0] + [math.comb(num_modules, k) for k in range(1, num_hot + 1)]
    assert unique(table)


def test_listing_half_a_million_tasks_takes_as_long_as_a_plain_listing():
    family = Hyperteacher(num_modules=28, num_hot=6)
    assert cpu_seconds(family.tasks) < 5 * cpu_seconds(lambda: khot_table(28, 6))


def test_a_table_too_large_to_list_is_sampled():
    family = Hyperteacher(num_modules=200, num_hot=10, max_tasks=20_000)
    tracemalloc.start()
    table = family.tasks()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The table itself has 4 MB; all its tasks would need 5e18 bytes.
    assert peak < 50e6
    assert table.shape == (20_000, 200)
    assert unique(table)
    sizes = table.sum(axis=1)
    assert 1 <= sizes.min() <= sizes.max() == 10
    # Uniform over tasks: 95 percent of them have 10 modules, and no module is special.
    total = sum(math.comb(200, k) for k in range(1, 11))
    for k in (8, 9, 10):
        frac = math.comb(200, k) / total
        assert (sizes == k).mean() == pytest.approx(
            frac, abs=5 * math.sqrt(frac * (1 - frac) / 20_000)
        )
    assert table.mean(axis=0) == pytest.approx(sizes.mean() / 200, abs=5 * math.sqrt(0.05 / 20_000))
    np.testing.assert_array_equal(
        table, Hyperteacher(num_modules=200, num_hot=10, max_tasks=20_000).tasks()
    )
    other = Hyperteacher(num_modules=200, num_hot=10, max_tasks=20_000, table_seed=1).tasks()
    assert not (table == other).all(axis=1).any()


def test_sampling_a_longer_table_takes_time_in_proportion():
    # A search for duplicates after each of the 49 chunks would take quadratic time: a factor of 16.
    short = Hyperteacher(num_modules=40, num_hot=10, max_tasks=50_000)
    long = Hyperteacher(num_modules=40, num_hot=10, max_tasks=200_000)
    assert cpu_seconds(long.tasks) < 8 * cpu_seconds(short.tasks)
    table = long.tasks()
    assert (len(table), unique(table)) == (200_000, True)


def test_max_tasks_beyond_the_table_gives_the_whole_table():
    whole = Hyperteacher().tasks()
    for max_tasks in (696, 697, 100_000):
        np.testing.assert_array_equal(Hyperteacher(max_tasks=max_tasks).tasks(), whole)


def test_max_tasks_below_the_table_gives_a_part_of_it():
    whole = {row.tobytes() for row in Hyperteacher().tasks()}
    tables = [Hyperteacher(max_tasks=100, table_seed=seed).tasks() for seed in (0, 0, 1)]
    row_sets = [{row.tobytes() for row in table} for table in tables]
    assert [len(table) for table in tables] == [len(rows) for rows in row_sets] == [100] * 3
    assert row_sets[0] | row_sets[2] <= whole
    assert row_sets[0] == row_sets[1] != row_sets[2]


def weighed(distribution, row, num=4000):
    family = Hyperteacher(num_modules=len(row), num_hot=len(row), weights=distribution)
    return np.asarray(
        jax.jit(jax.vmap(family.weigh, (0, None)))(jax.random.split(KEY, num), jnp.asarray(row))
    )


def test_discrete_weights_are_six_equally_likely_tenths():
    row = np.array([1, 0, 1, 1, 0], np.int8)
    weights = weighed("discrete", row)
    assert (weights[:, row == 0] == 0).all()
    values, counts = np.unique(weights[:, row == 1], return_counts=True)
    np.testing.assert_allclose(values, [0.5, 0.6, 0.7, 0.8, 0.9, 1], atol=1e-6)
    # Chi-square with 5 degrees of freedom: beyond 25 with probability 1e-4.
    assert (np.square(counts - 2000) / 2000).sum() < 25
    # Modules are weighed independently of each other: 4,000 draws correlate by 0.016 at random.
    assert np.abs(np.corrcoef(weights[:, row == 1].T) - np.eye(3)).max() < 0.08


def test_khot_weights_are_ones():
    np.testing.assert_array_equal(
        weighed("khot", np.int8([1, 0, 1, 1, 0]), 3), [[1, 0, 1, 1, 0]] * 3
    )


@pytest.mark.parametrize("row", [[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]])
def test_continuous_weights_are_uniform_on_a_shifted_simplex(row):
    row = np.array(row, np.int8)
    weights, k = weighed("continuous", row), row.sum()
    assert (weights[:, row == 0] == 0).all()
    active = weights[:, row == 1]
    assert 0.5 <= active.min() < active.max() <= 1
    simplex = (active - 0.5) * 2
    assert simplex.sum(axis=1).max() <= 1 + 1e-5
    # A uniform point of {w >= 0, sum w <= 1} is Dirichlet with k + 1 ones, of which the slack is
    # dropped.
    assert simplex.mean(axis=0) == pytest.approx(np.full(k, 1 / (k + 1)), abs=0.025)
    assert simplex.var(axis=0) == pytest.approx(np.full(k, k / ((k + 1) ** 2 * (k + 2))), rel=0.15)


def test_extrapolation_has_one_and_two_modules_more_than_any_task():
    rows = Hyperteacher().extrapolation()
    assert np.bincount(rows.sum(axis=1)).tolist() == [0, 0, 0, 0, 512, 512]
    assert unique(rows)
    # No more of them than there are: of 6 modules, 5 can be active in 6 ways and all of them in 1.
    rows = Hyperteacher(num_modules=6, num_hot=4).extrapolation()
    assert np.bincount(rows.sum(axis=1)).tolist() == [0, 0, 0, 0, 0, 6, 1]
    assert unique(rows)
    assert Hyperteacher(num_modules=5, num_hot=4).extrapolation().tolist() == [[1, 1, 1, 1, 1]]
    assert Hyperteacher(num_modules=4, num_hot=4).extrapolation().shape == (0, 4)


def test_tasks_are_grouped_by_their_number_of_active_modules():
    family = small()
    rows = np.array([[1, 0, 0, 0, 0], [0, 1, 0, 1, 1], [1, 1, 1, 1, 1]], np.int8)
    assert {name: group.tolist() for name, group in family.groups(rows).items()} == {
        "num_hot": [1, 3, 5]
    }
    np.testing.assert_array_equal(family.modules(rows), rows)


def test_r2_is_the_mean_over_outputs_against_the_tasks_own_mean():
    rng = np.random.default_rng(0)
    y = rng.normal(3, [0.1, 1, 10], (16, 3)).astype(np.float32)
    prediction = (y + rng.normal(0, [0.2, 0.3, 1], (16, 3))).astype(np.float32)
    expected = np.mean(
        [
            1 - np.sum((prediction - y)[:, o] ** 2) / np.sum((y[:, o] - y[:, o].mean()) ** 2)
            for o in range(3)
        ]
    )
    scores = score(small(num_outputs=3), jnp.asarray(prediction), jnp.asarray(y))
    assert float(scores["r2"]) == pytest.approx(expected, abs=1e-5)
    assert float(scores["loss"]) == pytest.approx(np.mean((prediction - y) ** 2), rel=1e-5)
    assert -2 < expected < 0.9


def test_a_perfect_prediction_scores_1_and_the_mean_scores_0():
    y = jnp.asarray(np.random.default_rng(1).normal(size=(16, 3)), jnp.float32)
    assert score(small(), y, y) == {"loss": 0, "r2": 1}
    assert float(
        score(small(), jnp.broadcast_to(y.mean(axis=0), y.shape), y)["r2"]
    ) == pytest.approx(0, abs=1e-5)


def test_constant_outputs_are_left_out():
    rng = np.random.default_rng(2)
    y = rng.normal(size=(16, 3)).astype(np.float32)
    prediction = y + rng.normal(size=(16, 3)).astype(np.float32) / 2
    alone = score(small(), jnp.asarray(prediction[:, :2]), jnp.asarray(y[:, :2]))["r2"]
    for constant in (0.0, 0.7):
        y[:, 2] = constant
        assert float(
            score(small(), jnp.asarray(prediction), jnp.asarray(y))["r2"]
        ) == pytest.approx(float(alone), abs=1e-6)
    # If all outputs are constant, R2 is 0 and not NaN, and the loss still counts.
    scores = score(small(), jnp.ones((16, 3)), jnp.zeros((16, 3)))
    assert (float(scores["r2"]), float(scores["loss"])) == (0, 1)
    gradient = jax.grad(lambda p: score(small(), p, jnp.zeros((16, 3)))["r2"])(jnp.ones((16, 3)))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_modules": 4, "num_hot": 5}, "num_hot=5 .* num_modules=4"),
        ({"num_hot": 0}, r"Hyperteacher\.num_hot must be at least 1, got 0"),
        ({"num_modules": -3}, r"Hyperteacher\.num_modules must be at least 1, got -3"),
        *(
            ({name: 0}, rf"Hyperteacher\.{name}")
            for name in ("d_input", "d_hidden", "num_outputs", "num_layers")
        ),
        *(({name: -1}, rf"Hyperteacher\.{name}") for name in ("max_tasks", "table_seed")),
        ({"num_modules": 8.0}, r"Hyperteacher\.num_modules must be a whole number, got 8\.0"),
        ({"d_input": "16"}, r"Hyperteacher\.d_input must be a whole number, got '16'"),
        ({"num_hot": True}, r"Hyperteacher\.num_hot must be a whole number, got True"),
        (
            {"weights": "binary"},
            r"Hyperteacher\.weights must be one of 'discrete', 'khot', 'continuous', got 'binary'",
        ),
        ({"num_modules": 200, "num_hot": 10}, "too long to list: set max_tasks"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(InputError, match=message):
        Hyperteacher(**fields)


def test_wrong_shapes_are_refused_in_tests():
    # tests/conftest.py switches on these checks. Without them, a wrong shape would broadcast
    # silently.
    with pytest.raises(TypeCheckError):
        small().score(jnp.zeros((4, 2)), jnp.zeros((4, 1)))
