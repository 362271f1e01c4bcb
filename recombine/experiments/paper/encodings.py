"""Does every encoding of a task lead to compositional generalization? Six encodings, two variants, untrained baselines.

Claim: with any invertible encoding of the task, even a few examples of it, a large MLP generalizes, and a hidden layer
encodes the modules linearly, even if the encoding does not (arXiv 2507.07207, section 4, table of six encodings).

The task decoder is a linear probe of the module weights (that of the public code) on the third hidden layer, before its
nonlinearity. Notes give the second and the fourth layer. The paper does not name its layer; we chose ours after seeing
preliminary results for all layers. The input decoder is the same probe on the encoded task, which the student is given.
A student generalizes if its test R2 is at least 80% of its R2 on seen tasks. Published values are judged at the paper's
size only. The control is the same network before training.

The released encoders do not give two of the published input decoders, neither here nor with the public code. Two
variants of ours come closer: coupling weights of scale 1.0, and absent modules that stay at 0. They were fitted to the
published numbers, so they are hypotheses about what was run. A score above the published one counts as better only if
our input decoder is the published one: otherwise an easier encoding could explain it.

Command:  recombine run encodings --scale small
Runtime:  4 minutes on 2 cores; full: 4 minutes on one H200.
Expected: all six generalize; R2 of at least .995 (identity, orthogonal, language), .945 (invertible NN), .975 (interval
          shuffle) and .965 (few-shot), and task decoders of at least .95, .96, .99, .94, .96 and .90.
"""

import math
from typing import Any

import pandas as pd

from recombine.basics.statistics import over_seeds
from recombine.experiments import claim as ledger
from recombine.experiments.paper.decodability import (
    HEADLINE,
    LAYERS,
    by_layer,
    column_of,
    untrained,
)
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.identity import Identity
from recombine.parts.encodings.interval_shuffle import IntervalShuffle
from recombine.parts.encodings.invertible_nn import InvertibleNN
from recombine.parts.encodings.language import Language
from recombine.parts.encodings.orthogonal import Orthogonal
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.protocols import Encoding
from recombine.parts.recipes.fast import Fast
from recombine.reporting import figure
from recombine.sweeps.run import Run, paper_fast, put, sweep

Frame = Any  # a pandas frame
TITLE = "Six encodings of a task, all of which lead to compositional generalization"
SOURCE = "arXiv 2507.07207, section 4"
SEEDS = {"tiny": 1, "small": 3, "full": 8}
MIN_KEPT = 0.8  # of its own seen score, by a student that generalizes; one that memorizes keeps next to nothing
PROBE = "LinearDecodability-paper"
PROBES = (LinearDecodability(), LinearDecodability(paper=True))
TASK_DECODER, INPUT_DECODER = column_of(HEADLINE), column_of("code")
# Task decoder, input decoder, compositional R2.
PUBLISHED = {
    "Identity": (0.95, 1.00, 1.00),
    "Orthogonal": (0.96, 1.00, 1.00),
    "Language": (0.99, 1.00, 1.00),
    "InvertibleNN": (0.94, 0.56, 0.95),
    "IntervalShuffle": (0.96, 0.73, 0.98),
    "FewShot": (0.90, -0.23, 0.97),
}
# Input decoders that the released encoders give, run with the public code (docs/log.md).
RELEASED = {
    "InvertibleNN": ".9987",
    "IntervalShuffle": "about 0 to .6, depending on the permutation drawn",
}
VARIANTS = {
    "InvertibleNN, scale 1": InvertibleNN(scale=1.0),
    "IntervalShuffle, keep_zero": IntervalShuffle(keep_zero=True),
}
DESCRIBED = {
    "R2": "R2 on held-out combinations",
    "task decoder": "R2 of the task decoder (third hidden layer, held-out combinations)",
    "input decoder": "R2 of the input decoder (encoded task, held-out combinations)",
}
ROUNDING = 0.005  # published numbers have two digits
SAME = 0.05  # input decoders that differ by less count as the same: they depend on the draw of the code
# R2 on the fitted tasks below which a probe's fit has failed: with the public constants the equations are
# ill-conditioned in float32 where activations are large (sentences as numbers, coupling weights of scale 1).
FAILED_FIT = -5.0
MIN_GAIN = 0.05  # of decodability, over the untrained network
MODULES, SIZE = 16, "1024x1024x1024x1024"  # the paper's


