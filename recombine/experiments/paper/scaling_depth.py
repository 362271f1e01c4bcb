"""Do deeper students generalise better, however the task is encoded?

Claim: test R2 grows monotonically with the depth of the student (arXiv 2507.07207, section 3), here for all
six encodings at one width; M=16, K=3, 25% of the tasks held out.

What counts as growing and as a fall is defined in `scaling_width`. The recipe is the same at all depths, and the
students are plain: no residuals, no normalisation.

Command:  recombine run scaling_depth --scale small
Runtime:  3 to 4 minutes on 2 cores; full: 3 minutes on an H200 that another sweep shared.
Expected: a gain and no fall for each encoding, as published; plain students of 6 and 8 layers may be hard to train.
Measured: full (2026-11-16, M=16, width 256, 3 seeds): from 1 to 4 layers all grow (Identity .81 to .983, Language .52
          to .988, IntervalShuffle .59 to .973, FewShot .43 to .86). Then IntervalShuffle goes on to 6 layers (.987) and
          FewShot to 8 (.891). From their best to 8 layers all but FewShot lose .002 to .005, more than seeds differ.
          The recipe is the one that is best for 4x1024. small (2026-11-15, M=8, width 64, 3 seeds): no fall from 1 to 2
          to 4 layers. Gains: Language .57 (.56 to .60), IntervalShuffle .40 (.38 to .41), InvertibleNN .21 (.19 to
          .25), Orthogonal .20 (.17 to .22), Identity .19 (.18 to .20), FewShot .18 (.17 to .20). Seen scores grow as
          much: at this size depth helps to fit.
"""

from recombine.experiments import claim as ledger
from recombine.experiments.paper.scaling_width import (
    ENCODINGS,
    SCORE,
    ends,
    fall,
    growth,
    last,
    ordered,
    students,
)
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.fast import Fast
from recombine.reporting import figure
from recombine.sweeps.run import Run, put, sweep

TITLE = "Deeper students: how far does depth help, however the task is encoded?"
WIDTH = {"tiny": 8, "small": 64, "full": 256}
DEPTHS = {"tiny": (1, 2), "small": (1, 2, 4), "full": (1, 2, 3, 4, 6, 8)}
SEEDS = {"tiny": 1, "small": 3, "full": 3}


def runs(scale: str) -> list[Run]:
    """Encoding x depth x seed, 25% held out."""
    models = [MLP((WIDTH[scale],) * depth) for depth in DEPTHS[scale]]
    bases = students(scale) if scale != "full" else [_earlier(base) for base in students(scale)]
    return [run for base in bases for run in sweep(base, model=models, seed=range(SEEDS[scale]))]


def _earlier(base: Run) -> Run:
    """The student with the recipe that the committed table was trained with."""
    rate, num_steps = (0.015, 16_000) if isinstance(base.encoding, FewShot) else (0.05, 5000)
    return put(base, {"recipe": Fast(rate, 0.02, vector_rate=1.0), "num_steps": num_steps})


def _trends(rows) -> dict[str, dict]:
    """For each encoding, the trend along depth at the width of the sweep."""
    wanted = [{WIDTH[scale]: DEPTHS[scale]} for scale in DEPTHS]
    found = last(rows)
    return {
        encoding: ledger.trends(
            found[found["encoding"] == encoding], "width", "depth", SCORE, wanted
        )
        for encoding in ENCODINGS
    }


def summary(rows) -> dict[str, float]:
    """Test R2 of the shallowest and the deepest students, and the deepest fall on the way."""
    return ends(rows, "depth") | fall(_trends(rows))


def figures(rows) -> dict:
    """Test R2 against depth by encoding, on unseen and on seen tasks."""
    found = ordered(last(rows))
    told = {"test": "unseen combinations", "seen": "fresh samples of train tasks"}
    return {
        side: figure.lines(
            found,
            "depth",
            f"{side}/r2",
            by="encoding",
            title=f"R² by depth and encoding: {tasks} (width {found['width'].min()})",
            x_title="hidden layers",
            y_title=f"R² on {tasks}",
            log_x=True,  # which names the depths that are there and no others
        )
        for side, tasks in told.items()
    }


def claims(rows) -> list:
    """The published gain with depth, for each encoding."""
    return growth("depth", {} if rows is None else _trends(rows))
