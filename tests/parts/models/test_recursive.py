import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.parts import sequences
from recombine.parts.models.recursive import Recursive
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch, Nodes

KEY = new_key(0)
SMALL = Recursive(8, 12, 1, num_heads=2, num_updates=2, num_cycles=3, num_steps=4, targets="words")
NUM_WORDS = 4
NUM_VALUES = 3
CODE = jnp.array([2, 1, 3, 0])
score = sequences.classification_scores


def batch_of(code=CODE, values=(0, 2, 1, 0)) -> Batch:
    """One sample: a value for each of four words."""
    answer = jnp.arange(NUM_WORDS)[None]
    y = Nodes(jnp.array([values]), jnp.ones((1, NUM_WORDS), bool), answer)
    return Batch(jnp.ones((1, 1)), y, code, jnp.zeros(2))


BATCH = batch_of()


@functools.lru_cache
def network(model: Recursive):
    return jax.jit(lambda: model.init(KEY, BATCH, NUM_WORDS * NUM_VALUES, num_tokens=5))()


think = jax.jit(lambda net, state: net.think(BATCH.x, CODE, state))
unroll = jax.jit(
    lambda net, batch, num_steps: net.unroll(batch.x, batch.code, num_steps)[1],
    static_argnums=2,
)


def random_state():
    y, z = jax.random.normal(KEY, (2, 1, NUM_WORDS + 2, 8))
    return y, z


@pytest.mark.parametrize("networks", ["one", "two"])
@pytest.mark.parametrize("mixing", ["mlp", "attention"])
def test_a_supervision_step_is_the_recursion_by_hand(mixing, networks):
    model = dataclasses.replace(SMALL, mixing=mixing, networks=networks)
    net = network(model)

    @jax.jit
    def by_hand(net, y, z):
        tokens = net.tokens(BATCH.x, CODE)
        layers_of_answer = net.of_latent if networks == "one" else net.of_answer
        for _ in range(3):
            for _ in range(2):
                z = net.apply(net.of_latent, z + y + tokens.vectors, tokens)
            y = net.apply(layers_of_answer, y + z, tokens)
        return y, z

    y, z = by_hand(net, *random_state())
    state, prediction, _ = think(net, random_state())
    np.testing.assert_allclose(state[0], y, atol=1e-5)
    np.testing.assert_allclose(state[1], z, atol=1e-5)
    expected = y[:, 1:5] @ net.readout.weight.T + net.readout.bias
    np.testing.assert_allclose(prediction, expected.reshape(1, -1), atol=1e-5)
    assert len(net.of_answer) == (1 if networks == "two" else 0)


def test_the_gradient_passes_through_the_last_cycle_only():
    net = network(SMALL)

    def loss(net, before):
        """The last cycle from given states."""
        y, _ = net.cycle(before, net.tokens(BATCH.x, CODE))
        return jnp.sum(jnp.sin(y))

    def two_cycles(net, state):
        tokens = net.tokens(BATCH.x, CODE)
        return net.cycle(net.cycle(state, tokens), tokens)

    expected = jax.jit(jax.grad(loss))(net, jax.jit(two_cycles)(net, random_state()))

    @jax.jit
    @jax.grad
    def own_gradient(net):
        (y, _), _, _ = net.think(BATCH.x, CODE, random_state())
        return jnp.sum(jnp.sin(y))

    actual = own_gradient(net)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    other = network(dataclasses.replace(SMALL, gradient="all"))
    through_all = own_gradient(other)
    weight, other_weight = (g.of_latent[0].within.out.weight for g in (actual, through_all))
    assert jnp.abs(weight - other_weight).max() > 0.01 * jnp.abs(other_weight).max()


def test_the_plain_network_is_applied_once():
    model = dataclasses.replace(SMALL, kind="plain")
    net = network(model)

    @jax.jit
    def by_hand(net, y):
        tokens = net.tokens(BATCH.x, CODE)
        return net.apply(net.of_latent, y + tokens.vectors, tokens)

    state, _, _ = think(net, random_state())
    expected = by_hand(net, random_state()[0])
    np.testing.assert_allclose(state[0], expected, atol=1e-6)
    same = [leaf.shape for leaf in jax.tree.leaves(net)]
    assert same == [leaf.shape for leaf in jax.tree.leaves(network(SMALL))], "equal parameters"


@functools.lru_cache
def jitted_loss(model):
    loss = functools.partial(model.loss, score=score)
    return jax.jit(lambda net, batch, key, memory: loss(net, batch, key=key, memory=memory))