def base(scale: str, encoding: Encoding) -> Run:
    """A run with an encoding, at the paper's size or a smaller one."""
    if scale == "full":
        return paper_fast(encoding=encoding)
    examples = isinstance(encoding, FewShot)
    family = Hyperteacher(num_modules=12, d_input=8, d_hidden=8, num_outputs=8)
    recipe = Fast(0.015, 0.02) if examples else Fast(0.04, 0.1, vector_rate=0.2)
    run = Run(family, encoding=encoding, recipe=recipe, diagnostics=PROBES, num_evals=1)
    small = {"num_steps": 4000 if examples else 2000, "num_tasks": 128, "num_points": 4}
    tiny = {
        "num_steps": 20,
        "num_tasks": 16,
        "model": MLP((8, 8, 8, 8)),
        "family.num_modules": 6,
        "num_eval_tasks": 64,
    }
    return put(run, small if scale == "small" else tiny)


def runs(scale: str) -> list[Run]:
    """Encoding x seed, trained and untrained: the six of the paper, and two variants of ours."""
    examples = FewShot() if scale == "full" else FewShot(num_pairs=20)
    encodings = (
        Identity(),
        Orthogonal(),
        Language(),
        InvertibleNN(),
        IntervalShuffle(),
        examples,
        *VARIANTS.values(),
    )
    bases = [base(scale, encoding) for encoding in encodings]
    found = []
    for base_run in bases:
        for run in (base_run, untrained(base_run)):
            found += sweep(run, seed=range(SEEDS[scale]))
    return found


def students(rows: Frame) -> Frame:
    """The last row of every run: `label` names the encoding and its variant, `student` is trained or untrained."""
    last = ledger.last(rows)
    last["student"] = last["recipe.learning_rate"].map(
        lambda rate: "trained" if rate else "untrained"
    )
    kept = last["test/r2"] / last["seen/r2"]
    last["kept"] = kept.where(
        last["seen/r2"] > 0.1, 0.0
    )  # a student that fits nothing keeps nothing
    labels = last["encoding"].copy()
    columns = last.reindex(columns=["encoding.scale", "encoding.keep_zero"])
    is_scaled = (last["encoding"] == "InvertibleNN") & (columns["encoding.scale"] == 1.0)
    keeps_zero = (last["encoding"] == "IntervalShuffle") & columns["encoding.keep_zero"].eq(True)
    labels[is_scaled] = "InvertibleNN, scale 1"
    labels[keeps_zero] = "IntervalShuffle, keep_zero"
    for layer in LAYERS:
        if column_of(layer, side="seen") in last:
            failed = last[column_of(layer, side="seen")] < FAILED_FIT
            last[column_of(layer)] = last[column_of(layer)].mask(failed)
    order = [name for name in (*PUBLISHED, *VARIANTS) if name in set(labels)]
    return last.assign(label=pd.Categorical(labels, order))


def _select(last: Frame, label: str, student: str = "trained") -> Frame:
    return last[(last["label"] == label) & (last["student"] == student)]


def summary(rows: Frame) -> dict[str, float]:
    """For every encoding its R2 on held-out combinations, its task decoder and its input decoder."""
    last = students(rows)
    columns = {"R2": "test/r2", "task decoder": TASK_DECODER, "input decoder": INPUT_DECODER}
    means = last.groupby(["label", "student"], observed=True)[list(columns.values())].mean()
    return {
        f"{label}, {student}: {name}": float(means.loc[(label, student), column])
        for label, student in means.index
        for name, column in columns.items()
        if not (
            student == "untrained" and name == "input decoder"
        )  # it does not depend on the student
    }


