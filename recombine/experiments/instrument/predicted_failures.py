"""Which held-out combinations will a student get wrong? Predicted from its activations.

Claim: a network fails on the combinations whose parts cannot be decoded from its activations. The
paper ranks prompts of image models this way (arXiv 2507.07207, section 5). Here it is tested on
students whose true errors are known.

Each student is trained and then probed with `recombine.probe.Decodability`: ridge probes decode the
module weights from its hidden layers. They are fitted on train tasks. Held-out tasks are ranked by
the decoding error of their weights, at the layer with the lowest cross-validated error over train
tasks, or with all layers joined into one. Within each student, this ranking is compared with the
true error of every task.

The baseline uses no activations: how rare the task's pairs of modules are among train tasks. The
control is the same probe with the weights of another task as labels. A task counts as failed if its
error is larger than that of 95% of the student's train tasks. Failure probabilities are calibrated
on train tasks, or on a fifth of the held-out tasks.

Command:  recombine run predicted_failures --scale small
Runtime:  5 minutes on 2 cores; full: not yet run.
Expected: a rank correlation above .1 and above the baseline's; none for the control.
"""

from typing import Any, Literal

import jax
import numpy as np
import pandas as pd

from recombine.basics.random_streams import generator
from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    above,
    below,
    control,
    final_rows,
    hypothesis,
    mean_difference,
    mean_of,
    reproduces,
    where,
    within,
)
from recombine.experiments.plots import bars, curve
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.families.preference_grid import PreferenceGrid
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key
from recombine.parts.recipes.fast import Fast
from recombine.sweeps.run import Run, paper_fast, replace_fields
from recombine.training.fitted import Fitted
from recombine.training.task_sampler import Setting, TaskSampler, make_shared, make_split

TITLE = "Which held-out combinations will a student get wrong? Predicted from its activations"
RECIPE = (  # of the committed rows
    "Fast(learning_rate=0.04, weight_decay=0.1, vector_rate=0.2), 1,500 steps"
)
SOURCE = "arXiv 2507.07207, section 5"
SEEDS = {"tiny": 1, "small": 3, "full": 3}
# Widths and held-out fractions of each family's students.
SIZES = {
    "tiny": {"Hyperteacher": ((8,), (0.5,)), "PreferenceGrid": ((8,), (0.5,))},
    "small": {
        "Hyperteacher": ((32, 128), (0.25, 0.5, 0.75, 0.9)),
        "PreferenceGrid": ((128,), (0.5, 0.9)),
    },
    "full": {
        "Hyperteacher": ((128, 1024), (0.5, 0.75, 0.9, 0.95)),
        "PreferenceGrid": ((1024,), (0.75, 0.95)),
    },
}
FAMILIES = ("Hyperteacher", "PreferenceGrid")
KINDS = {  # the stored name of a kind of student, and the same in a statement
    "does not generalise": "do not generalize",
    "generalises": "generalize",
}
NUM_DRAWS = {"Hyperteacher": 4, "PreferenceGrid": 16}  # draws of a task's weights
MIN_RELATIVE_SCORE = 0.9  # test score / train score of a student that generalizes
FAILURE_LEVEL = 0.05  # the share of train tasks that count as failed
FRAC_KNOWN = 0.2  # of the held-out tasks, whose outcomes calibrate probabilities
NO_CORRELATION = 0.1  # rank correlations up to this count as none
MAX_CALIBRATION_ERROR = 0.1
OTHER_LABELS = "probes fitted on another task's modules"
PREDICTORS = {
    "decoding": "probe of the best layer",
    "whole": "probe of all layers",
    "support": "rare pairs (no activations)",
    "control": "control: probe of another task",
}
CALIBRATIONS = {"train": "train tasks", "judged": "a fifth of the held-out tasks"}
CALIBRATION_CLAIMS = {  # names of claims are keys: they keep their first wording
    "train": "calibrated on train tasks",
    "judged": "calibrated on a fifth of the unseen tasks",
}


def cells(scale: str) -> list[dict[str, Any]]:
    """Family x width x held-out fraction x seed."""
    return [
        {"scale": scale, "family": family, "width": width, "frac_test": fraction, "seed": seed}
        for family, (widths, fractions) in SIZES[scale].items()
        for width in widths
        for fraction in fractions
        for seed in range(SEEDS[scale])
    ]


