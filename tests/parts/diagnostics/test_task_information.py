from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.parts.diagnostics.task_information import TaskInformation
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch, Observation

ABSENT = dict.fromkeys(["net", "family", "world", "split", "encoding"])


def lab(table, observed_rows, is_encoded):
    """A stub `Lab` with one layer: the task itself for rows that are encoded, noise for others."""

    def look(key, rows, net=None):
        observed_rows.append(np.asarray(rows))
        noise = jnp.asarray(
            np.random.default_rng(len(observed_rows)).normal(size=rows.shape), jnp.float32
        )
        layer = jnp.where(is_encoded(rows)[:, None], rows, noise)[:, None]
        return Observation(Batch(layer, layer, rows, rows), layer, {"hidden0": layer})

    return SimpleNamespace(look=look, observe=look, table=table, **ABSENT)


def test_decoders_are_fitted_on_one_half_of_all_tasks_and_scored_on_the_other():
    table, observed_rows = jnp.asarray(np.random.default_rng(0).random((101, 4)), jnp.float32), []
    scores = TaskInformation(num_fit=60, num_test=120).measure(
        new_key(0), lab(table, observed_rows, lambda r: r[:, 0] >= 0)
    )
    fit, seen, test = ({tuple(row) for row in rows.tolist()} for rows in observed_rows)
    assert fit == seen
    assert not fit & test
    assert (len(fit), len(test)) == (50, 51), "all tasks are in one half or the other"
    assert [len(rows) for rows in observed_rows] == [60, 60, 120]
    assert float(scores["hidden0/test/r2"]) > 0.99


def test_what_a_layer_does_not_represent_is_not_decoded():
    table = jnp.asarray(np.random.default_rng(0).random((400, 4)), jnp.float32)
    scores = TaskInformation().measure(new_key(0), lab(table, [], lambda rows: rows[:, 0] > 2))
    assert float(scores["hidden0/test/r2"]) < 0.1
    assert float(scores["code/test/r2"]) > 0.99


def test_it_does_not_depend_on_what_was_trained():
    """An untrained network has the same score, whatever the number of train tasks."""
    base = rc.Run(
        rc.Hyperteacher(num_modules=6, d_input=4, d_hidden=4, num_outputs=4),
        model=rc.MLP((16, 16)),
        recipe=rc.Fast(0.0, 0.0),
        diagnostics=(TaskInformation(),),
        num_steps=1,
        num_evals=1,
    )
    few, many = (
        rc.train(rc.sweep(base, frac_test=[frac], seed=range(1))).iloc[0] for frac in (0.8, 0.2)
    )
    assert few["support/num_train"] < many["support/num_train"]
    for layer in ("pre0", "hidden1"):
        column = f"TaskInformation/{layer}/test/r2"
        assert few[column] == pytest.approx(many[column], abs=1e-4)


def test_bad_sizes():
    with pytest.raises(InputError, match="num_fit"):
        TaskInformation(num_fit=1)
    with pytest.raises(InputError, match="l2"):
        TaskInformation(l2=0.0)
