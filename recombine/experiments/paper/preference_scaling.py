"""A second family: does scaling lead to compositional generalization in a preference grid world?

Claim: on the preference grid, too, wider students and more train tasks generalize better, and a
support that never shows or never mixes a module hurts (arXiv 2507.07207, appendix: all findings
hold on Compositional Preference).

The score is the accuracy over whole episodes: the share of episodes of test tasks in which every
action is right. One factor varies at a time: the width (for each of six encodings), the held-out
fraction of the widest students, their training support, or the number of modules. A few-shot code
has compact examples (`PreferenceGrid.examples`). That the score never falls with width or train
tasks is a paired test (`trend.py`).

Decodability is measured with the public probe, before and after training. The paper's correlation
is judged by the rule of experiment `decodability`: the layer before the second nonlinearity, over
students with different numbers of train tasks, with the untrained network as the control. The first
layer is affine in the encoded task.

Law: the number of train tasks n at which the score crosses a target, by the number M of modules. It
must grow as a power below 1 of the number of all tasks, and the power must predict the two largest
M better than a fixed share of all tasks does. An M counts if the curves of all seeds cross.

Command:  recombine run preference_scaling --scale small
Runtime:  not measured at small scale; full: 177 students and 48 untrained networks on a GPU.
Expected: the score grows with width and with the number of train tasks, and falls if a module is
          missing from training; tasks needed grow more slowly than all tasks.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics import statistics
from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    Measurement,
    Select,
    above,
    all_of,
    below,
    final_rows,
    hypothesis,
    mean_difference,
    on_value,
    reproduces,
    where,
)
from recombine.experiments.layers import probe_column
from recombine.experiments.paper.decodability import (
    PUBLIC_PROBE,
    StudentSet,
    correlation_claim,
    with_untrained_probes,
)
from recombine.experiments.paper.scaling_law import POWER, SHARE, fit, prediction_error
from recombine.experiments.paper.scaling_width import ENCODINGS, PLAIN_ENCODINGS
from recombine.experiments.plots import bars, curve, custom
from recombine.experiments.trend import NeverFalls, Trend, trends
from recombine.experiments.untrained import untrained, untrained_column
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.identity import Identity
from recombine.parts.families.preference_grid import ACTIONS, CELLS, MOVES, WALLS, PreferenceGrid
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key
from recombine.parts.protocols import Encoding
from recombine.parts.recipes.fast import Fast
from recombine.parts.supports.balanced import Balanced
from recombine.parts.supports.disconnected import Disconnected
from recombine.parts.supports.missing_module import MissingModule
from recombine.parts.supports.popular import Popular
from recombine.parts.supports.random import Random
from recombine.parts.supports.unpopular import Unpopular
from recombine.reporting import film
from recombine.sweeps.run import Run, replace_fields, sweep

TITLE = "The preference grid: scaling leads to compositional generalization here, too"
SOURCE = "arXiv 2507.07207, appendix (Compositional Preference)"
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
# Steps, tasks in a batch, seeds.
SIZES = {"tiny": (40, 8, 1), "small": (2500, 64, 2), "full": (10_000, 512, 3)}
# Chosen by seen scores, on seeds that are not used here; that of full scale is the faithful recipe.
RECIPES = {
    "tiny": Fast(0.02, 0.05, vector_rate=1.0),
    "small": Fast(0.02, 0.05, vector_rate=1.0),
    "full": Fast(0.02, 0.05, vector_rate=0.2),
}
PROBE = LinearDecodability(paper=True, by_module=False)
# The law: numbers of modules, and train tasks per module.
MODULES = {"tiny": (4,), "small": (7, 8, 9, 10), "full": (12, 14, 16, 20, 24)}
TASKS_PER_MODULE = {"tiny": (1.0, 1.5), "small": (0.75, 1.5, 3, 5), "full": (0.75, 1.5, 3, 6, 12)}
# Its features (at least as many as modules), which no other sweep has, and its target accuracy.
FEATURES = {"tiny": 5, "small": 10, "full": 32}
TARGETS = {5: 0.2, 10: 0.3, 32: 0.65}
VIOLATING = ("Disconnected", "MissingModule")
NOISE = 0.02  # smaller differences count as none: twice the standard deviation over seeds
MIN_GROWTH = 0.1  # with width or with train tasks; a smaller gain counts as none
MIN_DROP = 0.05  # a smaller drop counts as none
MIN_GAIN = 0.05  # of decodability, over the untrained network
SCORE = "test/trajectory_accuracy"
SEEN_SCORE = "seen/trajectory_accuracy"
SCORE_TITLE = "fraction of episodes without an error"


def base_run(scale: str) -> Run:
    """The widest student, with a quarter of the tasks held out."""
    num_steps, num_tasks, _ = SIZES[scale]
    probe = PROBE
    if scale == "tiny":
        probe = replace(PROBE, num_fit=16, num_seen=16, num_test=16)
    return Run(
        family=FAMILIES[scale],
        model=MLP(widths=(WIDTHS[scale][-1],) * 2),
        recipe=RECIPES[scale],
        diagnostics=(probe,),
        num_steps=num_steps,
        num_evals=1,
        num_tasks=num_tasks,
    )


def runs(scale: str) -> list[Run]:
    """Encoding x width at a quarter held out; held-out fraction and support of the widest; the law.

    The widest students have untrained baselines, except those of the law. The tiny scale has few
    programs: the few-shot code is trained at the largest width only, without a baseline.
    """
    base = base_run(scale)
    supports = [Balanced(), Popular(), Unpopular(), Disconnected(), MissingModule()]
    seeds = range(SIZES[scale][2])
    widths = [(width,) * 2 for width in WIDTHS[scale]]
    students = []
    for encoding in encodings(scale):
        of_encoding = widths[-1:] if scale == "tiny" and encoding != Identity() else widths
        students += sweep(with_encoding(base, encoding), model__widths=of_encoding, seed=seeds)
    students += sweep(base, frac_test=FRACTIONS[scale], seed=seeds)
    students += sweep(base, support=[Random()] if scale == "tiny" else supports, seed=seeds)
    students = list(dict.fromkeys(students))
    widest = [run for run in students if run.model == base.model]
    if scale == "tiny":
        widest = [run for run in widest if run.encoding == Identity()]
    return [*students, *map(untrained, widest), *law(scale)]


def encodings(scale: str) -> tuple[Encoding, ...]:
    """The six encodings (two at tiny scale); a few-shot code has fewer examples at small scale."""
    if scale == "tiny":
        return Identity(), FewShot(2)
    return (*PLAIN_ENCODINGS, FewShot(16 if scale == "small" else 50))


def with_encoding(base: Run, encoding: Encoding) -> Run:
    """A run with an encoding. The few-shot student infers its task: it has twice the steps."""
    num_steps = base.num_steps * (2 if isinstance(encoding, FewShot) else 1)
    return replace(base, encoding=encoding, num_steps=num_steps)


def law(scale: str) -> list[Run]:
    """Numbers of modules x train tasks per module x seed, with balanced supports."""
    base = replace(base_run(scale), support=Balanced(), diagnostics=())
    base = replace_fields(base, {"family.num_features": FEATURES[scale]})
    listed = []
    for num_modules in MODULES[scale]:
        of_modules = replace_fields(base, {"family.num_modules": num_modules})
        total = len(of_modules.family.tasks())
        fractions = [
            1 - round(per_module * num_modules) / total for per_module in TASKS_PER_MODULE[scale]
        ]
        listed += sweep(of_modules, frac_test=fractions, seed=range(SIZES[scale][2]))
    return listed


def prepare(rows: Frame) -> Frame:
    """The final rows of trained students, with the probe before training. Added columns:

    - `M`, `total`: the numbers of modules and of all tasks; `is_law`: whether a run is of the law;
    - `is_widest` and `is_least_held_out`: among all students;
    - `trained on`: the support with its size.
    """
    final = with_untrained_probes(final_rows(rows), paired_by=["support"])
    final["encoding"] = pd.Categorical(final["encoding"], ENCODINGS)
    final["M"] = final["family.num_modules"]
    final["total"] = final["num_train"] + final["support/num_test"]
    final["is_law"] = final["family.num_features"].isin(list(TARGETS))
    final["is_widest"] = final["model.width"] == final["model.width"].max()
    final["is_least_held_out"] = final["frac_test"] == final["frac_test"].min()
    final["trained on"] = final["support"] + " (" + final["num_train"].astype(str) + ")"
    return final


IDENTITY = {"encoding": "Identity", "is_law": False}
sweep_of_encodings = where({"support": "Random", "is_least_held_out": True, "is_law": False})
sweep_of_widths = where({"support": "Random", "is_least_held_out": True} | IDENTITY)
sweep_of_fractions = where({"support": "Random", "is_widest": True} | IDENTITY)
sweep_of_supports = where({"is_widest": True, "is_least_held_out": True} | IDENTITY)


def mean_scores(rows: Frame, column: str) -> Any:
    """The mean score at each value of a column, in ascending order."""
    return rows.groupby(column)[SCORE].mean()


def summary(rows: Frame) -> dict[str, float]:
    """Mean accuracy over whole episodes of test tasks: by width, held-out fraction and support."""
    final = prepare(rows)
    by_width = mean_scores(sweep_of_widths(final), "model.width")
    by_fraction = mean_scores(sweep_of_fractions(final), "frac_test")
    by_support = mean_scores(sweep_of_supports(final), "support")
    sizes = ["encoding", "model.width"]
    by_encoding = sweep_of_encodings(final).groupby(sizes, observed=True)[SCORE].mean()
    cells = law_crossings(final)
    needed = {} if cells is None else cells.groupby("M")["needed"].mean()
    return {
        **{f"width {width}": float(score) for width, score in by_width.items()},
        **{f"{fraction:.0%} held out": float(score) for fraction, score in by_fraction.items()},
        **{str(support): float(score) for support, score in by_support.items()},
        **{
            f"{encoding}, width {width}": float(score)
            for (encoding, width), score in by_encoding.items()
            if encoding != "Identity"
        },
        **{f"tasks needed, M={m}": float(value) for m, value in needed.items()},
    }


def widths_of(encoding: str) -> Select:
    """Select the sweep of widths of an encoding, if it is complete."""

    def select(final: Frame) -> Frame | None:
        rows = sweep_of_encodings(final)
        own = rows[rows["encoding"] == encoding]
        num_widths = rows["model.width"].nunique()
        return own if own["model.width"].nunique() == num_widths > 1 else None

    return select


def widest_of(encoding: str) -> Select:
    """Select the widest students of an encoding, with a quarter held out."""

    def select(final: Frame) -> Frame | None:
        rows = sweep_of_encodings(final)
        return rows[rows["is_widest"] & (rows["encoding"] == encoding)]

    return select


def law_crossings(final: Frame) -> Frame | None:
    """The train tasks needed for the target by M and seed, where the curves of all seeds cross.

    None with fewer than four such M: two fit a law, two judge it.
    """
    of_law = final[final["is_law"]]
    if of_law.empty:
        return None
    target = TARGETS[int(of_law["family.num_features"].iloc[0])]
    cells = statistics.crossings(of_law, ["M", "total", "seed"], SCORE, target)
    num_crossed = (cells["state"] == "crossed").groupby(cells["M"]).transform("sum")
    cells = cells[num_crossed == cells["seed"].nunique()]
    return cells.assign(K=3) if cells["M"].nunique() >= 4 else None


def power_of_total(cells: Frame) -> float:
    """The power b of the law n = a N^b."""
    return fit(cells, POWER)[0]


def share_predicts_worse(measurement: Measurement) -> bool:
    """Whether a fixed share misses the two largest M by more than the power does."""
    errors = [prediction_error(measurement.rows, law, extrapolate=True) for law in (SHARE, POWER)]
    return errors[0] > errors[1]


def law_note(measurement: Measurement) -> str:
    """The tasks needed by M, as text."""
    needed = measurement.rows.groupby("M")["needed"].mean()
    return "tasks needed by M " + ", ".join(f"{m}: {value:.0f}" for m, value in needed.items())


SETS = tuple(
    StudentSet(
        name,
        description,
        select,
        layers=("pre1",),
        max_lowest=0.6,
        min_highest=0.7,
        score=SCORE,
        score_name="the accuracy over whole episodes of test tasks",
    )
    for name, description, select in (
        ("data", "identity encoding, widest MLP, several held-out fractions", sweep_of_fractions),
        ("six supports", "identity encoding, widest MLP, six supports", sweep_of_supports),
    )
)


def seen_and_test(rows: Frame) -> Frame:
    """Scores of seen and test tasks in one column."""
    columns = ["run", "model.width", "num_train"]
    long = rows.melt(columns, [SEEN_SCORE, SCORE], "tasks", "trajectory_accuracy")
    return long.assign(tasks=long["tasks"].map({SEEN_SCORE: "seen tasks", SCORE: "test tasks"}))


def episode(family: PreferenceGrid, seed: int = 0) -> Any:
    """A film strip of one episode: the first with two collected objects and a chosen end."""
    import jax

    world = family.init(new_key(seed))
    task = family.weigh(new_key(seed), jax.numpy.asarray(family.tasks()[-1]))
    play = jax.jit(lambda key: family.play(world, key, task))
    candidates = (play(new_key(i)) for i in range(1000))
    played = next(
        candidate
        for candidate in candidates
        if (np.asarray(candidate.reward) > 0).sum() >= 2 and (candidate.action == 0).any()
    )
    rewards = np.asarray(task @ world)
    num_steps = sum(int(action) >= 0 for action in played.action)
    pictures = [_picture(played, step, rewards) for step in range(num_steps)]
    title = "One episode of one task: the student must choose every action"
    return film.strip(WALLS, pictures, title)


def _picture(played: Any, step: int, rewards: np.ndarray) -> film.Picture:
    """One step of an episode. `rewards` are those of the features of objects."""
    objects = []
    for cell, feature, is_present in zip(
        played.layout.cells, played.layout.features, played.present[step], strict=True
    ):
        if is_present:
            reward = rewards[feature]
            position = tuple(CELLS[cell].tolist())
            objects.append(film.Thing(position, f"{reward:+.1f}", bool(reward > 0)))
    action = int(played.action[step])
    caption = f"{step + 1}. {ACTIONS[action]}"
    earned = float(played.reward[step])
    if earned:
        caption += f", earns {earned:+.1f}"
    if action == 0:
        caption += ": the end"
    agent = tuple(CELLS[played.cell[step]].tolist())
    return film.Picture(agent, MOVES[action], objects, caption)


def gain(rows: Frame, column: str) -> float:
    """The score at the largest value of a column minus that at the smallest."""
    scores = mean_scores(rows, column)
    return float(scores.iloc[-1] - scores.iloc[0])


def only_wide_students_succeed(measurement: Measurement) -> bool:
    """Whether the narrowest students score below .5, and the widest above."""
    scores = mean_scores(measurement.rows, "model.width")
    return bool(scores.iloc[0] < 0.5 < scores.iloc[-1])


def trends_by_width(final: Frame) -> list[Trend]:
    """The trend of every encoding along width; empty if the sweep is incomplete."""
    complete_sweeps = [dict.fromkeys(ENCODINGS, WIDTHS[scale]) for scale in ("small", "full")]
    complete_sweeps.append({"Identity": WIDTHS["tiny"]})
    rows = sweep_of_encodings(final)
    return list(trends(rows, "encoding", "model.width", SCORE, complete_sweeps).values())


def trend_by_tasks(final: Frame) -> list[Trend]:
    """The trend of the widest students along the fraction of tasks that they are trained on; empty
    if the sweep is incomplete.
    """
    rows = sweep_of_fractions(final)
    rows = rows.assign(frac_train=1 - rows["frac_test"])
    complete_sweeps = [
        {"Identity": [1 - fraction for fraction in fractions]} for fractions in FRACTIONS.values()
    ]
    return list(trends(rows, "encoding", "frac_train", SCORE, complete_sweeps).values())


def supports(*names: str) -> Select:
    """Select the sweep of supports if it has all of these."""

    def select(final: Frame) -> Frame | None:
        rows: Frame = sweep_of_supports(final)
        return rows if set(names) <= set(rows["support"]) else None

    return select


def smallest_drop(rows: Frame, *names: str) -> float:
    """The score of random supports minus the best of these supports."""
    scores = mean_scores(rows, "support")
    return float(scores["Random"] - scores[list(names)].max())


def _width_claim(encoding: str) -> DeclaredClaim:
    return reproduces(
        f"width, {encoding}",
        f"The accuracy over whole episodes of test tasks grows with width, {encoding} encoding "
        "(widest against narrowest)",
        published="monotone gain",
        rows=widths_of(encoding),
        needs=("model.width", SCORE),
        statistic=lambda rows: gain(rows, "model.width"),
        passes=above(MIN_GROWTH),
    )


def _decoder_claim(encoding: str) -> DeclaredClaim:
    column = probe_column(PUBLIC_PROBE, "pre1")
    before = untrained_column(column)
    return hypothesis(
        f"task decoder, {encoding}",
        f"The modules are better decodable from the second layer than before training, {encoding} "
        f"encoding (difference in R2 above {MIN_GAIN}; public probe, widest MLP)",
        source="ours",
        rows=widest_of(encoding),
        needs=(column, before),
        statistic=mean_difference(column, before),
        passes=above(MIN_GAIN),
        note=lambda measurement: (
            f"decodability {measurement.rows[column].mean():.3f} after training"
        ),
    )


CLAIMS = [
    reproduces(
        "width",
        "The accuracy over whole episodes of test tasks grows with width (on seen tasks, too: "
        "narrow students do not fit)",
        published="monotone gain",
        rows=sweep_of_widths,
        statistic=lambda rows: gain(rows, "model.width"),
        passes=all_of(
            above(0),
            on_value("from below 0.5 to above", only_wide_students_succeed),
        ),
        control="the narrowest must fail",
    ),
    reproduces(
        "data",
        "The accuracy over whole episodes of test tasks grows with the number of train tasks (most "
        "against fewest)",
        published="monotone gain",
        rows=sweep_of_fractions,
        statistic=lambda rows: gain(rows, "num_train"),
        passes=above(MIN_GROWTH),
    ),
    reproduces(
        "support",
        "The accuracy over whole episodes of test tasks falls if modules are never shown or never "
        "mixed",
        published="large drop",
        rows=supports(*VIOLATING),
        statistic=lambda rows: smallest_drop(rows, *VIOLATING),
        passes=above(MIN_DROP),
        control="random supports",
    ),
    reproduces(
        "frequency",
        "The accuracy over whole episodes of test tasks falls if some modules are rare, not if "
        "some are frequent",
        published="rare modules hurt",
        rows=supports("Popular", "Unpopular"),
        statistic=lambda rows: smallest_drop(rows, "Unpopular"),
        passes=all_of(
            above(MIN_DROP),
            on_value(
                f"frequent modules: a difference below {NOISE}",
                lambda measurement: abs(smallest_drop(measurement.rows, "Popular")) < NOISE,
            ),
        ),
        control="frequent modules must do no harm",
    ),
    *(_width_claim(encoding) for encoding in ENCODINGS[1:]),
    NeverFalls(
        "The accuracy over whole episodes of test tasks never falls as width grows, for any "
        "encoding",
        trends_by_width,
        name="never falls with width",
    ),
    NeverFalls(
        "The accuracy over whole episodes of test tasks never falls as train tasks are added",
        trend_by_tasks,
        name="never falls with train tasks",
    ),
    *(correlation_claim(students, "pre1") for students in SETS),
    *(_decoder_claim(encoding) for encoding in ENCODINGS),
    reproduces(
        "law",
        "The train tasks needed for a target accuracy grow as a power below 1 of the number of "
        "all tasks, as modules are added",
        published="sub-exponential growth",
        rows=law_crossings,
        needs=("M", "K", "total", "needed"),
        statistic=power_of_total,
        passes=below(1),
        control="a fixed share of all tasks must predict worse",
        control_fails=share_predicts_worse,
        note=law_note,
    ),
]
FIGURES = [
    custom("episode", lambda final: episode(FAMILIES["full"])),
    curve(
        "trajectory_accuracy",
        against="model.width",
        color="tasks",
        rows=lambda final: seen_and_test(sweep_of_widths(final)),
        name="width",
        title="Accuracy over whole episodes by width (25% of the tasks held out)",
        y_title=SCORE_TITLE,
        log_x=True,
    ),
    curve(
        "trajectory_accuracy",
        against="num_train",
        color="tasks",
        rows=lambda final: seen_and_test(sweep_of_fractions(final)),
        name="data",
        title="Accuracy over whole episodes by the number of train tasks",
        y_title=SCORE_TITLE,
        log_x=True,
    ),
    bars(
        SCORE,
        against="trained on",
        rows=sweep_of_supports,
        name="supports",
        title="Accuracy by training support; 25% of the tasks held out, or more if needed",
        x_title="support (train tasks)",
        y_title=f"{SCORE_TITLE}, test tasks",
    ),
    curve(
        SCORE,
        against="model.width",
        color="encoding",
        rows=sweep_of_encodings,
        name="encodings",
        title="Accuracy over whole episodes by width and encoding",
        y_title=f"{SCORE_TITLE}, test tasks",
        log_x=True,
    ),
    curve(
        SCORE,
        against="num_train",
        color="M",
        rows=where({"is_law": True}),
        name="law",
        title="Accuracy over whole episodes by train tasks and number of modules",
        y_title=f"{SCORE_TITLE}, test tasks",
        log_x=True,
    ),
]