def student(scale: str, family: str, width: int, frac_test: float, seed: int) -> Run:
    """The run of one student."""
    is_hyperteacher = family == "Hyperteacher"
    base = _hyperteacher_run(scale) if is_hyperteacher else _preference_grid_run(scale)
    depth = {"tiny": 2, "small": 3, "full": 4}[scale] if is_hyperteacher else 2
    fields = {
        "model": MLP((width,) * depth),
        "frac_test": frac_test,
        "seed": seed,
        "diagnostics": (),
        "num_evals": 1,
    }
    return replace_fields(base, fields)


def _hyperteacher_run(scale: str) -> Run:
    if scale == "tiny":
        return Run(Hyperteacher(5, 2, 4, 4, 4), num_steps=20, num_tasks=8)
    if scale == "small":
        return Run(Hyperteacher(10), num_steps=1500)
    return paper_fast()


def _preference_grid_run(scale: str) -> Run:
    recipe = Fast(0.02, 0.05, vector_rate=0.2)
    if scale == "tiny":
        return Run(PreferenceGrid(5, 2, observation="compact"), num_steps=8)
    if scale == "small":
        family = PreferenceGrid(num_modules=8, num_features=8, observation="compact")
        return Run(family, num_steps=1500, recipe=recipe)
    return Run(PreferenceGrid(num_features=16), num_steps=5000, num_tasks=512, recipe=recipe)


def measure(scale: str, **cell: Any) -> dict[str, Any]:
    """Train one student and compare the errors that its activations predict with the true ones."""
    from recombine.training.scheduler import fit

    observed = Observed(fit(student(scale, **cell)), NUM_DRAWS[cell["family"]])
    weights = observed.weights
    error = observed.error
    train = observed.part == 1
    test = observed.part == 2
    failed = error > np.quantile(error[train], 1 - FAILURE_LEVEL)
    rng = generator(cell["seed"], "predicted_failures")
    probe = observed.probe(weights, test, failed)
    best_layer = probe.scores_[probe.scores_["layer"] == probe.layer_]
    scores = best_layer.groupby("split")["score"].mean()
    row: dict[str, Any] = {
        "seen": 1 - error[train].mean(),
        "test": 1 - error[test].mean(),
        "num_test": int(test.sum()),
        "failed": float(failed[test].mean()),
        "layer": probe.layer_,
        "read/seen": scores["seen"],
        "read/test": scores["held out"],
    }
    row |= observed.compare(probe, weights, test, error, "decoding")
    row |= observed.compare(probe, weights, test, failed, "train")
    row |= observed.compare_support(test, error, "support")
    other_weights = observed.weights_of_others(rng)
    probe = observed.probe(other_weights, test)
    row |= observed.compare(probe, other_weights, test, error, "control")
    probe = observed.probe(weights, test, use_layers="all")
    row |= observed.compare(probe, weights, test, error, "whole")
    probe = observed.probe(other_weights, test, use_layers="all")
    row |= observed.compare(probe, other_weights, test, error, "whole control")
    num_known = max(1, round(FRAC_KNOWN * test.sum()))
    unknown = test.copy()
    unknown[rng.choice(np.flatnonzero(test), num_known, replace=False)] = False
    probe = observed.probe(weights, unknown, np.where(test, failed, np.nan))
    return row | observed.compare(probe, weights, unknown, failed, "judged")


