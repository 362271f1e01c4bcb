"""Does every encoding of a task lead to compositional generalization?

Claim: with any invertible encoding of the task, even a few examples of it, a large MLP generalizes,
and a hidden layer encodes the modules linearly, even if the encoding does not (arXiv 2507.07207,
section 4, table of six encodings).

The task decoder is a linear probe of the module weights (that of the public code) on the third
hidden layer, before its nonlinearity. Notes give the second and the fourth layer. The paper does
not name its layer; we chose ours after seeing preliminary results for all layers. The input decoder
is the same probe on the encoded task, which the student receives as input. A student generalizes if
its test R2 is at least 80% of its R2 on seen tasks. Published values are judged at the paper's size
only. The control is the same network before training.

The released encoders do not give two of the published input decoders, neither here nor with the
public code. Two variants of ours come closer: coupling weights of scale 1.0, and absent modules
that stay at 0. They were fitted to the published numbers, so they are hypotheses about what was
run.

Command:  recombine run encodings --scale small
Runtime:  4 minutes on 2 cores; full: 4 minutes on one H200.
Expected: all six generalize; R2 of at least .995 (identity, orthogonal, language), .945 (invertible
          NN), .975 (interval shuffle) and .965 (few-shot), and task decoders of at least .95, .96,
          .99, .94, .96 and .90.
"""

from dataclasses import replace

import pandas as pd

from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    Measurement,
    Rule,
    above,
    at_least,
    control,
    difference,
    final_rows,
    hypothesis,
    mean_of,
    reproduces,
    where,
    within,
)
from recombine.experiments.layers import by_layer, probe_column
from recombine.experiments.paper.decodability import LAYERS
from recombine.experiments.paper.scaling_width import PLAIN_ENCODINGS
from recombine.experiments.plots import bars, curve
from recombine.experiments.untrained import is_untrained, untrained
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.interval_shuffle import IntervalShuffle
from recombine.parts.encodings.invertible_nn import InvertibleNN
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.protocols import Encoding
from recombine.parts.recipes.fast import Fast
from recombine.sweeps.run import Run, paper_fast, sweep

TITLE = "Six encodings of a task, all of which lead to compositional generalization"
SOURCE = "arXiv 2507.07207, section 4"
SEEDS = {"tiny": 1, "small": 3, "full": 8}
PROBE = "LinearDecodability-paper"
TASK_DECODER = probe_column(PROBE, "pre2")
INPUT_DECODER = probe_column(PROBE, "code")
COLUMNS = {"R2": "test/r2", "task decoder": TASK_DECODER, "input decoder": INPUT_DECODER}
DESCRIPTIONS = {
    "R2": "R2 on held-out combinations",
    "task decoder": "R2 of the task decoder (third hidden layer, held-out combinations)",
    "input decoder": "R2 of the input decoder (encoded task, held-out combinations)",
}
PUBLISHED = {
    "Identity": {"R2": 1.00, "task decoder": 0.95, "input decoder": 1.00},
    "Orthogonal": {"R2": 1.00, "task decoder": 0.96, "input decoder": 1.00},
    "Language": {"R2": 1.00, "task decoder": 0.99, "input decoder": 1.00},
    "InvertibleNN": {"R2": 0.95, "task decoder": 0.94, "input decoder": 0.56},
    "IntervalShuffle": {"R2": 0.98, "task decoder": 0.96, "input decoder": 0.73},
    "FewShot": {"R2": 0.97, "task decoder": 0.90, "input decoder": -0.23},
}
# Input decoders that the released encoders give, run with the public code (docs/log.md).
RELEASED = {
    "InvertibleNN": ".9987",
    "IntervalShuffle": "about 0 to .6, depending on the permutation drawn",
}
SCALED = "InvertibleNN, scale 1"
KEEPS_ZERO = "IntervalShuffle, keep_zero"
VARIANTS = {SCALED: InvertibleNN(scale=1.0), KEEPS_ZERO: IntervalShuffle(keep_zero=True)}
TRAINED = {"student": "trained"}
PAPERS_SIZE = {"family.num_modules": 16, "model.widths": "1024x1024x1024x1024"}
LABELS = [*PUBLISHED, *VARIANTS]
MIN_RATIO = 0.8  # of test to seen R2, for a student that generalizes
MIN_SEEN = 0.1  # seen R2 below which a student fits nothing, so the ratio counts as 0
MAX_UNTRAINED = 0.1  # test R2 of every untrained network must be below this
MIN_GAIN = 0.05  # of decodability, over the untrained network
ROUNDING = 0.005  # published numbers have two digits
CONTROL = f"test R2 of the untrained network is below {MAX_UNTRAINED}"
# Input decoders depend on the random draw of the encoding: a smaller difference does not count.
MAX_DIFFERENCE = 0.05
# R2 on the fitted tasks below which a probe's fit has failed. With the public constants the
# equations are ill-conditioned in float32 if activations are large (Language, coupling weights of
# scale 1).
MIN_FIT = -5.0


