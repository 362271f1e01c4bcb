"""Do wider students generalize better, for every encoding of the task?

Claim: test R2 grows monotonically with the width of the student, for all six encodings (arXiv
2507.07207, section 3: the model-size sweep, M=16, K=3, 25% of the tasks held out).

"Monotone" has two halves, and each is a claim of its own.
- Gain: from the narrowest to the widest student, test R2 grows by more than seeds differ. If there
  are several depths, it must grow at each of them; the smallest gain is reported.
- No fall: test R2 is nowhere lower than that of a narrower student by more than .005, by a paired
  test over seeds (`recombine/experiments/trend.py`).
The training recipe is the same at all widths. At full scale these claims cover widths up to 1024,
with 8 seeds. Width 2048 has 3 seeds: its smallest gain over 1024 is reported as a range.

Command:  recombine run scaling_width --scale small
Runtime:  3 to 4 minutes on 2 cores; full: 20 minutes on one H200.
Expected: a gain and no fall for each encoding.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, product

import pandas as pd

from recombine.experiments.claim import Frame, final_rows
from recombine.experiments.plots import curve
from recombine.experiments.trend import Grows, NeverFalls, Trend, trend, trends
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.identity import Identity
from recombine.parts.encodings.interval_shuffle import IntervalShuffle
from recombine.parts.encodings.invertible_nn import InvertibleNN
from recombine.parts.encodings.language import Language
from recombine.parts.encodings.orthogonal import Orthogonal
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.sweeps.run import Run, paper_fast, sweep

TITLE = "Wider students generalize better, for every encoding of the task"
SOURCE = "arXiv 2507.07207, section 3"
WIDTHS = {"tiny": (4, 8), "small": (16, 48, 128), "full": (128, 256, 512, 1024, 2048)}
DEPTHS = {"tiny": (1,), "small": (2,), "full": (2, 4)}
SEEDS = {"tiny": 1, "small": 3}
PLAIN_ENCODINGS = (Identity(), Orthogonal(), Language(), InvertibleNN(), IntervalShuffle())
ENCODINGS = (*(type(encoding).__name__ for encoding in PLAIN_ENCODINGS), "FewShot")
MAX_JUDGED_WIDTH = 1024  # wider students have fewer seeds
JUDGED_WIDTHS = {
    scale: [width for width in widths if width <= MAX_JUDGED_WIDTH]
    for scale, widths in WIDTHS.items()
}
COMPLETE_SWEEPS = [dict.fromkeys(DEPTHS[scale], JUDGED_WIDTHS[scale]) for scale in WIDTHS]


def students(scale: str) -> list[Run]:
    """One run per encoding. The few-shot student must infer its task, which takes more steps."""
    if scale == "tiny":
        family = Hyperteacher(num_modules=4, num_hot=2)
        base = Run(family=family, num_steps=20, num_tasks=8)
        few_shot = replace(base, encoding=FewShot(num_pairs=2))
    elif scale == "small":
        base = Run()
        few_shot = replace(base, encoding=FewShot(num_pairs=16), num_steps=3000)
    else:
        base = paper_fast()
        few_shot = paper_fast(encoding=FewShot())
    all_students = [*sweep(base, encoding=PLAIN_ENCODINGS), few_shot]
    return [replace(run, diagnostics=(), num_evals=1) for run in all_students]


def runs(scale: str) -> list[Run]:
    """Encoding x depth x width x seed, 25% held out."""
    if scale == "full":
        return faithful_runs()
    models = [MLP((width,) * depth) for depth in DEPTHS[scale] for width in WIDTHS[scale]]
    listed = []
    for base in students(scale):
        listed += sweep(base, model=models, seed=range(SEEDS[scale]))
    return listed


def faithful_runs() -> list[Run]:
    """The full sweep by the faithful recipe, with probes: 8 seeds up to width 1024, 3 at 2048."""
    probes = (LinearDecodability(by_module=False), LinearDecodability(paper=True, by_module=False))
    listed = []
    for encoding in (*PLAIN_ENCODINGS, FewShot()):
        base = paper_fast(encoding=encoding, diagnostics=probes)
        for depth in DEPTHS["full"]:
            for width in WIDTHS["full"]:
                num_seeds = 8 if width <= 1024 else 3
                listed += sweep(base, model=[MLP((width,) * depth)], seed=range(num_seeds))
    return listed


def prepare(rows: Frame) -> Frame:
    """The final rows, with the encodings in a fixed order, so that colors match across figures."""
    final = final_rows(rows)
    return final.assign(encoding=pd.Categorical(final["encoding"], ENCODINGS))


def summary(rows: Frame) -> dict[str, float]:
    """Test R2 of the narrowest and the widest students, and the largest fall on the way."""
    final = prepare(rows)
    return smallest_and_largest(final, "width") | largest_fall(final, width_trends)


def smallest_and_largest(final: Frame, size: str) -> dict[str, float]:
    """Mean test R2 of the smallest and of the largest students, for each encoding."""
    means = final.pivot_table("test/r2", "encoding", f"model.{size}", observed=True)
    return {
        f"{encoding}, {size} {value}": float(means[value][encoding])
        for encoding in means.index
        for value in means.columns[[0, -1]]
    }


TrendsOfEncoding = Callable[[Frame, str], list[Trend]]


def largest_fall(final: Frame, trends_of: TrendsOfEncoding) -> dict[str, float]:
    """The largest drop of the mean below that of a smaller student, over all encodings."""
    every = chain.from_iterable(trends_of(final, encoding) for encoding in ENCODINGS)
    drops = [own_trend.drop for own_trend in every]
    return {"deepest fall": max(drops)} if drops else {}


def width_trends(final: Frame, encoding: str) -> list[Trend]:
    """The trend along width at each depth; none if the sweep of this encoding is not complete."""
    is_judged = final["model.width"] <= MAX_JUDGED_WIDTH
    own = final[is_judged & (final["encoding"] == encoding)]
    by_depth = trends(own, "model.depth", "model.width", "test/r2", COMPLETE_SWEEPS)
    return list(by_depth.values())


def growth_claims(size: str, trends_of: TrendsOfEncoding) -> list[Grows | NeverFalls]:
    """Claims: test R2 grows with a size of the student for each encoding, and it never falls."""

    def all_trends(final: Frame) -> list[Trend]:
        by_encoding = [trends_of(final, encoding) for encoding in ENCODINGS]
        is_complete = all(by_encoding)
        return list(chain.from_iterable(by_encoding)) if is_complete else []

    def grows(encoding: str) -> Grows:
        return Grows(
            f"{encoding}: {size}",
            f"Test R2 grows with {size}, {encoding} encoding (smallest to largest student)",
            trends=lambda final: trends_of(final, encoding),
        )

    never_falls = NeverFalls(f"Test R2 never falls as {size} grows, for any encoding", all_trends)
    return [*map(grows, ENCODINGS), never_falls]


def widest_trends(final: Frame) -> list[Trend]:
    """The trends from width 1024 to 2048, for the seeds that have both; none if one is missing."""
    sizes = (MAX_JUDGED_WIDTH, max(WIDTHS["full"]))
    seeds = final.loc[final["model.width"] == sizes[1], "seed"]
    wide = final[final["model.width"].isin(sizes) & final["seed"].isin(seeds)]
    wide_trends = []
    for encoding, depth in product(ENCODINGS, DEPTHS["full"]):
        own = wide[(wide["encoding"] == encoding) & (wide["model.depth"] == depth)]
        wide_trends.append(trend(own, "model.width", "test/r2", sizes) if len(own) else None)
    complete = [one_trend for one_trend in wide_trends if one_trend is not None]
    return complete if len(complete) == len(wide_trends) else []


CLAIMS = [
    *growth_claims("width", width_trends),
    Grows(
        "2048",
        "Test R2 grows from width 1024 to 2048, for every encoding and depth (smallest gain)",
        widest_trends,
        after_rows="the claim",
    ),
]
FIGURES = [
    curve(
        "test/r2",
        against="model.width",
        color="encoding",
        each="model.depth",
        name="depth-{}",
        title="Generalization by width and encoding ({} hidden layers)",
        log_x=True,
    )
]
