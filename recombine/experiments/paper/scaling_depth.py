"""Do deeper students generalize better, for every encoding of the task?

Claim: test R2 grows monotonically with the depth of the student (arXiv 2507.07207, section 3), here
for all six encodings at one width; M=16, K=3, 25% of the tasks held out.

`scaling_width` defines what counts as a gain and as a fall. The training recipe is the same at all
depths, and the students are plain MLPs without residual connections or normalization.

Command:  recombine run scaling_depth --scale small
Runtime:  3 to 4 minutes on 2 cores; full: 3 minutes on an H200 that another sweep shared.
Expected: a gain and no fall for each encoding, as published; plain students of 6 and 8 layers may
          be hard to train.
"""

from recombine.experiments.claim import Frame
from recombine.experiments.paper import scaling_width
from recombine.experiments.plots import curve
from recombine.experiments.trend import Trend, trends
from recombine.parts.models.mlp import MLP
from recombine.sweeps.run import Run, sweep

TITLE = "Deeper students: how far does depth help, for every encoding of the task?"
SOURCE = scaling_width.SOURCE
WIDTH = {"tiny": 8, "small": 64, "full": 256}
DEPTHS = {"tiny": (1, 2), "small": (1, 2, 4), "full": (1, 2, 3, 4, 6, 8)}
SEEDS = {"tiny": 1, "small": 3, "full": 8}
COMPLETE_SWEEPS = [{WIDTH[scale]: DEPTHS[scale]} for scale in DEPTHS]


def runs(scale: str) -> list[Run]:
    """Encoding x depth x seed, 25% held out."""
    models = [MLP((WIDTH[scale],) * depth) for depth in DEPTHS[scale]]
    listed = []
    for base in scaling_width.students(scale):
        listed += sweep(base, model=models, seed=range(SEEDS[scale]))
    return listed


prepare = scaling_width.prepare


def summary(rows: Frame) -> dict[str, float]:
    """Test R2 of the shallowest and the deepest students, and the largest fall on the way."""
    final = prepare(rows)
    ends = scaling_width.smallest_and_largest(final, "depth")
    return ends | scaling_width.largest_fall(final, depth_trends)


def depth_trends(final: Frame, encoding: str) -> list[Trend]:
    """The trend along depth; none if the sweep of this encoding is not complete."""
    own = final[final["encoding"] == encoding]
    by_width = trends(own, "model.width", "model.depth", "test/r2", COMPLETE_SWEEPS)
    return list(by_width.values())


CLAIMS = scaling_width.growth_claims("depth", depth_trends)
FIGURES = [
    curve(
        f"{side}/r2",
        against="model.depth",
        color="encoding",
        each="model.width",
        name=side,
        title=f"R² by depth and encoding: {tasks} (width {{}})",
        log_x=True,  # so that the axis labels exactly the depths of the sweep
    )
    for side, tasks in {"test": "held-out combinations", "seen": "train combinations"}.items()
]