def runs(scale: str) -> list[Run]:
    """Encoding x seed, trained and untrained: the six of the paper, and two variants of ours."""
    few_shot = FewShot() if scale == "full" else FewShot(num_pairs=20)
    listed = []
    for encoding in [*PLAIN_ENCODINGS, few_shot, *VARIANTS.values()]:
        trained = base(scale, encoding)
        for run in (trained, untrained(trained)):
            listed += sweep(run, seed=range(SEEDS[scale]))
    return listed


def base(scale: str, encoding: Encoding) -> Run:
    """A run with an encoding, at the paper's size or a smaller one."""
    if scale == "full":
        return paper_fast(encoding=encoding)
    is_few_shot = isinstance(encoding, FewShot)
    family = Hyperteacher(num_modules=12, d_input=8, d_hidden=8, num_outputs=8)
    run = Run(
        family,
        encoding=encoding,
        recipe=Fast(0.015, 0.02) if is_few_shot else Fast(0.04, 0.1, vector_rate=0.2),
        diagnostics=(LinearDecodability(), LinearDecodability(paper=True)),
        num_steps=4000 if is_few_shot else 2000,
        num_evals=1,
    )
    if scale == "small":
        return replace(run, num_tasks=128, num_points=4)
    family = replace(family, num_modules=6)
    model = MLP((8, 8, 8, 8))
    return replace(run, family=family, model=model, num_steps=20, num_tasks=16, num_eval_tasks=64)


def prepare(rows: Frame) -> Frame:
    """The final rows. Task decoders whose fit has failed are NaN. Added columns:

    - `label`: the encoding and its variant;
    - `student`: trained or untrained;
    - `ratio`: R2 on held-out combinations as a fraction of R2 on seen tasks.
    """
    final = final_rows(rows)
    final["label"] = _labels(final)
    final["student"] = is_untrained(final).map({True: "untrained", False: "trained"})
    ratio = final["test/r2"] / final["seen/r2"]
    final["ratio"] = ratio.where(final["seen/r2"] > MIN_SEEN, 0.0)
    for layer in LAYERS:
        fit = probe_column(PROBE, layer, side="seen")
        decoder = probe_column(PROBE, layer)
        if fit in final:
            final[decoder] = final[decoder].mask(final[fit] < MIN_FIT)
    return final


def _labels(final: Frame) -> pd.Categorical:
    labels = final["encoding"].copy()
    fields = final.reindex(columns=["encoding.scale", "encoding.keep_zero"])
    is_invertible = labels == "InvertibleNN"
    is_shuffle = labels == "IntervalShuffle"
    labels[is_invertible & (fields["encoding.scale"] == 1.0)] = SCALED
    labels[is_shuffle & fields["encoding.keep_zero"].eq(True)] = KEEPS_ZERO
    return pd.Categorical(labels, LABELS)


