import dataclasses
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.parts.models.mlp import MLP
from recombine.parts.models.transformer import Transformer
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch
from recombine.training import activity
from recombine.training.task_sampler import predict
from tests.tiny import TINY

RNG = np.random.default_rng(0)
EXAMPLE = Batch(jnp.zeros((4, 3)), jnp.zeros((4, 2)), jnp.zeros(5), jnp.zeros(5))


def random_batch(num_tasks=6):
    """Random points and codes."""
    x = jnp.array(RNG.normal(size=(num_tasks, 4, 3)), jnp.float32)
    code = jnp.array(RNG.normal(size=(num_tasks, 5)), jnp.float32)
    return Batch(x, x, code, code)


def network_and_activations(model):
    """A network, and its activations on random points."""
    net = model.init(new_key(0), EXAMPLE, 2, 0)
    return net, predict(net, random_batch())[1]


def floats(numbers):
    return {name: float(value) for name, value in numbers.items()}


def with_bias(net, layer, unit, value):
    """The network with one bias of a hidden layer set."""
    bias = net.layers[layer].bias
    return eqx.tree_at(lambda net: net.layers[layer].bias, net, bias.at[unit].set(value))


def test_the_numbers_of_a_relu_layer_by_hand():
    h = np.zeros((2000, 5), np.float32)
    h[:, 0] = 1.0  # responds to everything, and does not vary
    h[::2, 1] = 2.0  # to every second sample
    h[:2, 2] = 3.0  # to exactly 0.1% of the samples: not rare
    h[0, 3] = 4.0  # to 0.05%: rare; the last unit is dead
    measured = floats(activity.layer_activity(jnp.array(h), is_relu=True))
    assert measured["dead"] == pytest.approx(1 / 5)
    assert measured["rare"] == pytest.approx(2 / 5)
    assert measured["active"] == pytest.approx((1 + 0.5 + 0.001 + 0.0005) / 5)


def test_other_nonlinearities_are_dead_where_they_do_not_vary():
    h = RNG.normal(size=(4000, 4)).astype(np.float32)
    # The mean of unit 1 is far from 0, but the unit carries no information.
    h[:, 1] = 0.7 + 1e-5 * RNG.normal(size=4000)
    h[:, 2] = 0.0
    h[:, 3] = np.where(np.arange(4000) < 3, 1.0, 0.0)
    measured = floats(activity.layer_activity(jnp.array(h), is_relu=False))
    assert measured["dead"] == pytest.approx(2 / 4)
    # Unit 3 differs from its own mean (0.00075) by more than 0.001 RMS, so it is not rare.
    assert measured["rare"] == pytest.approx(2 / 4)
    assert 0.25 < measured["active"] < 0.51
    as_relu = floats(activity.layer_activity(jnp.array(h), is_relu=True))
    assert as_relu["dead"] == pytest.approx(1 / 4), "the rule depends on the nonlinearity"


@pytest.mark.parametrize("shape", [(300, 20), (20, 300)])
def test_the_effective_rank_is_that_of_the_covariance(shape):
    h = RNG.normal(size=shape) * np.linspace(0.1, 3, shape[1])
    values = np.linalg.eigvalsh(np.cov(h.T))
    expected = values.sum() ** 2 / np.square(values).sum()
    measured = floats(activity.layer_activity(jnp.array(h, jnp.float32), is_relu=True))
    assert measured["rank"] == pytest.approx(expected, rel=1e-4)
    assert float(activity.effective_rank(jnp.zeros(shape))) == 0


def test_one_direction_has_rank_one_and_k_equal_ones_have_rank_k():
    # A Hadamard matrix: its rows are orthogonal.
    signs = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], float)
    single_direction = jnp.array(signs.T[:, 1:2] @ np.ones((1, 7)))
    assert float(activity.effective_rank(single_direction)) == pytest.approx(1)
    assert float(activity.effective_rank(jnp.array(signs[1:].T))) == pytest.approx(3)


def test_units_that_are_killed_are_counted_in_their_layer():
    net, _ = network_and_activations(MLP((8, 4)))
    for unit in range(3):
        net = with_bias(net, 0, unit, -100.0)
    measured = activity.measure(net, predict(net, random_batch())[1])
    assert float(measured["hidden0/dead"]) == pytest.approx(3 / 8)
    assert set(measured) == {
        f"hidden{i}/{name}" for i in (0, 1) for name in ("dead", "rare", "active", "rank")
    }


@pytest.mark.parametrize("kind", ["relu", "gelu", "tanh", "silu"])
def test_a_residual_stream_does_not_hide_a_dead_unit(kind):
    net, _ = network_and_activations(MLP((8, 8), activation=kind, residual=True))
    net = eqx.tree_at(lambda net: net.layers[1].weight, net, net.layers[1].weight.at[:2].set(0.0))
    net = with_bias(with_bias(net, 1, 0, -9.0), 1, 1, -9.0)
    activations = predict(net, random_batch())[1]
    assert activations["hidden1"][..., :2].std() > 0.01, "the residual stream still varies"
    units = activity.hidden_units(net, activations)["hidden1"]
    assert units[..., :2].std() < 1e-3 < units[..., 2:].std()
    assert 2 / 8 <= float(activity.measure(net, activations)["hidden1/dead"]) < 5 / 8


