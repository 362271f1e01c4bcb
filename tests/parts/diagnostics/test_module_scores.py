from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.parts.diagnostics.module_scores import ModuleScores
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch, Observation


def test_a_modules_score_is_the_mean_over_test_tasks_that_contain_it():
    sides = {
        "train": np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0.5, 0, 0, 0], [0, 0.6, 0, 0]], np.float32),
        "test": np.array([[1, 0.7, 0, 0], [1, 0, 0, 0], [0, 0.5, 1, 0], [0, 0, 1, 0]], np.float32),
    }
    values = jnp.array([1.0, 0.5, 0.0, -1.0])

    def observe(key, part, n, net=None):
        return Observation(
            Batch(values, values, values, jnp.asarray(sides[part])), jnp.zeros(4), {}
        )

    absent = dict.fromkeys(["net", "world", "table", "split", "encoding"])
    lab = SimpleNamespace(
        observe=observe,
        look=observe,
        family=SimpleNamespace(score=lambda prediction, y: {"r2": y}),
        **absent,
    )
    scores = ModuleScores(num_tasks=4).measure(new_key(0), lab)
    np.testing.assert_allclose(scores["test/module=*/r2"], [0.75, 0.5, -0.5, np.nan])
    np.testing.assert_allclose(scores["train/module=*/share"], [0.75, 0.5, 0.25, 0.0])


def test_a_missing_module_has_share_0_and_lower_scores():
    family = Hyperteacher(num_modules=5, num_hot=2, d_input=4, d_hidden=4, num_outputs=4)
    run = rc.Run(
        family=family,
        support=rc.MissingModule(),
        model=rc.MLP((32, 32)),
        diagnostics=(ModuleScores(256),),
        num_steps=300,
        num_evals=1,
    )
    row = rc.train(run).iloc[-1]
    shares = [row[f"ModuleScores/train/module={m}/share"] for m in range(5)]
    assert shares[4] == 0
    # Ten train tasks have at most two of four modules: each module is in four of them.
    np.testing.assert_allclose(shares[:4], 0.4, atol=0.02)
    # Every test task contains the missing module; each other module is in one of five test tasks.
    assert row["ModuleScores/test/module=4/r2"] == pytest.approx(row["test/r2"], abs=0.5)
    assert np.isfinite([row[f"ModuleScores/test/module={m}/r2"] for m in range(5)]).all()


def test_bad_sizes():
    with pytest.raises(InputError, match="num_tasks"):
        ModuleScores(num_tasks=1)
