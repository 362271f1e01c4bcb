from dataclasses import dataclass
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.diagnostics.bayes_ceiling import BayesCeiling
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.hidden import Hidden
from recombine.parts.encodings.identity import Identity
from recombine.parts.encodings.orthogonal import Orthogonal
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.families.preference_grid import PreferenceGrid
from recombine.parts.prng import new_key
from recombine.parts.protocols import Split
from recombine.sweeps.run import Run
from recombine.training.task_sampler import make_split

KEY = new_key(0)
VALUES = np.array([1.0, 2.0, 4.0], np.float32)
ROWS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]], np.int8)


@dataclass(frozen=True)
class Plain:
    """A deterministic family: the answers of a task are its value times the points -1 and 2."""

    num_modules: int = 3

    def weigh(self, key, row):
        return row.astype(jnp.float32)

    def sample(self, world, key, task, n):
        x = jnp.array([[-1.0], [2.0]])
        return x, x * (task @ VALUES)

    def score(self, prediction, y):
        return {"loss": jnp.square(prediction - y).mean()}


@dataclass(frozen=True)
class First:
    """The code is the weight of the first module."""

    def init(self, key, family):
        return ()

    def encode(self, params, key, task, examples):
        return task[:1]


def lab_of(family, encoding, table, train, world=()):
    """A stub `Lab` in which the rows `train` are train tasks and all others are test tasks."""
    order = np.concatenate([train, np.setdiff1d(np.arange(len(table)), train)])
    split = Split(jnp.asarray(order), jnp.int32(len(train)), jnp.int32(len(table) - len(train)))
    fields = {
        "family": family,
        "encoding": encoding,
        "table": jnp.asarray(table),
        "split": split,
        "world": world,
    }
    unused = dict.fromkeys(["observe", "look"], lambda *_: None)
    return SimpleNamespace(net=None, **unused, **fields)


def measured(lab, **fields):
    result = jax.jit(lambda: BayesCeiling(**fields).measure(KEY, lab))()
    return {name: float(value) for name, value in result.items()}


def expected_loss(row, candidates):
    """Squared error of the mean answer of some rows; the points -1 and 2 have mean square 2.5."""
    value = ROWS @ VALUES
    return 2.5 * (value[candidates].mean() - value[row]) ** 2


def test_the_prediction_is_the_mean_over_agreeing_tasks():
    train, agree = (
        [0, 1, 5],
        {0: [0, 3, 4], 1: [1, 2, 5], 2: [1, 2, 5], 3: [0, 3, 4], 4: [0, 3, 4], 5: [1, 2, 5]},
    )
    result = measured(lab_of(Plain(), First(), ROWS, train), num_tasks=6, num_points=2)
    for side, rows in (("seen", train), ("test", [2, 3, 4])):
        for prior, known in (("all", range(6)), ("train", train)):
            losses = [expected_loss(row, [c for c in agree[row] if c in known]) for row in rows]
            assert result[f"{side}/{prior}/loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        assert result[f"{side}/num_agree"] == 3
    # The prior over train tasks is better on train tasks and worse on test tasks.
    assert result["seen/train/loss"] < result["seen/all/loss"]
    assert result["test/train/loss"] > result["test/all/loss"]


def test_the_prior_is_uniform_if_no_train_task_agrees():
    result = measured(lab_of(Plain(), First(), ROWS, [1, 2]), num_tasks=4, num_points=2)
    losses = [expected_loss(5, [1, 2])] + [expected_loss(row, [0, 3, 4]) for row in (0, 3, 4)]
    assert result["test/train/loss"] == pytest.approx(np.mean(losses), rel=1e-5)


FAMILY = Hyperteacher(
    num_modules=5, num_hot=2, d_input=4, d_hidden=4, num_outputs=3, weights="khot"
)


def hyperlab(encoding, family=FAMILY):
    split, _ = make_split(Run(family=family, frac_test=0.4), family.tasks())
    return lab_of(
        family,
        encoding,
        family.tasks(),
        np.asarray(split.order[: split.num_train]),
        family.init(KEY),
    )


@pytest.mark.parametrize(
    "encoding", [Identity(), Orthogonal(), Hidden(0.0), FewShot(1), FewShot(3, sequence=True)]
)
def test_a_code_that_identifies_its_task_agrees_with_one_row(encoding):
    result = measured(hyperlab(encoding), num_tasks=30)
    for side in ("seen", "test"):
        assert result[f"{side}/num_agree"] == 1
        assert result[f"{side}/all/r2"] == result[f"{side}/train/r2"] == pytest.approx(1, abs=1e-5)


def test_predictions_get_worse_as_more_is_hidden():
    results = [measured(hyperlab(Hidden(frac)), num_tasks=200) for frac in (0.0, 0.3, 0.6, 1.0)]
    for side in ("seen", "test"):
        scores = [result[f"{side}/all/r2"] for result in results]
        assert sorted(scores, reverse=True) == scores
        assert [results[0][f"{side}/num_agree"], results[-1][f"{side}/num_agree"]] == [1, 15]
        assert scores[1] < 0.95
        assert scores[3] < 0.3


def test_with_drawn_weights_all_scores_are_nan():
    result = measured(hyperlab(Identity(), Hyperteacher(num_modules=5, num_hot=2)), num_tasks=4)
    assert np.isnan(list(result.values())).all()


def test_unsupported_networks_are_refused():
    grid = PreferenceGrid(
        num_modules=4, num_hot=2, num_features=4, observation="compact", weights="khot"
    )
    with pytest.raises(InputError, match=r"PreferenceGrid does not have: use diagnostics=\(\)"):
        BayesCeiling(2).measure(KEY, lab_of(grid, Identity(), grid.tasks(), [0, 1], grid.init(KEY)))
    with pytest.raises(InputError, match=r"all 20,000 tasks: use a table of at most 10,000"):
        BayesCeiling().measure(KEY, lab_of(Plain(), First(), np.ones((20_000, 3), np.int8), [0, 1]))
    with pytest.raises(InputError, match=r"BayesCeiling\.num_tasks must be at least 1"):
        BayesCeiling(0)