def figures(rows: Frame) -> dict:
    """Scores and decoders of every encoding beside the published ones; decodability by layer."""
    last = students(rows)
    published = (
        pd.DataFrame(PUBLISHED, index=["task", "code", "test/r2"])
        .T.rename_axis("label")
        .reset_index()
    )
    decoders = [
        last[["label"]].assign(decoder=last["student"] + ": third layer", r2=last[TASK_DECODER]),
        last[["label"]].assign(decoder="encoded task", r2=last[INPUT_DECODER]),
        published[["label"]].assign(decoder="published: hidden layer", r2=published["task"]),
        published[["label"]].assign(decoder="published: encoded task", r2=published["code"]),
    ]
    order = ["trained: third layer", "published: hidden layer", "untrained: third layer"]
    decoded = pd.concat(decoders, ignore_index=True)
    decoded["decoder"] = pd.Categorical(
        decoded["decoder"], [*order, "encoded task", "published: encoded task"]
    )
    scored = pd.concat([last, published.assign(student="published")], ignore_index=True)
    scored["student"] = pd.Categorical(scored["student"], ["trained", "published", "untrained"])
    for frame in (scored, decoded):
        frame["label"] = pd.Categorical(frame["label"], [*PUBLISHED, *VARIANTS])
    return {
        "r2": figure.bars(
            scored,
            "label",
            "test/r2",
            by="student",
            title="R² on held-out combinations by encoding",
            y_title="R² on held-out combinations",
            x_title="encoding of the task",
        ),
        "decoders": figure.bars(
            decoded,
            "label",
            "r2",
            by="decoder",
            title="Modules decoded from the third hidden layer and from the encoded task",
            y_title="decodability (R²)",
            x_title="encoding of the task",
        ),
        "layers": figure.lines(
            by_layer(last[last["student"] == "trained"], ["label", "run"], PROBE),
            "layer",
            "decodability r2",
            by="label",
            title="Decodability by layer, trained students",
            x_title="layer, before its nonlinearity",
            y_title="decodability (R²)",
        ),
    }


def claims(rows: Frame | None) -> list[ledger.Claim]:
    """Each cell of the published table with its controls, and the variants of two encodings."""
    last = None
    if rows is not None:
        kept = [
            "seed",
            "label",
            "student",
            "kept",
            "test/r2",
            "family.num_modules",
            "model.widths",
            INPUT_DECODER,
        ]
        kept += [column_of(layer) for layer in LAYERS if column_of(layer) in rows]
        last = students(rows)[kept]  # few columns: intervals draw from them again and again
    found = []
    for encoding, (task, code, r2) in PUBLISHED.items():
        found += [
            _keeps(last, encoding),
            _published(last, encoding, "R2", "test/r2", r2),
            _published(last, encoding, "task decoder", TASK_DECODER, task),
            _published(last, encoding, "input decoder", INPUT_DECODER, code),
            _gain_claim(last, encoding),
        ]
    for variant, encoding in VARIANTS.items():
        task, code, r2 = PUBLISHED[type(encoding).__name__]
        found += [
            _variant(last, variant, "R2", "test/r2", r2),
            _variant(last, variant, "task decoder", TASK_DECODER, task),
            _variant(last, variant, "input decoder", INPUT_DECODER, code),
        ]
    return found


def _mean(frame: Frame | None, column: str) -> tuple[float | None, tuple[float, float] | None]:
    """The mean of a column and its interval; nothing where no run is there."""
    if frame is None or not len(frame):
        return None, None

    def mean(drawn: Frame) -> float:
        return float(drawn[column].mean())

    return mean(frame), over_seeds(frame[["seed", column]], mean)


def _keeps(last: Frame | None, encoding: str) -> ledger.Claim:
    measured, interval = _mean(None if last is None else _select(last, encoding), "kept")
    holds = None
    if interval is not None and len(_select(last, encoding, "untrained")):
        fails = bool((_select(last, encoding, "untrained")["test/r2"] < 0.1).all())
        holds = interval[0] >= MIN_KEPT and fails
    return ledger.Claim(
        name=f"{encoding}: generalizes",
        statement=f"{encoding}: R2 on held-out combinations is at least {MIN_KEPT:.0%} of R2 on seen tasks (ratio)",
        source=SOURCE,
        published="every encoding generalizes",
        measured=measured,
        holds=holds,
        interval=interval,
        control="test R2 of the untrained network is below .1",
    )