def summary(rows: Frame) -> dict[str, float]:
    """Test R2, task decoder and input decoder of every encoding, trained and untrained."""
    groups = prepare(rows).groupby(["label", "student"], observed=True)
    means = groups[list(COLUMNS.values())].mean()
    values = {}
    for label, student in means.index:
        for name, column in COLUMNS.items():
            depends_on_student = name != "input decoder"
            if student == "trained" or depends_on_student:
                values[f"{label}, {student}: {name}"] = float(means.loc[(label, student), column])
    return values


def untrained_of(final: Frame, label: str) -> Frame:
    """The untrained networks with an encoding."""
    return where({"label": label, "student": "untrained"})(final)


def untrained_fail(label: str) -> Rule:
    """The control: every untrained network has a low test R2."""

    def control_fails(measurement: Measurement) -> bool:
        scores = untrained_of(measurement.all_rows, label)["test/r2"]
        return bool((scores < MAX_UNTRAINED).all())

    return control_fails


def generalizes(encoding: str) -> DeclaredClaim:
    """Test R2 is nearly as high as R2 on seen tasks."""

    def trained_with_baseline(final: Frame) -> Frame | None:
        has_baseline = len(untrained_of(final, encoding)) > 0
        return where({"label": encoding} | TRAINED)(final) if has_baseline else None

    return reproduces(
        f"{encoding}: generalizes",
        f"{encoding}: R2 on held-out combinations is at least {MIN_RATIO:.0%} of R2 on seen tasks "
        "(ratio)",
        published="every encoding generalizes",
        repeats=f"encodings: {encoding}: R2",
        rows=trained_with_baseline,
        needs=("ratio",),
        statistic=mean_of("ratio"),
        passes=at_least(MIN_RATIO),
        control=CONTROL,
        control_fails=untrained_fail(encoding),
    )


def gains_by_training(encoding: str) -> DeclaredClaim:
    """Training makes the modules more decodable from the third layer."""
    return control(
        f"{encoding}: untrained",
        f"{encoding}: training raises the third layer's decodability by over {MIN_GAIN} "
        "(difference of R2)",
        rows=where({"label": encoding}),
        needs=("student", TASK_DECODER),
        statistic=difference(TASK_DECODER, "student", "trained", "untrained"),
        passes=above(MIN_GAIN),
        control=CONTROL,
        control_fails=untrained_fail(encoding),
    )


def agrees(name: str, value: float) -> Rule:
    """Scores and task decoders may be higher than published; an input decoder must be the same."""
    if name == "input decoder":
        return within(value - MAX_DIFFERENCE, value + MAX_DIFFERENCE)
    return at_least(value - ROUNDING)


def published_number(encoding: str, name: str) -> DeclaredClaim:
    """A number of the published table is reproduced."""
    value = PUBLISHED[encoding][name]
    column = COLUMNS[name]

    return reproduces(
        f"{encoding}: {name}",
        f"{encoding}: {DESCRIPTIONS[name]} (M=16, K=3, 4x1024, fast recipe)",
        published=f"{value:.2f}",
        rows=where({"label": encoding} | TRAINED | PAPERS_SIZE),
        needs=(column,),
        statistic=mean_of(column),
        passes=agrees(name, value),
        threshold_published=True,
        after_rows="the layer" if name == "task decoder" else "",
        note=lambda measurement: _note(measurement, encoding, name),
    )


def _note(measurement: Measurement, encoding: str, name: str) -> str:
    """The other layers of a task decoder, or what the released encoder gives."""
    if name == "input decoder" and encoding in RELEASED:
        return f"with the public code the released encoder gives {RELEASED[encoding]}"
    if name != "task decoder":
        return ""
    second = measurement.rows[probe_column(PROBE, "pre1")].mean()
    fourth = measurement.rows[probe_column(PROBE, "pre3")].mean()
    before = untrained_of(measurement.all_rows, encoding)[TASK_DECODER].mean()
    others = f"second layer {second:.3f}, fourth layer {fourth:.3f}"
    return f"{others}; third layer before training {before:.3f}"


