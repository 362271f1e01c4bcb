"""The results of small runs. Rows are reused only while training still gives these numbers."""

import dataclasses

import pytest

import recombine as rc
from recombine.parts.recipes.fast import EARLIER_DEFAULT
from recombine.sweeps.run import NUMERICS
from tests.tiny import TINY

PROBE = rc.LinearDecodability(num_fit=32, num_seen=32, num_test=32)
GRID = rc.PreferenceGrid(num_modules=4, num_hot=2, num_features=4, horizon=4, observation="compact")
SEQUENCE = rc.FewShot(num_pairs=4, sequence=True)
AVERAGED = dataclasses.replace(EARLIER_DEFAULT, ema=0.9)
WORDS = rc.MLP(widths=(8, 8), tokens="embed", d_embed=4, normalisation="layer", residual=True)

# By name: the changes to the smallest run, and its last values of `COLUMNS`.
RESULTS = {
    "MLP, Fast, with a probe": (
        {"recipe": EARLIER_DEFAULT, "diagnostics": (PROBE,)},
        (0.267757, 0.234657, 0.18112, -0.118722),
    ),
    "Transformer on sequences, Paper": (
        {
            "encoding": SEQUENCE,
            "model": rc.Transformer(num_layers=1, d_model=8, num_heads=2, d_ff=16),
            "recipe": rc.Paper(learning_rate=0.01),
            "support": rc.Balanced(),
        },
        (0.273787, 0.330005, 0.208561),
    ),
    "Hypernetwork on episodes, a running average": (
        {
            "family": GRID,
            "encoding": rc.Orthogonal(),
            "model": rc.Hypernetwork(8),
            "recipe": AVERAGED,
        },
        (1.44234, 1.28406, 1.4732),
    ),
    "sentences": (
        {
            "family": rc.GoalGrid(),
            "encoding": rc.Language(),
            "model": WORDS,
            "recipe": EARLIER_DEFAULT,
            "num_points": 48,
            "num_eval_points": 48,
        },
        (1.93037, 1.83838, 1.93413),
    ),
}
COLUMNS = ("train/loss", "seen/loss", "test/loss", "LinearDecodability/deepest/test/r2")


@pytest.mark.parametrize(("changes", "expected"), RESULTS.values(), ids=RESULTS)
def test_training_gives_the_recorded_numbers(changes, expected):
    assert NUMERICS == 3, "NUMERICS was raised: write the new numbers here"
    last = rc.train(dataclasses.replace(TINY, **changes)).iloc[-1]
    values = [last[name] for name in COLUMNS[: len(expected)]]
    # Machines differ in the last digits. Within 20 steps that does not grow.
    assert values == pytest.approx(expected, rel=1e-3), (
        "training changed: raise NUMERICS in run.py and write the new numbers here"
    )