class Observed:
    """The activations of a student on new samples of all tasks, and its true error on each task.

    Samples are in the order of tasks; `number` is the task of every sample. `part` is 1 for train
    tasks and 2 for held-out tasks.
    """

    def __init__(self, fitted: Fitted, num_draws: int):
        run = fitted.run
        self.table = run.family.tasks()
        split, _ = make_split(run, run.family.modules(self.table))
        setting = Setting(fitted.world, fitted.encoding)
        sampler = TaskSampler(run, make_shared(run.family), split, setting, fitted.net)

        @jax.jit
        def look(key, tasks):
            seen = sampler.look(key, tasks)
            score = jax.vmap(run.family.score)(seen.prediction, seen.batch.y)
            activations = seen.activations.items()
            hidden = {name: layer for name, layer in activations if name.startswith("hidden")}
            return seen.batch.task, score.get("r2", score.get("accuracy")), hidden

        task, score, layers = look(new_key(run.seed), self.table.repeat(num_draws, axis=0))
        self.error = 1 - np.asarray(score).reshape(-1, num_draws).mean(axis=1)
        order = np.asarray(split.order)
        num_train = int(split.num_train)
        self.part = np.zeros(len(self.table), int)
        self.part[order[:num_train]] = 1
        self.part[order[num_train : num_train + int(split.num_test)]] = 2
        self.samples = num_draws * run.num_eval_points  # per task
        self.number = np.arange(len(self.table)).repeat(self.samples)
        self.layers = {
            name: np.asarray(layer).reshape(len(self.number), -1)
            for name, layer in sorted(layers.items())
        }
        self.weights = np.asarray(task).repeat(run.num_eval_points, axis=0)

    def weights_of_others(self, rng: np.random.Generator) -> np.ndarray:
        """For every sample the weights of another task of the same part of the split."""
        partner = np.arange(len(self.table))
        for part in (1, 2):
            shuffled = rng.permutation(np.flatnonzero(self.part == part))
            partner[shuffled] = np.roll(shuffled, 1)
        by_task = self.weights.reshape(len(self.table), self.samples, -1)
        return by_task[partner].reshape(self.weights.shape)

    def probe(
        self,
        weights: np.ndarray,
        held_out: np.ndarray,
        outcomes: np.ndarray | None = None,
        use_layers: Literal["best", "all"] = "best",
    ) -> Any:
        """Probes of the best layer, or of all layers, fitted on all tasks but those held out.

        `outcomes` says which tasks failed, to calibrate probabilities; NaN where it is unknown.
        """
        from recombine.probe import Decodability

        by_sample = None if outcomes is None else outcomes[self.number]
        return Decodability("ridge", layers=use_layers, edition=1).fit(
            self.layers, weights, self.number, held_out[self.number], by_sample
        )

    def compare(
        self,
        probe: Any,
        weights: np.ndarray,
        tasks: np.ndarray,
        truth: np.ndarray,
        name: str,
    ) -> dict[str, float]:
        """How well a probe ranks these tasks."""
        is_compared = tasks[self.number]
        layers = {layer: rows[is_compared] for layer, rows in self.layers.items()}
        ranking = probe.rank(weights[is_compared], layers, self.number[is_compared])
        return _scores(ranking, truth, name)

    def compare_support(self, tasks: np.ndarray, truth: np.ndarray, name: str) -> dict[str, float]:
        """How well these tasks are ranked by the rarity of their pairs among train tasks."""
        from recombine.probe.failure_ranking import rarity

        table = pd.DataFrame(self.table)
        ranking = {
            "combination": np.flatnonzero(tasks).astype(str),
            "error": rarity(table[tasks], table[self.part == 1]),
            "probability": np.nan,
        }
        return _scores(pd.DataFrame(ranking), truth, name)


def _scores(ranking: pd.DataFrame, truth: np.ndarray, name: str) -> dict[str, float]:
    """Scores of a ranking: `truth` is the error of every task, or whether it failed."""
    from recombine.probe.failure_ranking import evaluate

    scores = evaluate(ranking, pd.Series(truth))
    wanted = ("calibration_error", "auroc") if truth.dtype == bool else ("spearman", "auroc")
    return {f"{name}/{score}": scores[score] for score in wanted}


def prepare(rows: Frame) -> Frame:
    """The final rows, with the kind of student and the held-out fraction in words."""
    final = final_rows(rows)
    generalizes = final["test"] >= MIN_RELATIVE_SCORE * final["seen"]
    final["student"] = np.where(generalizes, "generalises", "does not generalise")
    final["held out"] = final["frac_test"].map("{:.0%}".format)
    return final


def summary(rows: Frame) -> dict[str, float]:
    """Mean rank correlations with the true error, by family and kind of student."""
    columns = [f"{name}/spearman" for name in PREDICTORS]
    groups = prepare(rows).groupby(["family", "student"])[columns].mean()
    return {
        f"{family}, {kind}: {name}": float(means[f"{name}/spearman"])
        for (family, kind), means in groups.iterrows()
        for name in PREDICTORS
    }


def by_predictor(final: Frame) -> Frame:
    """One row per student and predictor, with its rank correlation with the true error."""
    names = {f"{name}/spearman": label for name, label in PREDICTORS.items()}
    columns = ["run", "family", "held out"]
    long = final.melt(columns, list(names), "predictor", "rank correlation")
    return long.assign(predictor=long["predictor"].map(names))


