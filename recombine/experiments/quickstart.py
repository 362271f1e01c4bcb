"""A first sweep: wider students and more train tasks lead to compositional generalization.

A hidden teacher network has 8 modules (weight matrices). A task is a weighted sum of up to 3 of
them. The students are MLPs with three hidden layers. They are trained on some combinations of
modules and tested on the held-out ones.

Claim: an MLP generalizes to held-out combinations of modules once it is wide enough and has seen
enough combinations. Its hidden layers then encode the modules linearly (arXiv 2507.07207, sections
3 and 4).

`hidden0` is the first hidden layer, and `code` is the task as the student receives it. Decodability
is the R2 of a linear probe that predicts the weights of the modules from a layer's activations.

Command:  recombine quickstart            (the same as: recombine run quickstart --scale small)
Runtime:  about a minute on 2 cores, half of that with cached programs; full: 2 minutes on one H200.
Expected: test R2 of at least 0.9 for the best student, below 0.5 for the narrowest, and clearly
          lower with 75% of the tasks held out than with 25%.
"""

from recombine.experiments.claim import (
    Frame,
    above,
    final_rows,
    on_value,
    reproduces,
)
from recombine.experiments.plots import curve, scatter
from recombine.sweeps.run import Run, sweep

TITLE = "Wider students, more combinations: scaling leads to compositional generalization"
SOURCE = "arXiv 2507.07207, section 3"
WIDTHS = {"tiny": (4, 16), "small": (4, 16, 64, 128), "full": (4, 8, 16, 32, 64, 128, 256, 512)}
STEPS = {"tiny": 60, "small": 1200, "full": 4000}
SEEDS = {"tiny": 1, "small": 2, "full": 5}
PROBE = "LinearDecodability"
PROBED_LAYERS = ("code", "hidden0", "hidden1", "hidden2")


def runs(scale: str) -> list[Run]:
    """Width x held-out fraction x seed, M=8, K=3."""
    return sweep(
        Run(num_steps=STEPS[scale]),
        model__widths=[(width,) * 3 for width in WIDTHS[scale]],
        frac_test=[0.25, 0.75],
        seed=range(SEEDS[scale]),
    )


def prepare(rows: Frame) -> Frame:
    """The final rows, with the held-out fraction in words."""
    final = final_rows(rows)
    final["held out"] = final["frac_test"].map("{:.0%} held out".format)
    return final


def summary(rows: Frame) -> dict[str, float]:
    """Test R2 of the best, the narrowest and the widest students: means over seeds."""
    final = final_rows(rows)
    values = {
        "best test R2": best(final),
        "test R2 of the narrowest student": narrowest(final),
    }
    for frac_test in (final["frac_test"].min(), final["frac_test"].max()):
        values[f"test R2 of the widest, {frac_test:.0%} held out"] = widest(final, frac_test)
    return values


def best(final: Frame) -> float:
    """The mean test R2 of the best combination of width and held-out fraction."""
    return float(_means(final).max())


def narrowest(final: Frame) -> float:
    """The mean test R2 of the narrowest student, at the held-out fraction where it is higher."""
    return float(_means(final)[final["model.width"].min()].max())


def widest(final: Frame, frac_test: float) -> float:
    """The mean test R2 of the widest student at a held-out fraction."""
    return float(_means(final)[final["model.width"].max(), frac_test])


def _means(final: Frame) -> Frame:
    return final.groupby(["model.width", "frac_test"])["test/r2"].mean()


def gain_by_data(final: Frame) -> float:
    """What the widest student loses when the most tasks are held out instead of the fewest."""
    fractions = final["frac_test"]
    return widest(final, fractions.min()) - widest(final, fractions.max())


def by_layer(final: Frame) -> Frame:
    """One row per student and layer, for the students with the most train tasks."""
    columns = {f"{PROBE}/{layer}/test/r2": layer for layer in PROBED_LAYERS}
    columns = {column: layer for column, layer in columns.items() if column in final}
    most = final[final["frac_test"] == final["frac_test"].min()]
    long = most.melt(["model.width"], list(columns), "layer", "decodability r2")
    return long.assign(layer=long["layer"].map(columns))


CLAIMS = [
    reproduces(
        "width",
        "Test R2 grows with width: the best student has at least 0.9, the narrowest below 0.5 "
        "(gain in R2)",
        published="monotone gain",
        repeats="scaling_width: Identity: width",
        statistic=lambda final: best(final) - narrowest(final),
        passes=on_value(
            "best mean at least 0.9, narrowest below 0.5",
            lambda measurement: best(measurement.rows) >= 0.9 and narrowest(measurement.rows) < 0.5,
        ),
        control="a student of width 4 must fail",
    ),
    reproduces(
        "data",
        "Test R2 grows with the number of train tasks: 25% against 75% held out, widest student",
        published="monotone gain",
        repeats="data_slice: tasks",
        statistic=gain_by_data,
        passes=above(0.05),
        control="75% held out must be lower",
    ),
]
FIGURES = [
    curve(
        "test/r2",
        against="model.width",
        color="held out",
        name="width",
        title="Wider students generalize better",
        log_x=True,
    ),
    scatter(
        f"{PROBE}/deepest/test/r2",
        against="test/r2",
        color="held out",
        name="decodability",
        title="Linear decodability of the modules against generalization",
        y_title="decodability, deepest layer (R²)",
    ),
    curve(
        "decodability r2",
        against="layer",
        color="model.width",
        rows=by_layer,
        name="layers",
        title="Linear decodability by layer (25% held out)",
        x_title="layer (code: the encoded task)",
        y_title="decodability, held-out combinations (R²)",
    ),
]