def test_a_sample_is_kept_for_all_steps_then_replaced():
    model = dataclasses.replace(SMALL, halting=False)
    net = network(model)
    first, second = BATCH, batch_of(jnp.array([1, 1, 4, 4]), (1, 1, 1, 1))
    memory = model.memory(jax.tree.map(jnp.zeros_like, BATCH))
    predictions = unroll(net, first, 4)
    for step in range(4):
        batch = first if step == 0 else second
        loss, memory = jitted_loss(model)(net, batch, KEY, memory)
        assert memory.code.tolist() == CODE.tolist()
        assert int(memory.num_steps) == step + 1
        assert bool(memory.is_finished) == (step == 3)
        expected = score(predictions[step], first.y)["loss"]
        assert float(loss) == pytest.approx(float(expected), abs=1e-5), "the state is carried"
    loss, memory = jitted_loss(model)(net, second, KEY, memory)
    assert memory.code.tolist() == [1, 1, 4, 4]
    assert int(memory.num_steps) == 1
    predictions = unroll(net, second, 1)
    expected = score(predictions[0], second.y)["loss"]
    assert float(loss) == pytest.approx(float(expected), abs=1e-5), "the state begins anew"


def with_halting_logit(net, logit):
    return eqx.tree_at(lambda net: net.halting.bias, net, jnp.full(1, logit))


def test_a_sample_halts_when_the_head_says_so():
    model = dataclasses.replace(SMALL, exploration=0.0)
    for logit, is_finished in ((2.0, True), (-2.0, False)):
        net = with_halting_logit(network(model), logit)
        loss, memory = jitted_loss(model)(net, BATCH, KEY, model.memory(BATCH))
        assert bool(memory.is_finished) is is_finished
        predictions = unroll(net, BATCH, 1)
        scores = score(predictions[0], BATCH.y)
        assert scores["accuracy"] == 0
        # The binary cross-entropy of "right" at this logit, for a wrong answer.
        halting_loss = np.log1p(np.exp(logit))
        assert float(loss) == pytest.approx(float(scores["loss"]) + 0.5 * halting_loss, abs=1e-4)


def test_exploration_keeps_a_fraction_of_the_samples():
    model = dataclasses.replace(SMALL, exploration=0.3, num_steps=4)
    net = with_halting_logit(network(model), 2.0)
    keys = jax.random.split(KEY, 2000)
    memory = model.memory(BATCH)

    @functools.partial(jax.vmap, in_axes=(0, None))
    def is_finished(key, memory):
        return jitted_loss(model)(net, BATCH, key, memory)[1].is_finished

    # All that explore have at least two steps.
    assert float(is_finished(keys, memory).mean()) == pytest.approx(0.7, abs=0.04)
    # At two steps, those that drew 3 or 4 of 2, 3 and 4 go on.
    later = memory._replace(is_finished=jnp.zeros((), bool), num_steps=jnp.int32(1))
    assert float(is_finished(keys, later).mean()) == pytest.approx(0.8, abs=0.04)


def test_an_untrained_network_does_not_halt():
    _, _, logit = think(network(SMALL), random_state())
    assert logit.tolist() == [-5.0]


def test_padding_changes_no_answer_with_attention():
    model = dataclasses.replace(SMALL, mixing="attention", targets="answer")
    net = model.init(KEY, BATCH, 3, num_tokens=5)
    answer = jax.jit(lambda code: net(BATCH.x, code)[0])
    short = jnp.array([2, 1, 3])
    np.testing.assert_allclose(
        answer(short), answer(jnp.append(short, jnp.zeros(2, int))), atol=1e-5
    )
    assert not np.allclose(answer(short), answer(short[::-1]), atol=1e-3)


def test_it_learns_chains_of_words():
    family = rc.Chain(num_modules=2, max_length=2, size=3)
    model = Recursive(16, 32, 1, num_updates=1, num_cycles=2, num_steps=2, mixing="attention")
    run = rc.Run(
        family=family,
        support=rc.HeldOutLengths(1),
        encoding=rc.Language(),
        model=model,
        recipe=rc.Paper(0.01, 0.0, frac_warmup=0.1, ema=0.9),
        diagnostics=(),
        num_steps=150,
        num_evals=1,
        num_tasks=16,
        num_points=1,
        num_eval_tasks=32,
        num_eval_points=8,
    )
    last = rc.train(run, progress=False).iloc[-1]
    assert last["seen/accuracy"] > 0.9, "chance is a third"


def test_a_family_without_accuracy_needs_no_halting():
    model = dataclasses.replace(SMALL, targets="answer")
    with pytest.raises(InputError, match="does not have: set halting=False"):
        rc.train(rc.Run(model=model, diagnostics=()), progress=False)


@pytest.mark.parametrize("name", ["num_cycles", "num_updates", "num_steps"])
def test_zero_cycles_updates_or_steps_are_refused_in_one_line(name):
    with pytest.raises(InputError, match=f"Recursive.{name} must be at least 1, got 0") as error:
        dataclasses.replace(SMALL, **{name: 0})
    assert "\n" not in str(error.value)


def test_other_bad_fields_are_refused():
    with pytest.raises(InputError, match="must be at most 1"):
        Recursive(exploration=1.5)
    with pytest.raises(InputError, match="must be a multiple of 2 \\* num_heads=8"):
        Recursive(d_model=12, mixing="attention")
    with pytest.raises(InputError, match="set targets='answer'"):
        SMALL.init(KEY, BATCH, 7, num_tokens=5)
