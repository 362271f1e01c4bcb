"""A second family: does scaling lead to compositional generalization when tasks are preferences in a grid world?

Claim: on the preference grid too, wider students and more train tasks generalise better, and a support that never shows
or never mixes a module hurts (arXiv 2507.07207, appendix: all findings hold on Compositional Preference).

Command:  recombine run preference_scaling --scale small
Runtime:  3 to 4 minutes on 2 cores; full: 3 minutes on one H200.
Expected: accuracy over whole episodes of unseen tasks grows with width and with the number of train tasks; it falls
          where a module is missing from training.
Measured: full (H200, 2026-11-15; whole episodes right): .23, .48, .70, .74 at widths 16, 64, 256, 1024; .74 to .50 from
          25% to 98% held out, flat up to 75%; random .74, disconnected .55, unpopular .48, missing module .43.
          small (2026-11-15): .21, .33, .42 at widths 8, 32, 128; .42 to .36 from 25% to 90% held out.
"""

import numpy as np

from recombine.experiments import claim as ledger
from recombine.parts.families.preference_grid import ACTIONS, CELLS, MOVES, WALLS, PreferenceGrid
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key
from recombine.parts.recipes.fast import Fast
from recombine.parts.supports.balanced import Balanced
from recombine.parts.supports.disconnected import Disconnected
from recombine.parts.supports.missing_module import MissingModule
from recombine.parts.supports.popular import Popular
from recombine.parts.supports.random import Random
from recombine.parts.supports.unpopular import Unpopular
from recombine.reporting import figure, film
from recombine.sweeps.run import Run, sweep

TITLE = "The preference grid: scaling leads to compositional generalization here too"
FAMILIES = {
    "tiny": PreferenceGrid(num_modules=4, num_hot=2, num_features=4, observation="compact"),
    "small": PreferenceGrid(num_modules=8, num_features=8, observation="compact"),
    "full": PreferenceGrid(num_features=16),  # the paper's, for sizes and supports
}
WIDTHS = {"tiny": (4, 16), "small": (8, 32, 128), "full": (16, 64, 256, 1024)}
FRACTIONS = {
    "tiny": (0.25, 0.5),
    "small": (0.25, 0.5, 0.75, 0.9),
    "full": (0.25, 0.5, 0.75, 0.9, 0.95, 0.98),
}
SIZES = {
    "tiny": (40, 8, 1),
    "small": (2500, 64, 2),
    "full": (10_000, 512, 3),
}  # steps, tasks in a batch, seeds
# Chosen by seen scores, on seeds that are not used here.
RATES = {"tiny": 0.02, "small": 0.02, "full": 0.03}  # larger batches bear larger rates
VIOLATING = ("Disconnected", "MissingModule")
NOISE = 0.02  # what counts as even: twice the spread between seeds
SCORE = "test/trajectory_accuracy"
SOURCE = "arXiv 2507.07207, appendix (Compositional Preference)"


def runs(scale: str) -> list[Run]:
    """Width at a quarter held out; held-out fraction of the widest; support of the widest."""
    num_steps, num_tasks, num_seeds = SIZES[scale]
    base = Run(
        family=FAMILIES[scale],
        model=MLP(widths=(WIDTHS[scale][-1],) * 2),
        recipe=Fast(RATES[scale], 0.05, vector_rate=1.0),
        diagnostics=(),
        num_steps=num_steps,
        num_tasks=num_tasks,
    )
    supports = [Balanced(), Popular(), Unpopular(), Disconnected(), MissingModule()]
    seeds = range(num_seeds)
    found = [
        *sweep(base, model__widths=[(width,) * 2 for width in WIDTHS[scale]], seed=seeds),
        *sweep(base, frac_test=FRACTIONS[scale], seed=seeds),
        *sweep(base, support=[Random()] if scale == "tiny" else supports, seed=seeds),
    ]
    return list(dict.fromkeys(found))


def _cells(rows):
    """The three sweeps' rows at the last step: by width, by held-out fraction, by support."""
    last = ledger.last(rows)
    last["width"] = last["model.widths"].str.split("x").str[0].astype(int)
    usual, widest = last["support"] == "Random", last["width"] == last["width"].max()
    quarter = last["frac_test"] == last["frac_test"].min()
    return last[usual & quarter], last[usual & widest], last[widest & quarter]


def summary(rows) -> dict[str, float]:
    """Means over seeds of the accuracy over whole episodes of unseen tasks."""
    by_width, by_fraction, by_support = _cells(rows)
    found = {f"width {w}": float(v) for w, v in by_width.groupby("width")[SCORE].mean().items()}
    found |= {
        f"{f:.0%} held out": float(v)
        for f, v in by_fraction.groupby("frac_test")[SCORE].mean().items()
    }
    return found | {
        str(s): float(v) for s, v in by_support.groupby("support")[SCORE].mean().items()
    }


