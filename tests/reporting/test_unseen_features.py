from dataclasses import replace

import pandas as pd

from recombine.experiments.limits import _chains
from recombine.parts.supports.held_out_sequences import HeldOutSequences
from recombine.reporting.unseen_features import summary_line
from recombine.sweeps.run import identity
from recombine.training.task_sampler import make_split


def split_columns(run):
    """The columns `support/…` of a run, without training it."""
    modules = run.family.modules(run.family.tasks())
    return {"run": identity(run), **make_split(run, modules)[1]}


def test_longer_chains_have_positions_that_training_never_had():
    base = _chains.base("tiny")  # chains of 3 modules, trained to length 2: the third has no input
    rows = pd.DataFrame([split_columns(base), split_columns(replace(base, seed=1))])
    line = summary_line(rows)
    assert line is not None
    assert "positions 3 (in 2 of 2 runs)" in line
    assert "lengths 1 (in 2 of 2 runs)" in line
    assert "modules" not in line, "every module is trained"


def test_nothing_is_said_if_all_features_are_trained():
    run = replace(_chains.base("tiny"), support=HeldOutSequences("positions"))
    assert summary_line(pd.DataFrame([split_columns(run)]).filter(regex="run|positions")) is None
    assert summary_line(pd.DataFrame([{"run": "a"}])) is None


def test_runs_without_the_columns_do_not_count():
    rows = pd.DataFrame([{"run": "a", "support/unseen_positions": 4.0}, {"run": "b"}, {"run": "b"}])
    assert summary_line(rows) == (
        "Features of held-out tasks that never occur in training, at most: "
        "positions 4 (in 1 of 2 runs)"
    )