def _at_papers_size(last: Frame | None, label: str) -> Frame | None:
    """The trained students of the paper's size with an encoding."""
    if last is None:
        return None
    return _select(
        last[(last["family.num_modules"] == MODULES) & (last["model.widths"] == SIZE)], label
    )


def _passes(name: str, interval: tuple[float, float], value: float) -> bool:
    """Scores and task decoders may be higher than published; an input decoder must be the same."""
    low, high = interval
    if name == "input decoder":
        return value - SAME <= low and high <= value + SAME
    return low >= value - ROUNDING


def _published(
    last: Frame | None, encoding: str, name: str, column: str, value: float
) -> ledger.Claim:
    """A number of the published table."""
    measured, interval = _mean(_at_papers_size(last, encoding), column)
    better = (
        interval is not None
        and interval[0] > value + ROUNDING
        and _counts_as_better(last, encoding, name)
    )
    return ledger.Claim(
        name=f"{encoding}: {name}",
        statement=f"{encoding}: {DESCRIBED[name]} (M=16, K=3, 4x1024, fast recipe)",
        source=SOURCE,
        published=f"{value:.2f}",
        measured=measured,
        holds=None if interval is None else _passes(name, interval, value),
        interval=interval,
        note=_note(last, encoding, name) if interval is not None else "",
        better=better,
    )


def _counts_as_better(last: Frame, encoding: str, name: str) -> bool:
    """Whether a higher number counts as better: only R2, and only if our input decoder is the published one."""
    code, _ = _mean(_at_papers_size(last, encoding), INPUT_DECODER)
    return name == "R2" and code is not None and abs(code - PUBLISHED[encoding][1]) <= SAME


def _note(last: Frame, encoding: str, name: str) -> str:
    """A remark for a published number: the other layers, or what the released encoder gives."""
    if name == "input decoder" and encoding in RELEASED:
        return f"with the public code the released encoder gives {RELEASED[encoding]}"
    if name != "task decoder":
        return ""
    trained = _select(last, encoding)
    others = [
        f"{LAYERS[layer]} layer {trained[column_of(layer)].mean():.3f}"
        for layer in LAYERS
        if layer != HEADLINE
    ]
    return f"{', '.join(others)}; third layer before training {_decoded(last, encoding, 'untrained'):.3f}"


def _decoded(last: Frame, label: str, student: str) -> float:
    return float(_select(last, label, student)[TASK_DECODER].mean())


def _gain(last: Frame, label: str) -> float:
    """How much more decodable the third layer is after training."""
    return _decoded(last, label, "trained") - _decoded(last, label, "untrained")


def _gain_claim(last: Frame | None, encoding: str) -> ledger.Claim:
    """What training adds to the decodability of the third layer."""
    measured = interval = holds = None
    if last is not None and not math.isnan(_gain(last, encoding)):
        own = last.loc[last["label"] == encoding, ["seed", "label", "student", TASK_DECODER]]
        measured, interval = (
            _gain(last, encoding),
            over_seeds(own, lambda frame: _gain(frame, encoding)),
        )
        holds = interval[0] > MIN_GAIN and bool(
            (_select(last, encoding, "untrained")["test/r2"] < 0.1).all()
        )
    return ledger.Claim(
        name=f"{encoding}: untrained",
        statement=f"{encoding}: training raises the third layer's decodability by over {MIN_GAIN} (difference of R2)",
        source="control",
        published=ledger.OURS,
        measured=measured,
        holds=holds,
        interval=interval,
        control="test R2 of the untrained network is below .1",
    )


def _relation(name: str) -> str:
    return f"is within {SAME} of" if name == "input decoder" else "is at least"


def _variant(last: Frame | None, label: str, name: str, column: str, value: float) -> ledger.Claim:
    """A number of a variant of ours, beside the published number of the encoding."""
    measured, interval = _mean(_at_papers_size(last, label), column)
    return ledger.Claim(
        name=f"{label}: {name}",
        statement=f"{label} (our variant): {DESCRIBED[name]} {_relation(name)} the published {value:.2f}",
        source="hypothesis of ours",
        published=ledger.OURS,
        measured=measured,
        holds=None if interval is None else _passes(name, interval, value),
        interval=interval,
        note="the variant was chosen to fit this number" if name == "input decoder" else "",
    )
