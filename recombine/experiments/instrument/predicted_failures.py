"""Can one tell from a student's activations alone which unseen combinations it will get wrong?

Claim: where the parts of a combination cannot be read from a network's activations, it fails on that combination: the
paper ranks prompts of image models so (arXiv 2507.07207, section 5). Here on students whose true errors are known.

Each student is trained, then probed with `recombine.probe.Decodability`: ridge probes of its hidden layers for the
module weights, fitted on train tasks. Unseen tasks are ranked by how badly their intended weights are read, at the
layer that reads best in cross-validation over train tasks, or from all layers joined into one. That is compared with
the true error, task by task, within each student. The baseline looks at no activation: how rare the task's pairs of
modules are among train tasks. The control is the same probe, asked for the weights of another task. A task counts as
failed where it is worse than 95% of the student's train tasks; probabilities of that are calibrated on train tasks, or
on a fifth of the unseen ones.

Command:  recombine run predicted_failures --scale small
Runtime:  5 minutes on 2 cores; full: not yet run.
Expected: a rank correlation above .1, better than the baseline's; none for the control.
Measured: small (2026-11-16, 3 seeds, 30 students): it predicts where there is something to predict. Students that do
          not generalise: rank correlation .49 (.45 to .57), from all layers at once .55; on the hyperteacher .22 with
          half of the tasks held out, .67 with 90% (all layers: .26 and .69). Those that generalise, whose unseen tasks
          are hardly worse than others: .04 (.01 to .07), with them all of the preference grid: -.09 (-.17 to .00).
          Controls .03 and .05. Counting does as well as the best read layer without looking at the student (gain .03,
          -.02 to .06), not as well as all layers (hyperteacher: gain .11, .07 to .14). Probabilities that are
          calibrated on train tasks are off by .35 (.33 to .38), since what was trained on fails less at the same
          reading error; on a fifth of the unseen tasks, by .09 (.07 to .13). The best read layer is always the first.
"""

from typing import Any

import jax
import numpy as np
import pandas as pd

from recombine.basics.random_streams import generator
from recombine.experiments import claim as ledger
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.families.preference_grid import PreferenceGrid
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key
from recombine.parts.recipes.fast import EARLIER_DEFAULT, EARLIER_FAST, Fast
from recombine.reporting import figure
from recombine.sweeps.run import Run
from recombine.training.fitted import Fitted
from recombine.training.task_sampler import Laboratory, Setting, make_shared, make_split