def by_calibration(final: Frame) -> Frame:
    """One row per student and calibration set, with the calibration error."""
    names = {f"{name}/calibration_error": f"on {label}" for name, label in CALIBRATIONS.items()}
    long = final.melt(["run", "held out"], list(names), "calibrated", "calibration error")
    return long.assign(calibrated=long["calibrated"].map(names))


def _decodability_predicts(name: str, column: str, students: str) -> DeclaredClaim:
    return reproduces(
        name,
        f"{students}: held-out tasks whose modules are poorly decodable have larger errors "
        "(rank correlation)",
        published="image models: decodability predicts success",
        repeats="image_concepts: ranked",
        statistic=mean_of("decoding/spearman"),
        passes=above(NO_CORRELATION),
        rows=where({column: name}),
        needs=("decoding/spearman",),
        control=OTHER_LABELS,
    )


def _beats_counting(name: str, family: str, predictor: str) -> DeclaredClaim:
    columns = (f"{predictor}/spearman", "support/spearman")
    return hypothesis(
        name,
        f"{family}: a {PREDICTORS[predictor]} ranks held-out tasks by error better than the rarity "
        "of their pairs in training (difference in rank correlation)",
        source="ours",
        statistic=mean_difference(*columns),
        passes=above(0),
        rows=where({"family": family}),
        needs=columns,
        control="the baseline uses no activations",
    )


def _all_layers_beat_the_best(kind: str) -> DeclaredClaim:
    columns = ("whole/spearman", "decoding/spearman")
    return hypothesis(
        f"{kind}, all layers",
        f"Students that {KINDS[kind]}: a probe of all layers ranks held-out tasks by error better "
        "than a probe of the best layer (difference in rank correlation)",
        source="ours, as in `instructions`",
        statistic=mean_difference(*columns),
        passes=above(0),
        rows=where({"student": kind}),
        needs=columns,
        control=OTHER_LABELS,
    )


def _predicts_nothing(name: str, probe: str) -> DeclaredClaim:
    return control(
        name,
        f"A {probe} that is fitted on another task's modules predicts nothing (rank correlation)",
        statistic=mean_of(f"{name}/spearman"),
        passes=within(-NO_CORRELATION, NO_CORRELATION),
        needs=(f"{name}/spearman",),
    )


def _is_calibrated(name: str, other: str) -> DeclaredClaim:
    column = f"{name}/calibration_error"
    return hypothesis(
        CALIBRATION_CLAIMS[name],
        f"Failure probabilities that are calibrated on {CALIBRATIONS[name]} are correct on the "
        f"other held-out tasks (calibration error below {MAX_CALIBRATION_ERROR:g})",
        source="ours",
        statistic=mean_of(column),
        passes=below(MAX_CALIBRATION_ERROR),
        needs=(column,),
        control=f"calibrated on {CALIBRATIONS[other]}",
    )


CLAIMS = [
    *(_decodability_predicts(family, "family", f"{family} students") for family in FAMILIES),
    *(_decodability_predicts(kind, "student", f"Students that {KINDS[kind]}") for kind in KINDS),
    *(_beats_counting(f"{family}, beyond counting", family, "decoding") for family in FAMILIES),
    *(
        _beats_counting(f"{family}, all layers, beyond counting", family, "whole")
        for family in FAMILIES
    ),
    *(_all_layers_beat_the_best(kind) for kind in KINDS),
    _predicts_nothing("control", "probe of the best layer"),
    _predicts_nothing("whole control", "probe of all layers"),
    _is_calibrated("train", other="judged"),
    _is_calibrated("judged", other="train"),
]
FIGURES = [
    curve(
        "rank correlation",
        against="held out",
        color="predictor",
        rows=by_predictor,
        each="family",
        name="rank-{}",
        title="{}: what predicts the error on held-out tasks",
        x_title="tasks held out",
        y_title="rank correlation with the true error",
    ),
    bars(
        "calibration error",
        against="held out",
        color="calibrated",
        rows=by_calibration,
        name="calibration",
        title="Calibration error of failure probabilities, by calibration tasks",
        x_title="tasks held out",
        y_title="calibration error",
    ),
]
