import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.parts.families.chain import Chain
from recombine.parts.families.subsequence import Subsequence
from recombine.parts.models.sequence_transformer import SequenceTransformer, _rotate, _rotation
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch
from tests.tiny import TINY

FAMILY = Chain(num_modules=3, max_length=4, size=5)
CONTINUOUS = Chain(kind="continuous", num_modules=3, max_length=4, size=5)


def small(**fields):
    return SequenceTransformer(2, 8, 2, 12, **fields)


def drawn(model, family=FAMILY, chain=(2, 0)):
    """A network, and a batch of six points of one chain."""
    task = family.task(chain)
    world = family.init(new_key(0))
    x, y = family.sample(world, new_key(1), task, 6)
    batch = Batch(x, y, family.sentence(task), task)
    num_tokens = len(family.vocabulary)
    return model.init(new_key(2), batch, family.num_outputs, num_tokens, world), batch


@pytest.mark.parametrize("targets", ["answer", "scratchpad"])
def test_padding_changes_nothing(targets):
    net, batch = drawn(small(targets=targets))
    padded = jnp.concatenate([batch.code, jnp.zeros(3, int)])
    for short, long in zip(net(batch.x, batch.code), net(batch.x, padded), strict=True):
        if isinstance(short, dict):
            short, long = short["block1"], long["block1"]
        np.testing.assert_allclose(short, long, atol=1e-5)


@pytest.mark.parametrize("positions", ["absolute", "random_offset", "rotary"])
def test_the_order_of_words_matters(positions):
    net, batch = drawn(small(positions=positions))
    swapped = batch.code[jnp.array([1, 0, 2, 3])]
    difference = net(batch.x, batch.code)[0] - net(batch.x, swapped)[0]
    assert jnp.abs(difference).max() > 1e-3


@pytest.mark.parametrize("family", [FAMILY, CONTINUOUS])
def test_a_scratchpad_is_generated_from_its_own_steps(family):
    net, batch = drawn(small(targets="scratchpad"), family)
    prediction, _ = net(batch.x, batch.code)
    assert prediction.shape == (6, 4, 5)
    # One step at a time, each pass from the steps written so far.
    steps = np.zeros((6, 3, 5), np.float32)
    for i in range(4):
        output = np.asarray(net.read(batch.x, batch.code, jnp.asarray(steps), 0)[0])[:, i]
        np.testing.assert_allclose(prediction[:, i], output, atol=1e-5)
        if i < 3:
            steps[:, i] = np.eye(5)[output.argmax(1)] if family is FAMILY else output


def test_a_step_sees_only_earlier_steps():
    net, batch = drawn(small(targets="scratchpad"))
    steps = jax.random.normal(new_key(5), (6, 3, 5))
    before = net.read(batch.x, batch.code, steps, 0)[0]
    after = net.read(batch.x, batch.code, steps.at[:, 1].add(1), 0)[0]
    changed = np.abs(np.asarray(before - after)).max(axis=(0, 2)) > 1e-6
    assert changed.tolist() == [False, False, True, True]


def test_training_shows_true_steps_and_evaluation_does_not():
    model = small(targets="scratchpad")
    net, batch = drawn(model)
    true = jax.nn.one_hot(batch.y.values[:, :3], 5)
    expected = FAMILY.score(net.read(batch.x, batch.code, true, 0)[0], batch.y)["loss"]
    loss = model.loss(net, batch, FAMILY.score, new_key(0))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    other = batch._replace(y=batch.y._replace(values=(batch.y.values + 1) % 5))
    assert model.loss(net, other, FAMILY.score, new_key(0)) != loss
    np.testing.assert_array_equal(net(batch.x, batch.code)[0], net(other.x, other.code)[0])


def test_random_offsets_move_positions_in_training_only():
    model = small(positions="random_offset", max_offset=8)
    net, batch = drawn(model)
    assert net.positions.embedding.weight.shape == (2 + 4 + 8, 8)
    losses = {float(model.loss(net, batch, FAMILY.score, new_key(i))) for i in range(40)}
    assert len(losses) == 9
    evaluated = FAMILY.score(net(batch.x, batch.code)[0], batch.y)["loss"]
    assert any(np.isclose(float(evaluated), loss) for loss in losses)
    fixed = small(positions="absolute")
    net, batch = drawn(fixed)
    assert len({float(fixed.loss(net, batch, FAMILY.score, new_key(i))) for i in range(9)}) == 1


def test_rotary_products_depend_on_distances_only():
    h = jax.random.normal(new_key(0), (1, 6, 2, 4))
    near = _rotate(h, *_rotation(jnp.arange(6), 4))
    far = _rotate(h, *_rotation(jnp.arange(6) + 50, 4))
    products = [jnp.einsum("nihd,njhd->hij", r, r) for r in (near, far)]
    np.testing.assert_allclose(*products, atol=1e-4)
    assert not np.allclose(near, far, atol=0.1)


def test_parallel_targets_are_read_at_the_words():
    net, batch = drawn(small(targets="parallel"))
    prediction, activations = net(batch.x, batch.code)
    assert prediction.shape == (6, 4, 5)
    assert activations["nodes1"].shape == (6, 4, 8)
    family = Subsequence(listed_length=2, num_longer=3, max_length=4)
    task = family.weigh(new_key(0), jnp.array([3, 9, 4, 0]))
    x, y = family.sample((), new_key(0), task, 1)
    batch = Batch(x, y, family.sentence(task), task)
    net = small(targets="parallel").init(new_key(0), batch, family.num_outputs, 12)
    assert net(batch.x, batch.code)[0].shape == (1, 4, 2), "two logits for each element"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": small(targets="scratchpad")}, "Hyperteacher has no graph"),
        (
            {"family": FAMILY, "model": small(targets="parallel")},
            "a code of words: choose Chain with encoding=Language",
        ),
        ({"encoding": rc.FewShot(num_pairs=2, sequence=True), "model": small()}, "a flat code"),
        (
            {"support": rc.HeldOutLengths(2), "model": small()},
            "uses the view 'lengths', but Hyperteacher offers no views",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        rc.train(dataclasses.replace(TINY, **changes), progress=False)
    assert "\n" not in str(caught.value)


def test_heads_of_odd_size_are_refused():
    with pytest.raises(InputError, match="heads of even size"):
        SequenceTransformer(d_model=12, num_heads=4)
