"""More active modules than in training: how well do students score with K+1 and K+2 of them?

Claim: ours; the public code can score more active modules than were trained, but the paper reports
no number. A student that has learned the composition itself should extend to longer ones (arXiv
2507.07207, definition 2.2, asks only for held-out combinations of at most K modules).

For each K the score with K+1 and K+2 active modules is compared with that on held-out combinations
of at most K, for students trained on the most tasks. As a contrast, students trained on the fewest
tasks must do worse.

Command:  recombine run more_modules --scale small
Runtime:  93 s on 2 cores; full: 2.3 minutes on an H200 shared with another sweep.
Expected: K+1 close to held-out combinations of K, K+2 lower; with few train tasks all of them fail.
"""

import math

import pandas as pd

from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    at_least,
    below,
    final_rows,
    hypothesis,
)
from recombine.experiments.paper.scaling_data import is_possible
from recombine.experiments.paper.support_conditions import base_run
from recombine.experiments.plots import curve
from recombine.parts.models.mlp import MLP
from recombine.sweeps.run import Run, replace_fields, sweep

TITLE = "More active modules than in training"
SOURCE = "ours; arXiv 2507.07207 has no number"
FRACTIONS = {"tiny": (0.3, 0.7), "small": (0.125, 0.5, 0.8), "full": (0.25, 0.5, 0.75, 0.9, 0.95)}
NUM_HOT = {"tiny": (2,), "small": (2, 3), "full": (2, 3, 4)}
SEEDS = {"tiny": 1, "small": 3, "full": 3}
MIN_SHARE = 0.9  # of the score on held-out tasks with at most K modules
MIN_R2 = 0.1  # a student with a lower score generalizes to nothing, so shares of it mean nothing
NEEDS = ("trained", "more", "frac_test", "test r2")


def runs(scale: str) -> list[Run]:
    """K x held-out fraction x seed, where the train tasks can connect the modules."""
    base = base_run(scale)
    if scale == "tiny":
        base = replace_fields(base, {"model": MLP((8, 8))})
    grid = sweep(
        base,
        family__num_hot=NUM_HOT[scale],
        frac_test=FRACTIONS[scale],
        seed=range(SEEDS[scale]),
    )
    return [run for run in grid if is_possible(run)]


def prepare(rows: Frame) -> Frame:
    """One row per run and number of active modules beyond K.

    `trained` is K, `more` is 0 (held-out tasks with at most K), 1 or 2.
    """
    scores = []
    for run in final_rows(rows).to_dict("records"):
        trained = int(run["family.num_hot"])
        about = {column: run[column] for column in ("run", "seed", "frac_test")}
        about |= {"trained": trained, "held out": f"{run['frac_test']:.1%} held out"}
        scores.append(about | {"more": 0, "active": f"up to {trained}", "test r2": run["test/r2"]})
        for more in (1, 2):
            active = trained + more
            score = run.get(f"extrapolation/num_hot={active}/r2", math.nan)
            scores.append(about | {"more": more, "active": f"{active}", "test r2": score})
    frame = pd.DataFrame(scores)
    in_order = frame.sort_values(["more", "trained"])["active"].unique()
    return frame.assign(active=pd.Categorical(frame["active"], in_order))


def summary(rows: Frame) -> dict[str, float]:
    """Mean scores by K, held-out fraction and number of active modules."""
    means = prepare(rows).groupby(["trained", "frac_test", "more"])["test r2"].mean()
    return {
        f"K={trained}, {frac_test:.1%} held out, K+{more}": float(value)
        for (trained, frac_test, more), value in means.items()
    }


def share_kept(scores: Frame, trained: int, more: int) -> float:
    """The score with more modules over that on held-out tasks, for the most train tasks."""
    most = scores["frac_test"] == scores["frac_test"].min()
    means = scores[most & (scores["trained"] == trained)].groupby("more")["test r2"].mean()
    if more not in means or 0 not in means:
        return math.nan
    return float(means[more] / means[0]) if means[0] > MIN_R2 else 0.0


def share_with_fewest_tasks(scores: Frame, trained: int) -> float:
    """The score with K+1 modules for the fewest train tasks over that for the most."""
    one_more = scores[(scores["trained"] == trained) & (scores["more"] == 1)]
    means = one_more.groupby("frac_test")["test r2"].mean()
    if len(means) < 2 or not means.iloc[0] > MIN_R2:
        return math.nan
    return float(means.iloc[-1] / means.iloc[0])


def _extends(trained: int, more: int) -> DeclaredClaim:
    return hypothesis(
        f"K={trained}, K+{more}",
        f"Trained with up to {trained} active modules, a student keeps {MIN_SHARE:.0%} of its "
        f"score on held-out tasks if {trained + more} modules are active (share kept)",
        needs=NEEDS,
        statistic=lambda scores: share_kept(scores, trained, more),
        passes=at_least(MIN_SHARE),
    )


def _fails_with_fewest_tasks(trained: int) -> DeclaredClaim:
    return hypothesis(
        f"K={trained}, fewest",
        f"Contrast: trained with up to {trained} active modules, a student of the fewest tasks has "
        f"less than {MIN_SHARE:.0%} of the score of one of the most tasks, if {trained + 1} are "
        "active (share)",
        needs=NEEDS,
        statistic=lambda scores: share_with_fewest_tasks(scores, trained),
        passes=below(MIN_SHARE),
    )


CLAIMS = [
    *(_extends(trained, more) for trained in NUM_HOT["full"] for more in (1, 2)),
    *(_fails_with_fewest_tasks(trained) for trained in NUM_HOT["full"]),
]
FIGURES = [
    curve(
        "test r2",
        against="active",
        color="held out",
        each="trained",
        name="trained_{}",
        title="Trained with up to {} active modules, tested with more",
        x_title="active modules",
        y_title="R² on tasks never trained on",
    )
]