def figures(rows) -> dict:
    """An episode, so that one sees the task; then accuracy by width, by train tasks and by support."""
    by_width, by_fraction, by_support = _cells(rows)
    y_title = "whole episodes right, unseen tasks"
    both = _sides(by_width)
    return {
        "episode": episode(FAMILIES["full"]),
        "width": figure.lines(
            both,
            "width",
            "trajectory_accuracy",
            by="tasks",
            title="Accuracy over whole episodes by width (25% of the tasks held out)",
            x_title="width of the two hidden layers",
            y_title="whole episodes right",
            log_x=True,
        ),
        "data": figure.lines(
            _sides(by_fraction),
            "support/num_train",
            "trajectory_accuracy",
            by="tasks",
            title="Accuracy over whole episodes by the number of train tasks",
            x_title="train tasks",
            y_title="whole episodes right",
            log_x=True,
        ),
        "supports": figure.bars(
            by_support.assign(
                trained=by_support["support"]
                + " ("
                + by_support["support/num_train"].astype(str)
                + ")"
            ),
            "trained",
            SCORE,
            title="Which tasks are trained on: supports, asked to hold out 25%",
            x_title="support (train tasks)",
            y_title=y_title,
        ),
    }


def _sides(frame):
    """Seen and unseen tasks under one another, for one picture of both."""
    tall = frame.melt(
        id_vars=["run", "width", "support/num_train"],
        value_vars=["seen/trajectory_accuracy", SCORE],
        var_name="tasks",
        value_name="trajectory_accuracy",
    )
    return tall.assign(
        tasks=tall["tasks"].map({"seen/trajectory_accuracy": "seen tasks", SCORE: "unseen tasks"})
    )


def episode(family: PreferenceGrid, seed: int = 0):
    """A film strip of one episode of one task: the first in which two objects are collected and the end is chosen."""
    import jax

    world, row = family.init(new_key(seed)), family.tasks()[-1]
    task = family.weigh(new_key(seed), jax.numpy.asarray(row))
    play = jax.jit(lambda key: family.play(world, key, task))
    told = (play(new_key(i)) for i in range(1000))
    played = next(
        p for p in told if (np.asarray(p.reward) > 0).sum() >= 2 and (p.action == 0).any()
    )
    layout, worth = played.layout, np.asarray(task @ world)
    pictures = []
    for t, action in enumerate(int(a) for a in played.action if a >= 0):
        things = [
            film.Thing(
                tuple(CELLS[cell].tolist()), f"{worth[feature]:+.1f}", bool(worth[feature] > 0)
            )
            for cell, feature, present in zip(
                layout.cells, layout.features, played.present[t], strict=True
            )
            if present
        ]
        earned = float(played.reward[t])
        caption = f"{t + 1}. {ACTIONS[action]}" + (f", earns {earned:+.1f}" if earned else "")
        caption += ": the end" if action == 0 else ""
        pictures.append(
            film.Picture(tuple(CELLS[played.cell[t]].tolist()), MOVES[action], things, caption)
        )
    return film.strip(
        WALLS, pictures, "One episode of one task: the student is to choose every action"
    )


def claims(rows) -> list:
    """The paper's findings, on this family: differences of the accuracy over whole episodes of unseen tasks."""
    whole = "On unseen tasks the accuracy over whole episodes"
    told = {
        "width": (
            f"{whole} grows with width (on seen tasks too: narrow students do not fit)",
            "monotone gain",
        ),
        "data": (
            f"{whole} grows with the number of train tasks (most against fewest)",
            "monotone gain",
        ),
        "support": (f"{whole} falls where modules are never shown or never mixed", "large drop"),
        "frequency": (
            f"{whole} falls where some modules are rare, not where some are frequent",
            "rare modules hurt",
        ),
    }
    controls = {
        "width": "the narrowest must fail",
        "data": "fewer tasks may gain no more than noise",
        "support": "random supports",
        "frequency": "frequent modules may do no harm",
    }
    return [
        ledger.Claim(
            name, statement, SOURCE, published, *_measured(rows, name), control=controls[name]
        )
        for name, (statement, published) in told.items()
    ]


def _measured(rows, name: str) -> tuple[float | None, bool | None]:
    """The difference that a claim is about, and whether it is as claimed; nothing where its runs are not there."""
    if rows is None:
        return None, None
    by_width, by_fraction, by_support = (
        frame.groupby(key)[SCORE].mean()
        for frame, key in zip(_cells(rows), ("width", "frac_test", "support"), strict=True)
    )
    if name == "width":
        gain = by_width.iloc[-1] - by_width.iloc[0]
        return float(gain), bool(
            by_width.is_monotonic_increasing and by_width.iloc[0] < 0.5 < by_width.iloc[-1]
        )
    if name == "data":
        cost = by_fraction.iloc[0] - by_fraction.iloc[-1]
        return float(cost), bool(cost > 0.1 and (by_fraction.diff().iloc[1:] < NOISE).all())
    named = VIOLATING if name == "support" else ("Popular", "Unpopular")
    if not set(named) <= set(by_support.index):
        return None, None
    usual = by_support["Random"]
    if name == "support":
        drop = usual - max(by_support[each] for each in VIOLATING)
        return float(drop), bool(drop > 0.05)
    drop = usual - by_support["Unpopular"]
    return float(drop), bool(drop > 0.05 and abs(usual - by_support["Popular"]) < NOISE)