def variant_number(label: str, name: str) -> DeclaredClaim:
    """A number of one of our variants agrees with the published number of the encoding."""
    value = PUBLISHED[type(VARIANTS[label]).__name__][name]
    column = COLUMNS[name]
    relation = "is at least"
    note = ""
    if name == "input decoder":
        relation = f"is within {MAX_DIFFERENCE} of"
        note = "the variant was chosen to fit this number"
    return hypothesis(
        f"{label}: {name}",
        f"{label} (our variant): {DESCRIPTIONS[name]} {relation} the published {value:.2f}",
        source="hypothesis of ours",
        rows=where({"label": label} | TRAINED | PAPERS_SIZE),
        needs=(column,),
        statistic=mean_of(column),
        passes=agrees(name, value),
        after_rows="the variant was chosen to fit the published input decoder",
        note=lambda measurement: note,
    )


CLAIMS: list[DeclaredClaim] = []
for _encoding in PUBLISHED:
    CLAIMS.append(generalizes(_encoding))
    CLAIMS += [published_number(_encoding, name) for name in COLUMNS]
    CLAIMS.append(gains_by_training(_encoding))
for _variant in VARIANTS:
    CLAIMS += [variant_number(_variant, name) for name in COLUMNS]


def r2_bars(final: Frame) -> Frame:
    """Test R2 of trained and of untrained networks, beside the published one."""
    parts = [
        _bars(final, "test/r2", final["student"]),
        _bars(published_rows(), "R2", "published"),
    ]
    return _in_order(parts, ["trained", "published", "untrained"])


def decoder_bars(final: Frame) -> Frame:
    """Task decoders and input decoders, beside the published ones."""
    parts = [
        _bars(final, TASK_DECODER, final["student"] + ": third layer"),
        _bars(final, INPUT_DECODER, "encoded task"),
        _bars(published_rows(), "task decoder", "published: hidden layer"),
        _bars(published_rows(), "input decoder", "published: encoded task"),
    ]
    order = ["trained: third layer", "published: hidden layer", "untrained: third layer"]
    return _in_order(parts, [*order, "encoded task", "published: encoded task"])


def published_rows() -> Frame:
    """The published numbers, one row per encoding."""
    table = pd.DataFrame(PUBLISHED).T.rename_axis("label").reset_index()
    return table.assign(run="published")


def _bars(rows: Frame, column: str, shown_as: Frame | str) -> Frame:
    bars = {"run": rows["run"], "label": rows["label"], "shown as": shown_as, "r2": rows[column]}
    return pd.DataFrame(bars)


def _in_order(parts: list[Frame], order: list[str]) -> Frame:
    rows = pd.concat(parts, ignore_index=True)
    rows["label"] = pd.Categorical(rows["label"], LABELS)
    rows["shown as"] = pd.Categorical(rows["shown as"], order)
    return rows


def trained_by_layer(final: Frame) -> Frame:
    """One row per trained student and layer."""
    return by_layer(where(TRAINED)(final), ["label", "run"], PROBE)


FIGURES = [
    bars(
        "r2",
        against="label",
        color="shown as",
        rows=r2_bars,
        name="r2",
        title="R² on held-out combinations by encoding",
        x_title="encoding of the task",
        y_title="R² on held-out combinations",
    ),
    bars(
        "r2",
        against="label",
        color="shown as",
        rows=decoder_bars,
        name="decoders",
        title="Modules decoded from the third hidden layer and from the encoded task",
        x_title="encoding of the task",
        y_title="decodability (R²)",
    ),
    curve(
        "decodability r2",
        against="layer",
        color="label",
        rows=trained_by_layer,
        name="layers",
        title="Decodability by layer, trained students",
        x_title="layer, before its nonlinearity",
        y_title="decodability (R²)",
    ),
]
