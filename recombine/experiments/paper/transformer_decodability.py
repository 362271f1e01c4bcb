"""Are the modules linearly decodable from the blocks of a transformer, too?

Claim: students that generalize encode the modules linearly (arXiv 2507.07207, section 4). The paper
shows it for MLPs. Here the student is a decoder-only transformer, and the public probe is fitted to
the residual stream after each block, at the last point of a task. The headline block is the third
of four, as the headline layer of MLPs is the third.

Six encodings are compared with a quarter of the tasks held out: the modules must be better
decodable than before training. The paper's correlation of decodability and test R2 is judged by the
rule of experiment `decodability`, over students with different numbers of train tasks, for the
identity encoding and for interval shuffle. The control is the untrained network: a first block may
pass the encoded task through.

Command:  recombine run transformer_decodability --scale small
Runtime:  not measured on free cores; full: 54 transformers and 54 untrained networks on a GPU.
Expected: decodability above .9 for each encoding, and more than before training if the encoding
          hides the modules (with the identity encoding, the untrained network may decode them,
          too); a correlation above .95 with interval shuffle.
"""

from dataclasses import replace

import pandas as pd

from recombine.experiments.claim import (
    OURS,
    DeclaredClaim,
    Frame,
    Measurement,
    Select,
    above,
    final_rows,
    hypothesis,
    mean_difference,
    mean_of,
)
from recombine.experiments.layers import probe_column
from recombine.experiments.paper.decodability import (
    PUBLIC_PROBE,
    StudentSet,
    correlation_claim,
    explained,
    with_untrained_probes,
)
from recombine.experiments.paper.scaling_width import ENCODINGS, PLAIN_ENCODINGS
from recombine.experiments.plots import curve, scatter
from recombine.experiments.untrained import untrained, untrained_column
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.identity import Identity
from recombine.parts.encodings.interval_shuffle import IntervalShuffle
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.transformer import Transformer
from recombine.parts.protocols import Encoding
from recombine.parts.recipes.fast import Fast
from recombine.sweeps.run import Run, paper_fast, sweep

TITLE = "Decodability of the modules from the blocks of a transformer"
SOURCE = "ours, after arXiv 2507.07207, section 4"
FRACTIONS = {
    "tiny": (0.3, 0.7),
    "small": (0.25, 0.5, 0.8, 0.93),
    "full": (0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.987),
}
SEEDS = {"tiny": 1, "small": 2, "full": 3}
MODELS = {
    "tiny": Transformer(num_layers=3, d_model=8, num_heads=2, d_ff=16),
    "small": Transformer(num_layers=3, d_model=32, num_heads=4, d_ff=128),
    "full": Transformer(),
}
PROBE = LinearDecodability(paper=True, by_module=False)
BLOCK = "block2"
DECODER = probe_column(PUBLIC_PROBE, BLOCK)
UNTRAINED = untrained_column(DECODER)
MIN_DECODED = 0.9  # the published task decoders of MLPs are .90 to .99
MIN_GAIN = 0.05  # of decodability, over the untrained network
DATA_ENCODINGS = ("Identity", "IntervalShuffle")


def base_run(scale: str, encoding: Encoding) -> Run:
    """The run of an encoding. The few-shot student infers its task: it has twice the steps."""
    factor = 2 if isinstance(encoding, FewShot) else 1
    if scale == "full":
        recipe = Fast(0.02, 0.02, vector_rate=0.2)
        run = paper_fast(recipe=recipe, num_steps=5000 * factor, diagnostics=(PROBE,))
    elif scale == "small":
        recipe = Fast(0.02, 0.02, vector_rate=0.2)
        run = Run(recipe=recipe, num_steps=1500 * factor, num_evals=1, diagnostics=(PROBE,))
    else:
        family = Hyperteacher(num_modules=5, num_hot=2, d_input=4, d_hidden=4, num_outputs=4)
        probe = replace(PROBE, num_fit=32, num_seen=32, num_test=32)
        run = Run(family, num_steps=20, num_evals=1, diagnostics=(probe,), num_eval_tasks=32)
    return replace(run, model=MODELS[scale], encoding=encoding)


def runs(scale: str) -> list[Run]:
    """Six encodings at the smallest held-out fraction; two of them at all fractions; x seed.

    Every student has its untrained baseline. The tiny scale has two encodings and one data sweep.
    """
    encodings: tuple[Encoding, ...] = (*PLAIN_ENCODINGS, FewShot(50 if scale == "full" else 16))
    in_data_sweep: tuple[Encoding, ...] = (Identity(), IntervalShuffle())
    if scale == "tiny":
        encodings = (Identity(), FewShot(2))
        in_data_sweep = (Identity(),)
    seeds = range(SEEDS[scale])
    trained = []
    for encoding in encodings:
        base = base_run(scale, encoding)
        trained += sweep(base, frac_test=FRACTIONS[scale][:1], seed=seeds)
    for encoding in in_data_sweep:
        base = base_run(scale, encoding)
        trained += sweep(base, frac_test=FRACTIONS[scale][1:], seed=seeds)
    return [*trained, *map(untrained, trained)]