TITLE = "Which unseen combinations will a student get wrong? Predicted from its activations"
RECIPE = "Fast(learning_rate=0.04, weight_decay=0.05, vector_rate=1), 1,500 steps"  # of the committed rows
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
FAMILIES = dict.fromkeys(SIZES["full"], "family")
DRAWS = {
    "Hyperteacher": 4,
    "PreferenceGrid": 16,
}  # of a task's weights, with the points of an evaluation each
WORKS = 0.9  # of its own seen score, on unseen tasks: what such a student does we call generalising
WORST = 0.05  # of a student's train tasks are worse than what counts as failed
JUDGED = 0.2  # of the unseen tasks, whose outcomes are told
OTHER = "probes of another task's modules"
CALIBRATED = ("train tasks", "a fifth of the unseen tasks")
NONE = 0.1  # rank correlation that counts as none
OFF = 0.1  # calibration error that counts as calibrated
PREDICTORS = {
    "decoding": "read from the best read layer",
    "whole": "read from all layers at once",
    "support": "rare pairs (no activations)",
    "control": "control: read as another task",
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
    full: dict[str, Any] = {"num_steps": 5000, "num_tasks": 512, "recipe": EARLIER_FAST}
    acting = Fast(0.03, 0.05, vector_rate=1.0)
    compact = PreferenceGrid(num_modules=8, num_features=8, observation="compact")
    settings: dict[tuple[str, str], dict[str, Any]] = {
        ("tiny", "Hyperteacher"): {
            "family": Hyperteacher(5, 2, 4, 4, 4),
            "num_steps": 20,
            "num_tasks": 8,
        },
        ("tiny", "PreferenceGrid"): {
            "family": PreferenceGrid(5, 2, observation="compact"),
            "num_steps": 8,
        },
        ("small", "Hyperteacher"): {
            "family": Hyperteacher(10),
            "num_steps": 1500,
            "recipe": EARLIER_DEFAULT,
        },
        ("small", "PreferenceGrid"): {"family": compact, "num_steps": 1500, "recipe": acting},
        ("full", "Hyperteacher"): full | {"family": Hyperteacher(), "num_points": 4},
        ("full", "PreferenceGrid"): full
        | {"family": PreferenceGrid(num_features=16), "recipe": acting},
    }
    depth = {"tiny": 2, "small": 3, "full": 4}[scale] if family == "Hyperteacher" else 2
    shared: Any = {"model": MLP((width,) * depth), "diagnostics": (), "num_evals": 1}
    return Run(frac_test=frac_test, seed=seed, **shared, **settings[scale, family])


def measure(scale: str, **cell: Any) -> dict[str, Any]:
    """Train one student, and compare the errors that its activations predict with the true ones."""
    from recombine.training.scheduler import fit

    seen = Observed(fit(student(scale, **cell)), DRAWS[cell["family"]])
    train, test, error = seen.part == 1, seen.part == 2, seen.error
    failed = error > np.quantile(error[train], 1 - WORST)
    rng = generator(cell["seed"], "predicted_failures")
    row: dict[str, Any] = {"seen": 1 - error[train].mean(), "test": 1 - error[test].mean()}
    row |= {"num_test": int(test.sum()), "failed": float(failed[test].mean())}
    probe = seen.probe(seen.weights, test, failed)
    scores = probe.scores_[probe.scores_["layer"] == probe.layer_].groupby("split")["score"].mean()
    row |= {"layer": probe.layer_, "read/seen": scores["seen"], "read/test": scores["held out"]}
    row |= seen.compare(probe, seen.weights, test, error, "decoding")
    row |= seen.compare(probe, seen.weights, test, failed, "train")
    row |= seen.compare_support(test, error, "support")
    mixed = seen.mixed(rng)
    row |= seen.compare(seen.probe(mixed, test, None), mixed, test, error, "control")
    row |= seen.compare(
        seen.probe(seen.weights, test, None, "all"), seen.weights, test, error, "whole"
    )
    row |= seen.compare(seen.probe(mixed, test, None, "all"), mixed, test, error, "whole control")
    left = test.copy()
    left[rng.choice(np.flatnonzero(test), max(1, round(JUDGED * test.sum())), replace=False)] = (
        False
    )
    judged = seen.probe(seen.weights, left, np.where(test, failed, np.nan))
    return row | seen.compare(judged, seen.weights, left, failed, "judged")


class Observed:
    """What a student makes of all tasks: its activations at fresh samples, and its true error on each task."""

    def __init__(self, fitted: Fitted, draws: int):
        run, self.table = fitted.run, fitted.run.family.tasks()
        split, _ = make_split(run, run.family.modules(self.table))
        lab = Laboratory(
            run, make_shared(run.family), split, Setting(fitted.world, fitted.encoding), fitted.net
        )

        @jax.jit
        def look(key, rows):
            found = lab.look(key, rows)
            score = jax.vmap(run.family.score)(found.prediction, found.batch.y)
            kept = {
                name: layer
                for name, layer in found.activations.items()
                if name.startswith("hidden")
            }
            return found.batch.task, score.get("r2", score.get("accuracy")), kept

        task, score, layers = look(new_key(run.seed), self.table.repeat(draws, axis=0))
        self.error = 1 - np.asarray(score).reshape(-1, draws).mean(axis=1)
        order, train = np.asarray(split.order), int(split.num_train)
        self.part = np.zeros(len(self.table), int)
        self.part[order[:train]], self.part[order[train : train + int(split.num_test)]] = 1, 2
        self.samples = draws * run.num_eval_points  # of each task
        self.number = np.arange(len(self.table)).repeat(self.samples)
        self.layers = {
            name: np.asarray(layer).reshape(len(self.number), -1)
            for name, layer in sorted(layers.items())
        }
        self.weights = np.asarray(task).repeat(run.num_eval_points, axis=0)

    def mixed(self, rng: np.random.Generator) -> np.ndarray:
        """Weights that are those of another task of the same part."""
        partner = np.arange(len(self.table))
        for part in (1, 2):
            ring = rng.permutation(np.flatnonzero(self.part == part))
            partner[ring] = np.roll(ring, 1)
        return self.weights.reshape(len(self.table), self.samples, -1)[partner].reshape(
            self.weights.shape
        )

    def probe(
        self, weights: np.ndarray, held: np.ndarray, outcomes: np.ndarray | None, by: Any = "best"
    ) -> Any:
        """Probes that are fitted on all tasks but those held out; tasks are read by the best layer, or by all."""
        from recombine.probe import Decodability

        told = None if outcomes is None else outcomes[self.number]
        return Decodability(layers=by).fit(
            self.layers, weights, self.number, held[self.number], told
        )

    def compare(
        self, probe: Any, weights: np.ndarray, tasks: np.ndarray, truth: np.ndarray, name: str
    ) -> Any:
        """How well a probe ranks these tasks."""
        rows = tasks[self.number]
        new = {name: layer[rows] for name, layer in self.layers.items()}
        ranking = probe.rank(weights[rows], new, self.number[rows])
        return _compared(ranking, truth, name)

    def compare_support(self, tasks: np.ndarray, truth: np.ndarray, name: str) -> Any:
        """How well the rarity of their pairs of modules among train tasks ranks these tasks."""
        from recombine.probe.failure import rarity

        table = pd.DataFrame(self.table)
        rare = rarity(table[tasks], table[self.part == 1])
        ranking = {
            "combination": np.flatnonzero(tasks).astype(str),
            "error": rare,
            "probability": np.nan,
        }
        return _compared(pd.DataFrame(ranking), truth, name)


def _compared(ranking: pd.DataFrame, truth: np.ndarray, name: str) -> dict[str, float]:
    from recombine.probe.failure import evaluate

    found = evaluate(ranking, pd.Series(truth))
    kept = ("calibration_error", "auroc") if truth.dtype == bool else ("spearman", "auroc")
    return {f"{name}/{score}": found[score] for score in kept}


def _last(rows) -> Any:
    last = ledger.last(rows)
    last["student"] = np.where(
        last["test"] >= WORKS * last["seen"], "generalises", "does not generalise"
    )
    return last


def _mean(column: str, minus: str | None = None) -> Any:
    """The mean over students of a column, or of its difference from another; NaN without students."""
    return lambda frame: float((frame[column] - (frame[minus] if minus else 0)).mean())


def summary(rows) -> dict[str, float]:
    """Mean rank correlations with the true error, by family and by whether the students generalise."""
    groups = (
        _last(rows)
        .groupby(["family", "student"])[[f"{name}/spearman" for name in PREDICTORS]]
        .mean()
    )
    return {
        f"{family}, {kind}: {name.removesuffix('/spearman')}": float(value)
        for (family, kind), means in groups.iterrows()
        for name, value in means.items()
    }


def figures(rows) -> dict[str, Any]:
    """Rank correlations by held-out fraction, and how far probabilities are off."""
    last = _last(rows)
    parts = [
        last.assign(predictor=told, found=last[f"{name}/spearman"])
        for name, told in PREDICTORS.items()
    ]
    whole, drawn = pd.concat(parts, ignore_index=True), {}
    for family, frame in whole.groupby("family"):
        drawn[f"rank-{family}"] = figure.lines(
            frame.assign(held=frame["frac_test"].map("{:.0%}".format)),
            "held",
            "found",
            "predictor",
            title=f"{family}: what predicts the error of unseen tasks",
            x_title="tasks held out",
            y_title="rank correlation with the true error",
        )
    calibrated = {"train": "on train tasks", "judged": "on a fifth of the unseen tasks"}
    parts = [
        last.assign(by=told, off=last[f"{name}/calibration_error"])
        for name, told in calibrated.items()
    ]
    drawn["calibration"] = figure.bars(
        pd.concat(parts, ignore_index=True).assign(
            held=lambda frame: frame["frac_test"].map("{:.0%}".format)
        ),
        "held",
        "off",
        "by",
        title="How far the probability of a failure is off, by what it was calibrated on",
        x_title="tasks held out",
        y_title="calibration error",
    )
    return drawn


def claims(rows) -> list[ledger.Claim]:
    """Rankings better than chance and than counting, the control, and whether probabilities can be believed."""
    last = None if rows is None else _last(rows)
    kinds = {"does not generalise": "student", "generalises": "student"}
    mine = {
        name: None if last is None else last[last[of] == name]
        for name, of in (FAMILIES | kinds).items()
    }
    found = []
    for name in mine:
        students = f"{name} students" if name in FAMILIES else f"a student that {name}"
        statement = f"{students}: unseen tasks whose modules are read badly have the larger errors (rank correlation)"
        published = "prompts of image models: decodability goes with success"
        about = {"source": SOURCE, "published": published, "control": OTHER}
        found.append(
            _judged(
                mine[name], "decoding", None, _above(NONE), name=name, statement=statement, **about
            )
        )
    for by, who, told in (
        ("decoding", "", "activations rank"),
        ("whole", ", all layers", "all layers at once rank"),
    ):
        for name in FAMILIES:
            statement = (
                f"{name}: {told} unseen tasks better than how rare their pairs are in training"
            )
            about = {
                "name": f"{name}{who}, beyond counting",
                "control": "the baseline sees no activation",
            }
            found.append(
                _judged(mine[name], by, "support", _above(0), statement=statement, **about)
            )
    for name in kinds:
        statement = f"a student that {name}: all layers at once rank unseen tasks better than the best read layer"
        about = {
            "name": f"{name}, all layers",
            "source": "ours, as in `instructions`",
            "control": OTHER,
        }
        found.append(
            _judged(mine[name], "whole", "decoding", _above(0), statement=statement, **about)
        )
    for by, all_of in (("control", ""), ("whole control", ", of all layers at once,")):
        statement = f"probes{all_of} of another task's modules predict nothing (rank correlation)"
        about = {"name": by, "statement": statement, "source": "control"}
        found.append(
            _judged(last, by, None, lambda low, high: low > -NONE and high < NONE, **about)
        )
    return [*found, *(_calibrated(name, last) for name in ("train", "judged"))]


def _above(least: float) -> Any:
    return lambda low, high: low > least


def _judged(
    mine: Any, by: str, minus: str | None, passes: Any, score: str = "spearman", **told: Any
) -> ledger.Claim:
    enough = mine is not None and mine["seed"].nunique() > 1
    statistic = _mean(f"{by}/{score}", minus and f"{minus}/{score}")
    return ledger.judged(
        mine if enough else None,
        statistic,
        passes,
        **({"source": "ours", "published": ledger.OURS} | told),
    )


def _calibrated(by: str, last: Any) -> ledger.Claim:
    told, other = CALIBRATED if by == "train" else CALIBRATED[::-1]
    statement = (
        f"probabilities of a failure that were calibrated on {told} hold on (the other) unseen ones"
    )
    about = {
        "name": f"calibrated on {told}",
        "statement": statement,
        "control": f"calibrated on {other}",
    }
    return _judged(last, by, None, lambda low, high: high < OFF, score="calibration_error", **about)
