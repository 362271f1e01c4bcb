"""Do students that fail to generalize lose the modules in deeper layers?

Claim: with the identity encoding, the modules are perfectly decodable from the encoded task, but
networks that fail to generalize lose them in deeper layers (arXiv 2507.07207, section 4).

Students of the same size are compared, which differ only in the number of train tasks: 4x1024 and,
at full scale, 4x256, which fails with more train tasks. Students must fail at two or more held-out
fractions. Decodability is measured in every layer, from the encoded task to the output. Students
that generalize are the contrast: close to the output, less may be decodable from them, too. There
are two decoders. The published one is fitted on train tasks and scored on held-out combinations, so
few train tasks make a poor decoder as well as a poor student. The other (`TaskInformation`) is
fitted on half of all tasks and scored on the other half, the same for every student. The gap of the
untrained baselines is subtracted from both gaps.

Command:  recombine run information_loss --scale small
Runtime:  3 minutes on 2 busy cores; full: 2.4 minutes on an H200.
Expected: behind the first layer, the modules are less decodable from students that fail (R2 below
          .5) than from students that generalize (R2 above .9).
"""

import re

import numpy as np
import pandas as pd

from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    Measurement,
    Select,
    above,
    all_of,
    final_rows,
    on_value,
    reproduces,
)
from recombine.experiments.layers import by_layer, probed_layers
from recombine.experiments.plots import Plot, curve
from recombine.experiments.untrained import is_untrained, untrained
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.diagnostics.task_information import TaskInformation
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.sweeps.run import Run, paper_fast, sweep

TITLE = "Decodability by layer of students that do and do not generalize"
SOURCE = "arXiv 2507.07207, section 4"
FRACTIONS = {
    "tiny": (0.3, 0.7),
    "small": (0.125, 0.5, 0.93, 0.95),
    # The last four leave 14, 11, 9 and 8 train tasks; 8 is the fewest that connect the modules.
    "full": (0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.984, 0.987, 0.9885),
}
NARROW = 256  # at full scale, width of the second size of student
SEEDS = {"tiny": 1, "small": 3, "full": 8}
BASES = {
    "tiny": Run(
        Hyperteacher(num_modules=5, num_hot=2, d_input=4, d_hidden=4, num_outputs=4),
        model=MLP((8, 8)),
        num_steps=20,
        num_evals=1,
        num_eval_tasks=32,
    ),
    "small": Run(num_steps=3000, num_evals=1),
    "full": paper_fast(),
}
DECODERS = {"train tasks": "LinearDecodability", "all tasks": "TaskInformation"}  # by fitted tasks
MAX_FAILING = 0.5  # test R2; a student below it fails
MIN_GENERALIZING = 0.9  # test R2; a student above it generalizes
MIN_GAP = 0.05  # of decodability, for modules that count as lost
MIN_KEPT = 0.9  # decodability of modules that count as kept


def runs(scale: str) -> list[Run]:
    """Size x held-out fraction x seed, identity encoding, trained and untrained."""
    models = [BASES[scale].model]
    if scale == "full":
        models.append(MLP((NARROW,) * 4))
    trained = sweep(
        BASES[scale],
        diagnostics=[(LinearDecodability(), TaskInformation())],
        model=models,
        frac_test=FRACTIONS[scale],
        seed=range(SEEDS[scale]),
    )
    return [*trained, *map(untrained, trained)]


def prepare(rows: Frame) -> Frame:
    """The final rows, with the columns that are used, and three more.

    `student` is `fails`, `generalises` (so spelled in the keys of the summary) or `between`. An
    untrained baseline has the value of its trained student. `is_untrained` marks the baselines,
    `is_narrow` the students of the second size.
    """
    final = final_rows(rows)
    final["is_untrained"] = is_untrained(final)
    final["is_narrow"] = final["model.width"] < final["model.width"].max()
    pairs = ["model.widths", "frac_test", "seed"]
    trained_scores = final[~final["is_untrained"]].set_index(pairs)["test/r2"]
    scores = trained_scores.reindex(pd.MultiIndex.from_frame(final[pairs])).to_numpy()
    outcomes = [scores < MAX_FAILING, scores > MIN_GENERALIZING]
    final["student"] = np.select(outcomes, ["fails", "generalises"], "between")
    decoders = [column for probe in DECODERS.values() for column in probed_layers(final, probe)]
    about = ["run", "seed", "frac_test", "student", "is_untrained", "is_narrow"]
    return final[[*about, *decoders]]


def wide_students(final: Frame) -> Frame:
    """The students of the first size, and their untrained baselines."""
    return final[~final["is_narrow"]]


def narrow_students(final: Frame) -> Frame:
    """The students of the second size, and their untrained baselines."""
    return final[final["is_narrow"]]


def failing_fractions(final: Frame) -> list[float]:
    """The held-out fractions at which students fail."""
    failing = final[(final["student"] == "fails") & ~final["is_untrained"]]
    return sorted(failing["frac_test"].unique())


def fails_at_several_fractions(measurement: Measurement) -> bool:
    """Whether students fail at two or more held-out fractions."""
    return len(failing_fractions(measurement.rows)) >= 2


def failing_note(measurement: Measurement) -> str:
    """The held-out fractions at which students fail, as text."""
    fractions = ", ".join(f"{fraction:g}" for fraction in failing_fractions(measurement.rows))
    return f"students fail at held-out fractions {fractions or 'none'}"