def prepare(rows: Frame) -> Frame:
    """The final rows of trained students, with the probes of the same network before training."""
    students = with_untrained_probes(final_rows(rows), paired_by=[])
    return students.assign(encoding=pd.Categorical(students["encoding"], ENCODINGS))


def most_trained(final: Frame) -> Frame:
    """The students with the most train tasks."""
    return final[final["frac_test"] == final["frac_test"].min()]


def most_trained_of(encoding: str) -> Select:
    """The students of an encoding with the most train tasks."""

    def select(final: Frame) -> Frame:
        rows = most_trained(final)
        return rows[rows["encoding"] == encoding]

    return select


def data_sweep(encoding: str) -> Select:
    """The students of an encoding; None unless there are several held-out fractions."""

    def select(final: Frame) -> Frame | None:
        rows = final[final["encoding"] == encoding]
        return rows if rows["frac_test"].nunique() > 1 else None

    return select


SETS = tuple(
    StudentSet(
        encoding,
        f"transformers, {encoding} encoding, several held-out fractions",
        data_sweep(encoding),
        layers=(BLOCK,),
    )
    for encoding in DATA_ENCODINGS
)


def summary(rows: Frame) -> dict[str, float]:
    """Test R2 and decodability of every encoding, after and before training, and r squared."""
    final = prepare(rows)
    columns = {"R2": "test/r2", "decodability": DECODER, "untrained": UNTRAINED}
    means = most_trained(final).groupby("encoding", observed=True)[list(columns.values())].mean()
    values = {
        f"{encoding}, {name}": float(means[column][encoding])
        for encoding in means.index
        for name, column in columns.items()
    }
    for students in SETS:
        selected = students.select(final)
        if selected is not None:
            values[f"{students.name}, r squared"] = explained(selected, DECODER)
            values[f"{students.name}, r squared, untrained"] = explained(selected, UNTRAINED)
    return values


def _decoded_claim(encoding: str) -> DeclaredClaim:
    return hypothesis(
        f"{encoding}: decoded",
        f"The modules are decodable from the third block, {encoding} encoding (R2 on held-out "
        f"combinations, above {MIN_DECODED})",
        rows=most_trained_of(encoding),
        needs=(DECODER, UNTRAINED),
        statistic=mean_of(DECODER),
        passes=above(MIN_DECODED),
        control=f"the untrained network stays at or below {MIN_DECODED}",
        control_fails=lambda measurement: measurement.rows[UNTRAINED].mean() <= MIN_DECODED,
        note=lambda measurement: f"test R2 {measurement.rows['test/r2'].mean():.3f}",
    )


def _gain_claim(encoding: str) -> DeclaredClaim:
    def note(measurement: Measurement) -> str:
        return f"decodability {measurement.rows[UNTRAINED].mean():.3f} before training"

    return hypothesis(
        f"{encoding}: by training",
        f"The modules are better decodable from the third block than before training, {encoding} "
        f"encoding (difference in R2, above {MIN_GAIN})",
        rows=most_trained_of(encoding),
        needs=(DECODER, UNTRAINED),
        statistic=mean_difference(DECODER, UNTRAINED),
        passes=above(MIN_GAIN),
        note=note,
    )


CLAIMS = [
    *map(_decoded_claim, ENCODINGS),
    *map(_gain_claim, ENCODINGS),
    *(correlation_claim(students, BLOCK, published=OURS) for students in SETS),
]


def clipped(final: Frame) -> Frame:
    """The students of both data sweeps. Scores below 0 count as 0."""
    rows = final[final["encoding"].isin(DATA_ENCODINGS)]
    return rows.assign(**rows.filter(items=["test/r2", DECODER]).clip(lower=0))


FIGURES = [
    scatter(
        DECODER,
        against="test/r2",
        color="encoding",
        rows=clipped,
        name="correlation",
        title="Decodability from the third block and test R²",
        x_title="R² on held-out combinations (below 0 counts as 0)",
        y_title="decodability, third block (R²)",
    ),
    curve(
        DECODER,
        against="num_train",
        color="encoding",
        rows=clipped,
        name="data",
        title="Decodability from the third block by the number of train tasks",
        y_title="decodability, third block (R²)",
        log_x=True,
    ),
]
