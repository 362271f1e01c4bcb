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
    """A family without chance: the answers of a task are its value times the points -1 and 2."""

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
    """Shows the first module alone."""

    def init(self, key, family):
        return ()

    def encode(self, params, key, task, examples):
        return task[:1]


def lab_of(family, encoding, table, train, world=()):
    """A laboratory with these rows, by number, as train tasks and all others as test tasks."""
    order = np.concatenate([train, np.setdiff1d(np.arange(len(table)), train)])
    split = Split(jnp.asarray(order), jnp.int32(len(train)), jnp.int32(len(table) - len(train)))
    fields = {
        "family": family,
        "encoding": encoding,
        "table": jnp.asarray(table),
        "split": split,
        "world": world,
    }
    nothing = dict.fromkeys(["observe", "look"], lambda *_: None)
    return SimpleNamespace(net=None, **nothing, **fields)  # a ceiling needs no network


def measured(lab, **fields):
    found = jax.jit(lambda: BayesCeiling(**fields).measure(KEY, lab))()
    return {name: float(value) for name, value in found.items()}


def expected_loss(row, candidates):
    """Mean squared error of the mean answer of some rows, in plain NumPy: the points -1 and 2 have mean square 2.5."""
    value = ROWS @ VALUES
    return 2.5 * (value[candidates].mean() - value[row]) ** 2


def test_it_is_the_mean_over_the_tasks_that_agree():
    train, agree = (
        [0, 1, 5],
        {0: [0, 3, 4], 1: [1, 2, 5], 2: [1, 2, 5], 3: [0, 3, 4], 4: [0, 3, 4], 5: [1, 2, 5]},
    )
    found = measured(lab_of(Plain(), First(), ROWS, train), num_tasks=6, num_points=2)
    for side, rows in (("seen", train), ("test", [2, 3, 4])):
        for prior, known in (("all", range(6)), ("train", train)):
            losses = [expected_loss(row, [c for c in agree[row] if c in known]) for row in rows]
            assert found[f"{side}/{prior}/loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        assert found[f"{side}/num_agree"] == 3
    # The bet is better on train tasks and worse on others.
    assert found["seen/train/loss"] < found["seen/all/loss"]
    assert found["test/train/loss"] > found["test/all/loss"]


def test_where_no_train_task_agrees_all_tasks_count():
    found = measured(lab_of(Plain(), First(), ROWS, [1, 2]), num_tasks=4, num_points=2)
    losses = [expected_loss(5, [1, 2])] + [expected_loss(row, [0, 3, 4]) for row in (0, 3, 4)]
    assert found["test/train/loss"] == pytest.approx(np.mean(losses), rel=1e-5)


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
def test_a_code_that_tells_its_task_leaves_nothing_open(encoding):
    found = measured(hyperlab(encoding), num_tasks=30)
    for side in ("seen", "test"):
        assert found[f"{side}/num_agree"] == 1
        assert found[f"{side}/all/r2"] == found[f"{side}/train/r2"] == pytest.approx(1, abs=1e-5)


def test_the_more_is_hidden_the_less_can_be_predicted():
    found = [measured(hyperlab(Hidden(frac)), num_tasks=200) for frac in (0.0, 0.3, 0.6, 1.0)]
    for side in ("seen", "test"):
        scores = [scores[f"{side}/all/r2"] for scores in found]
        assert sorted(scores, reverse=True) == scores
        assert [found[0][f"{side}/num_agree"], found[-1][f"{side}/num_agree"]] == [1, 15]
        assert scores[1] < 0.95
        assert scores[3] < 0.3


def test_with_drawn_weights_tasks_cannot_be_listed():
    found = measured(hyperlab(Identity(), Hyperteacher(num_modules=5, num_hot=2)), num_tasks=4)
    assert np.isnan(list(found.values())).all()


def test_what_it_cannot_do_is_told():
    grid = PreferenceGrid(
        num_modules=4, num_hot=2, num_features=4, observation="compact", weights="khot"
    )
    with pytest.raises(
        InputError, match=r"those of PreferenceGrid are no real numbers: use diagnostics=\(\)"
    ):
        BayesCeiling(2).measure(KEY, lab_of(grid, Identity(), grid.tasks(), [0, 1], grid.init(KEY)))
    with pytest.raises(InputError, match=r"all 20,000 tasks: use a table of at most 10,000"):
        BayesCeiling().measure(KEY, lab_of(Plain(), First(), np.ones((20_000, 3), np.int8), [0, 1]))
    with pytest.raises(InputError, match=r"BayesCeiling\.num_tasks must be at least 1"):
        BayesCeiling(0)
