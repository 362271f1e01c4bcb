"""Scaling leads to compositional generalization, in a minute or two on a laptop.

Claim: a plain MLP handles combinations of modules that it never saw once it is wide enough and has seen enough
combinations, and then its hidden layers tell the modules apart linearly (arXiv 2507.07207, sections 3 and 4).

Command:  recombine quickstart            (the same as: recombine run quickstart --scale small)
Runtime:  about a minute on 2 cores, half of that with programs on disk; full: 2 minutes on one H200.
Expected: test R2 at least 0.9 for the best cell, below 0.5 for the narrowest student, and clearly lower with 75% of
          the tasks held out than with 25%.
"""

from recombine.experiments import claim as ledger
from recombine.reporting import figure
from recombine.sweeps.run import Run, sweep

TITLE = "Wider students, more combinations: scaling leads to compositional generalization"
WIDTHS = {"tiny": (4, 16), "small": (4, 16, 64, 128), "full": (4, 8, 16, 32, 64, 128, 256, 512)}
STEPS = {"tiny": 60, "small": 1200, "full": 4000}
SEEDS = {"tiny": 1, "small": 2, "full": 5}


def runs(scale: str) -> list[Run]:
    """Width x held-out fraction x seed, M=8, K=3."""
    return sweep(
        Run(num_steps=STEPS[scale]),
        model__widths=[(width,) * 3 for width in WIDTHS[scale]],
        frac_test=[0.25, 0.75],
        seed=range(SEEDS[scale]),
    )


def _last(rows):
    last = ledger.last(rows)
    last["width"] = last["model.widths"].str.split("x").str[0].astype(int)
    last["held out"] = last["frac_test"].map("{:.0%} held out".format)
    return last


def summary(rows) -> dict[str, float]:
    """The numbers that the claim is about: means over seeds at the last step."""
    cells = _last(rows).groupby(["width", "frac_test"])["test/r2"].mean()
    widths, fractions = (cells.index.get_level_values(name) for name in ("width", "frac_test"))
    found = {
        "best test R2": float(cells.max()),
        "test R2 of the narrowest student": float(cells[widths.min()].max()),
    }
    for frac_test in (fractions.min(), fractions.max()):
        found[f"test R2 of the widest, {frac_test:.0%} held out"] = float(
            cells[widths.max(), frac_test]
        )
    return found


def figures(rows) -> dict:
    """Test R2 against width; decodability against test R2; decodability by layer."""
    last = _last(rows)
    layers = [
        name
        for name in ("code", "hidden0", "hidden1", "hidden2")
        if f"{_PROBE}/{name}/test/r2" in last
    ]
    by_layer = last.melt(
        id_vars=["width", "held out", "frac_test"],
        value_vars=[f"{_PROBE}/{name}/test/r2" for name in layers],
        var_name="layer",
        value_name="decodability r2",
    )
    by_layer["layer"] = by_layer["layer"].str.split("/").str[1]
    return {
        "width": figure.lines(
            last,
            "width",
            "test/r2",
            by="held out",
            title="Generalisation by width: R² on combinations never trained on",
            x_title="width of the hidden layers",
            y_title="R² on unseen combinations",
            log_x=True,
        ),
        "decodability": figure.scatter(
            last,
            "test/r2",
            f"{_PROBE}/deepest/test/r2",
            by="held out",
            title="Linear decodability of the modules against generalisation",
            x_title="R² on unseen combinations",
            y_title="decodability, deepest layer (R²)",
        ),
        "layers": figure.lines(
            by_layer[by_layer["frac_test"] == by_layer["frac_test"].min()],
            "layer",
            "decodability r2",
            by="width",
            title=f"Linear decodability by layer ({by_layer['held out'].min()})",
            x_title="layer (code = what the student is given)",
            y_title="decodability, unseen tasks (R²)",
        ),
    }


def claims(rows) -> list:
    """The two halves of the paper's title, at this size."""
    gain = cost = wide = large = None
    if rows is not None:
        found = list(summary(rows).values())
        best, narrowest, quarter, most = found[0], found[1], found[2], found[-1]
        gain, wide = best - narrowest, best >= 0.9 and narrowest < 0.5
        cost, large = quarter - most, quarter - most > 0.05
    source = "arXiv 2507.07207, section 3"
    return [
        ledger.Claim(
            name="width",
            statement="Test R2 grows with width: best cell at least 0.9, narrowest below 0.5 (gain in R2)",
            source=source,
            published="monotone gain",
            measured=gain,
            holds=wide,
            control="a student of width 4 must fail",
        ),
        ledger.Claim(
            name="data",
            statement="Test R2 grows with the number of train tasks: 25% against 75% held out, widest student",
            source=source,
            published="monotone gain",
            measured=cost,
            holds=large,
            control="75% held out must be lower",
        ),
    ]


_PROBE = "LinearDecodability"