def test_a_transformer_reports_its_feed_forward_units_and_probes_skip_them():
    model = Transformer(num_layers=2, d_model=8, num_heads=2, d_ff=16)
    net, activations = network_and_activations(model)
    assert activations["feedforward1"].shape == (6, 4, 16)
    assert {name.split("/")[0] for name in activity.measure(net, activations)} == {
        "feedforward0",
        "feedforward1",
    }
    run = dataclasses.replace(
        TINY, model=Transformer(1, 8, 2, 16), diagnostics=(rc.LinearDecodability(32, 32, 32),)
    )
    columns = set(rc.train(run))
    assert "activity/feedforward0/dead" in columns
    assert "LinearDecodability/block0/test/r2" in columns
    assert not [name for name in columns if name.startswith("LinearDecodability/feedforward")]


def test_feed_forward_units_are_the_inputs_of_the_second_matrix():
    net, _ = network_and_activations(Transformer(num_layers=1, d_model=8, num_heads=2, d_ff=16))
    without_feedforward = eqx.tree_at(
        lambda net: net.blocks[0].narrow.weight, net, net.blocks[0].narrow.weight * 0
    )
    batch = random_batch(num_tasks=2)
    full = predict(net, batch)[1]
    without = predict(without_feedforward, batch)[1]
    added = full["feedforward0"] @ net.blocks[0].narrow.weight.T
    np.testing.assert_allclose(full["block0"] - without["block0"], added, atol=1e-5)


def test_hidden_layers_without_a_named_nonlinearity_are_used_as_they_are():
    hidden = jnp.array(RNG.normal(size=(6, 4, 5)), jnp.float32).at[..., 0].set(0.3)
    activations = dict.fromkeys(("hidden0", "output", "block0", "hidden"), hidden)
    measured = activity.measure(object(), activations)
    assert {name.split("/")[0] for name in measured} == {"hidden0"}
    assert float(measured["hidden0/dead"]) == pytest.approx(1 / 5)


@dataclasses.dataclass(frozen=True)
class Affine:
    """A model without hidden layers: an affine map of the code."""

    def init(self, key, example, num_outputs, num_tokens=0, world=None):
        return AffineNet(eqx.nn.Linear(example.code.shape[-1], num_outputs, key=jax.random.key(0)))


class AffineNet(eqx.Module):
    linear: eqx.nn.Linear
    activation: str = eqx.field(default="relu", static=True)

    def __call__(self, x, code):
        output = jnp.repeat(self.linear(code)[None], len(x), axis=0)
        return output, {"output": output}


def test_a_network_without_hidden_layers_has_no_activity():
    net, activations = network_and_activations(Affine())
    assert set(activations) == {"output"}
    assert activity.hidden_units(net, activations) == {}
    assert activity.measure(net, activations) == {}


def test_at_most_4096_samples_are_used():
    h = np.zeros((5000, 2), np.float32)
    h[4096:, 0] = 1.0
    h[:, 1] = RNG.normal(size=5000)
    measured = activity.measure(object(), {"hidden0": jnp.array(h.reshape(1250, 4, 2))})
    assert float(measured["hidden0/dead"]) == pytest.approx(1 / 2)


def test_every_evaluation_measures_unit_activity():
    rows = rc.train(dataclasses.replace(TINY, num_evals=2))
    columns = [
        f"activity/hidden{i}/{name}" for i in (0, 1) for name in ("dead", "rare", "active", "rank")
    ]
    assert rows[columns].notna().all(axis=None)
    assert len(rows) == 2
    assert rows["activity/hidden1/rank"].between(1, 8).all()


@dataclasses.dataclass(frozen=True)
class Echo:
    """A model whose hidden layer is the code itself."""

    def init(self, key, example, num_outputs, num_tokens=0, world=None):
        return EchoNet(jnp.zeros((num_outputs,)))


class EchoNet(eqx.Module):
    bias: jax.Array

    def __call__(self, x, code):
        prediction = jnp.zeros((len(x), len(self.bias))) + self.bias
        return prediction, {"hidden0": jnp.repeat(code[None], len(x), axis=0)}


def test_activity_is_measured_on_samples_of_seen_tasks():
    # The last module is in every test task and in no train task. So on seen tasks its unit never
    # varies.
    run = dataclasses.replace(TINY, model=Echo(), support=rc.MissingModule(), recipe=rc.Paper())
    assert rc.train(run)["activity/hidden0/dead"].tolist() == pytest.approx([1 / 6] * 2)


def test_networks_may_have_a_learned_activation_or_only_hidden_layers():
    h = jnp.array(RNG.normal(size=(6, 4, 5)), jnp.float32).at[..., 0].set(0.0)
    learned = SimpleNamespace(activation=jnp.zeros(3))
    assert float(activity.measure(learned, {"hidden0": h})["hidden0/dead"]) == pytest.approx(1 / 5)
    only_hidden = SimpleNamespace(activation="relu")
    measured = activity.measure(only_hidden, {"hidden0": h})
    assert float(measured["hidden0/dead"]) == pytest.approx(1 / 5)
