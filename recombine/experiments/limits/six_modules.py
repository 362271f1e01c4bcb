"""Which small supports are enough? Four labeled sets of combinations of six modules, with two laws
of weights.

Claim: of four supports of 6 modules only "singletons + the 6-cycle of pairs" is enough for
generalization (Schug et al. 2024, labels for a hypernetwork student). It is the only one that is
connected and spanned.

Command:  recombine run six_modules --scale small
Runtime:  85 s on 2 cores; full: 86 s on one H200.
Expected: singletons_cycle has the highest R2; with all-ones weights (khot) the pair-only cycle, of
          rank 5, fails.
"""

from recombine.experiments.claim import (
    Frame,
    Statistic,
    above,
    final_rows,
    reproduces,
)
from recombine.experiments.plots import bars
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.supports.listed import SCHUG_GENERALIZES, SCHUG_SUPPORTS, Listed
from recombine.sweeps.run import Run, sweep

TITLE = "Four supports of six modules: which are enough?"
SOURCE = "Schug et al. 2024 (hypernetwork student); arXiv 2507.07207"
SIZES = {
    "tiny": (16, 60, 1),
    "small": (128, 2000, 2),
    "full": (512, 10_000, 8),
}  # width, steps, seeds
NAMES = {repr(combinations): name for name, combinations in SCHUG_SUPPORTS.items()}


def runs(scale: str) -> list[Run]:
    """Weight law x support x seed, M=6, K=2: 21 tasks, of which 6 to 12 are trained."""
    width, num_steps, num_seeds = SIZES[scale]
    return sweep(
        Run(model=MLP(widths=(width,) * 3), num_steps=num_steps),
        family=[
            Hyperteacher(num_modules=6, num_hot=2, weights=weights)
            for weights in ("khot", "discrete")
        ],
        support=[Listed(combinations=combinations) for combinations in SCHUG_SUPPORTS.values()],
        seed=range(num_seeds),
    )


def prepare(rows: Frame) -> Frame:
    """The final rows, with the name of the support and the weight law."""
    final = final_rows(rows)
    final["trained on"] = final["support.combinations"].map(NAMES)
    final["weights"] = final["family.weights"]
    return final


def summary(rows: Frame) -> dict[str, float]:
    """Mean test R2 of every support under both weight laws."""
    means = prepare(rows).groupby(["weights", "trained on"])["test/r2"].mean()
    return {f"{weights}, {name}": float(value) for (weights, name), value in means.items()}


def margin(weights: str, leading: set[str]) -> Statistic:
    """The mean R2 of the worst of the leading supports, minus that of the best of the others."""

    def statistic(final: Frame) -> float:
        means = final[final["weights"] == weights].groupby("trained on")["test/r2"].mean()
        is_leading = means.index.isin(leading)
        return float(means[is_leading].min() - means[~is_leading].max())

    return statistic


def _claim(name: str, statement: str, weights: str, leading: set[str], published: str):
    return reproduces(
        name,
        f"{statement} (margin in test R2, MLP student)",
        published=published,
        statistic=margin(weights, leading),
        passes=above(0.05),
        control="the other supports must have a lower R2",
    )


SUFFICIENT = {name for name, label in SCHUG_GENERALIZES.items() if label}
CONNECTED = {"cycle", "singletons_cycle"}
CLAIMS = [
    _claim(
        "khot labels",
        "Only singletons + 6-cycle is enough, all-ones weights",
        "khot",
        SUFFICIENT,
        "one of four",
    ),
    _claim(
        "discrete labels",
        "Only singletons + 6-cycle is enough, drawn weights",
        "discrete",
        SUFFICIENT,
        "one of four",
    ),
    _claim(
        "discrete connected",
        "Connected supports give a higher R2 than others, drawn weights",
        "discrete",
        CONNECTED,
        "connected support is needed",
    ),
]
FIGURES = [
    bars(
        "test/r2",
        against="trained on",
        color="weights",
        name="supports",
        title="Test R² after training on four supports of six modules",
        x_title="combinations trained on",
    )
]