def layer_means(final: Frame, fitted_on: str, of_untrained: bool = False) -> Frame:
    """Mean decodability of every layer (columns) of students that fail and that generalize (rows).

    Layers without a value are NaN.
    """
    layers = probed_layers(final, DECODERS[fitted_on])
    chosen = final[final["is_untrained"] == of_untrained]
    means = chosen.groupby("student")[list(layers)].mean()
    return means.rename(columns=layers).reindex(["fails", "generalises"])


def gap(final: Frame, fitted_on: str, of_untrained: bool = False) -> float:
    """How much less is decodable from students that fail: mean over layers behind the first."""
    means = layer_means(final, fitted_on, of_untrained)
    deep = [layer for layer in means if re.fullmatch(r"(pre|hidden)[1-9]\d*", layer)]
    return float((means.loc["generalises", deep] - means.loc["fails", deep]).mean())


def gap_by_training(final: Frame, fitted_on: str) -> float:
    """The gap beyond that of the untrained baselines."""
    return gap(final, fitted_on) - gap(final, fitted_on, of_untrained=True)


def least_kept(final: Frame) -> float:
    """The lowest mean decodability of a hidden layer of students that generalize."""
    means = layer_means(final, "train tasks")
    hidden = [layer for layer in means if re.fullmatch(r"(pre|hidden)\d+", layer)]
    return float(means.loc["generalises", hidden].min())


def summary(rows: Frame) -> dict[str, float]:
    """Mean decodability of every layer, of students that fail and that generalize, by decoder."""
    final = prepare(rows)
    values = summary_of_size(wide_students(final))
    narrow = narrow_students(final)
    if len(narrow):
        of_narrow = summary_of_size(narrow)
        values |= {f"width {NARROW}, {name}": value for name, value in of_narrow.items()}
    return values


def summary_of_size(final: Frame) -> dict[str, float]:
    """The summary of students of one size."""
    counts = final[~final["is_untrained"]]["student"].value_counts()
    values = {f"students: {student}": float(count) for student, count in counts.items()}
    for fitted_on in DECODERS:
        values[f"{fitted_on}: gap"] = gap(final, fitted_on)
        values[f"{fitted_on}: gap of untrained twins"] = gap(final, fitted_on, of_untrained=True)
        for student, means in layer_means(final, fitted_on).iterrows():
            for layer, value in means.dropna().items():
                values[f"{fitted_on}: {layer}, {student}"] = float(value)
    return values


FIRST_LOST = "information_loss: lost by those that fail, decoder of train tasks"
FIRST_KEPT = "information_loss: kept by those that generalise"


def lost_claim(fitted_on: str, select: Select, size: str = "") -> DeclaredClaim:
    """Students that fail lose modules behind the first layer. `size` is added to the name."""
    return reproduces(
        f"lost by those that fail, decoder of {fitted_on}{size}",
        "Behind the first layer, the modules are less decodable from students that fail than from "
        "students of the same size that generalize (gap in R2, mean over hidden layers, beyond "
        f"that of the untrained baselines; decoder fitted on {fitted_on}{size})",
        published="lost in deeper layers",
        rows=select,
        repeats="" if fitted_on == "train tasks" and not size else FIRST_LOST,
        statistic=lambda final: gap_by_training(final, fitted_on),
        passes=all_of(
            above(MIN_GAP),
            on_value("students fail at two or more held-out fractions", fails_at_several_fractions),
        ),
        control="untrained baselines have a smaller gap",
        note=failing_note,
    )


def kept_claim(select: Select, size: str = "") -> DeclaredClaim:
    """Students that generalize keep the modules in every hidden layer."""
    return reproduces(
        f"kept by those that generalise{size}",
        "The modules are decodable from every hidden layer of students that generalize "
        f"(the lowest decodability; decoder fitted on train tasks{size})",
        published="kept",
        rows=select,
        repeats=FIRST_KEPT if size else "",
        statistic=least_kept,
        passes=above(MIN_KEPT),
    )


CLAIMS = [
    lost_claim("train tasks", wide_students),
    lost_claim("all tasks", wide_students),
    kept_claim(wide_students),
    lost_claim("train tasks", narrow_students, f", width {NARROW}"),
    lost_claim("all tasks", narrow_students, f", width {NARROW}"),
    kept_claim(narrow_students, f", width {NARROW}"),
]


def rows_by_layer(probe: str) -> Select:
    """One row per layer and wide student that fails or generalizes, and per untrained baseline.

    Layers are taken after their nonlinearity: before it, they are affine in the layer below.
    """

    def select(final: Frame) -> Frame:
        wide = wide_students(final)
        extremes = wide[wide["student"] != "between"]
        training = extremes["is_untrained"].map({True: ", untrained", False: ""})
        outcome = extremes["student"].replace("generalises", "generalizes") + training
        columns = [column for column in extremes if not re.search(r"/pre\d+/", column)]
        return by_layer(extremes[columns].assign(outcome=outcome), ["outcome", "run"], probe)

    return select


def layer_plot(name: str, probe: str, fitted_on: str) -> Plot:
    """Decodability by layer and outcome."""
    return curve(
        "decodability r2",
        against="layer",
        color="outcome",
        rows=rows_by_layer(probe),
        name=name,
        title=f"Decodability of the modules by layer, decoder fitted on {fitted_on}",
        x_title="layer, from the encoded task (code) to the output",
        y_title="decodability (R²)",
    )


FIGURES = [
    layer_plot("train_tasks", "LinearDecodability", "train tasks"),
    layer_plot("all_tasks", "TaskInformation", "half of all tasks"),
]
