import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch, Split
from recombine.training.task_sampler import Setting, TaskSampler, make_shared, make_split, predict
from tests.tiny import TINY

SMALL = rc.Transformer(num_layers=1, d_model=8, num_heads=2, d_ff=16)


def batch(num_points):
    rng = np.random.default_rng(0)
    x, code = rng.normal(size=(3, num_points, 4)), rng.normal(size=(3, 6))
    return Batch(*(jnp.asarray(a, jnp.float32) for a in (x, x[..., :3], code, code)))


def net_of(model):
    return model.init(new_key(0), jax.tree.map(lambda leaf: leaf[0], batch(4)), 3)


def test_a_network_sees_a_given_number_of_points_at_a_time():
    net, whole = net_of(SMALL), batch(8)
    prediction, activations = predict(net, whole, at_once=4)
    halves = [predict(net, whole._replace(x=whole.x[:, i : i + 4]))[0] for i in (0, 4)]
    np.testing.assert_allclose(prediction, jnp.concatenate(halves, axis=1), atol=1e-6)
    assert activations["block0"].shape == (3, 8, 8)
    together = predict(net, whole)[0]
    np.testing.assert_allclose(prediction[:, :4], together[:, :4], atol=1e-6)
    assert np.abs(prediction[:, 4:] - together[:, 4:]).max() > 1e-3, (
        "all at once, later points see earlier ones"
    )


def test_a_model_with_independent_points_gives_the_same_predictions():
    net, whole = net_of(rc.MLP(widths=(8,))), batch(8)
    in_pairs = jax.tree.leaves(predict(net, whole, at_once=2))
    all_at_once = jax.tree.leaves(predict(net, whole))
    for leaf, expected in zip(in_pairs, all_at_once, strict=True):
        np.testing.assert_allclose(leaf, expected, atol=1e-6)


def test_evaluation_uses_as_many_points_at_a_time_as_training():
    run = dataclasses.replace(TINY, model=SMALL, num_points=4, num_eval_points=8)
    shared = jax.tree.map(jnp.asarray, make_shared(run.family))
    split = Split(*map(jnp.asarray, make_split(run, np.asarray(shared.table))[0]))
    setting = Setting(run.family.init(new_key(0)), ())
    sampler = TaskSampler(run, shared, split, setting, net_of(SMALL))
    seen = sampler.look(new_key(1), shared.table[:3])
    np.testing.assert_allclose(seen.prediction, predict(sampler.net, seen.batch, 4)[0], atol=1e-6)
    assert np.abs(seen.prediction - predict(sampler.net, seen.batch)[0]).max() > 1e-3


def test_numbers_of_points_that_do_not_fit_together_are_refused():
    with pytest.raises(
        InputError, match="num_eval_points=10 must be a multiple of num_points=4: Transformer sees"
    ):
        dataclasses.replace(TINY, model=SMALL, num_points=4, num_eval_points=10)
    assert dataclasses.replace(TINY, num_points=4, num_eval_points=10).num_eval_points == 10


def test_a_fitted_network_predicts_as_many_points_at_a_time_as_in_training():
    run = dataclasses.replace(TINY, model=SMALL, num_points=4)
    fitted = rc.Fitted(run, net_of(SMALL), run.family.init(new_key(0)), ())
    task = [1.0, 0, 0, 0.5, 0, 0]
    x, _ = fitted.examples(task, 10)
    alone = jnp.concatenate([fitted.predict(x[i : i + 4], task) for i in (0, 4, 8)])
    np.testing.assert_allclose(fitted.predict(x, task), alone, atol=1e-6)
    with pytest.raises(InputError, match="no points to predict"):
        fitted.predict(x[:0], task)
