"""Compute numbers of the record again, from the tables alone, and compare them with the record's.

This script shares no code with the package: it reads the Parquet files with pandas and writes each
statistic again from its statement. Numbers that agree were not changed by a mistake in the code of
claims.

    recombine claims --json > claims.json
    python benchmarks/recompute.py claims.json [FOLDER]
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet  # the engine of pandas; here for the list of shown runs
from scipy import stats

RESULTS = Path(__file__).parent.parent / "docs" / "results"
FINE = 0.1  # the largest eps at which `theorem_31` measures exponents
TOLERANCE = 1e-5  # relative; scores are stored as float32, and the record computes with them
Numbers = dict[str, float]


def read(folder: Path, name: str) -> pd.DataFrame:
    """The last evaluation of every run that the record shows."""
    path = folder / f"{name}.parquet"
    rows = pd.read_parquet(path)
    document = json.loads(parquet.read_schema(path).metadata[b"recombine"])
    if "shown" in document:
        rows = rows[rows["run"].isin(document["shown"])]
    if "step" in rows:
        rows = rows[rows["step"] == rows.groupby("run")["step"].transform("max")]
    rows = rows.astype(dict.fromkeys(rows.select_dtypes("float32"), "float64")).copy()
    if "model.widths" in rows:
        layers = [str(text).split("x") for text in rows["model.widths"]]
        rows = rows.assign(
            width=[_number(sizes[0]) for sizes in layers], depth=list(map(len, layers))
        )
    return rows


def _number(text: str) -> float:
    return float(text) if text.isdigit() else math.nan


def tasks_needed(tasks: list[float], scores: list[float], target: float) -> float:
    """Where a curve last rises above a target: linear in the logarithm of the tasks."""
    if not scores[-1] >= target:
        return math.inf
    for i in range(len(tasks) - 1, 0, -1):
        if scores[i - 1] < target:
            share = (target - scores[i - 1]) / (scores[i] - scores[i - 1])
            return math.exp(np.log(tasks[i - 1]) + share * np.log(tasks[i] / tasks[i - 1]))
    return tasks[0]


def needed_by(curve: pd.Series, target: float) -> float:
    """As `tasks_needed`, for scores with the tasks as their index."""
    curve = curve.sort_index()
    return tasks_needed(list(curve.index), list(curve), target)


def slope(x: pd.Series, y: pd.Series) -> float:
    """The slope of a least-squares line."""
    return float(stats.linregress(np.asarray(x, float), np.asarray(y, float)).slope)


def smallest_gain(rows: pd.DataFrame, size: str, lines: str) -> float:
    """The mean score at the largest size minus that at the smallest: the smallest of all lines."""
    gains = []
    for _, line in rows.groupby(lines):
        means = line.groupby(size)["test/r2"].mean()
        gains.append(means[means.index.max()] - means[means.index.min()])
    return min(gains)


def encodings(folder: Path) -> Numbers:
    """Scores and decoders of the six encodings at the paper's size."""
    rows = read(folder, "encodings")
    rows = rows[rows["recipe.learning_rate"] > 0]
    scale, keep_zero = rows.get("encoding.scale"), rows.get("encoding.keep_zero")
    is_variant = (rows["encoding"] == "InvertibleNN") & (scale == 1.0)
    is_variant |= (rows["encoding"] == "IntervalShuffle") & keep_zero.eq(True)
    columns = {
        "R2": "test/r2",
        "task decoder": "LinearDecodability-paper/pre2/test/r2",
        "input decoder": "LinearDecodability-paper/code/test/r2",
    }
    failed = rows["LinearDecodability-paper/pre2/seen/r2"] < -5
    rows[columns["task decoder"]] = rows[columns["task decoder"]].mask(failed)
    numbers = {}
    for encoding, own in rows[~is_variant].groupby("encoding"):
        for name, column in columns.items():
            numbers[f"{encoding}: {name}"] = own[column].mean()
        numbers[f"{encoding}: generalizes"] = (own["test/r2"] / own["seen/r2"]).mean()
    return numbers


def scaling_width(folder: Path) -> Numbers:
    """The gain from width 128 to 1024, and that to 2048 on common seeds."""
    rows = read(folder, "scaling_width")
    numbers = {}
    judged = rows[rows["width"] <= 1024]
    for encoding, own in judged.groupby("encoding"):
        numbers[f"{encoding}: width"] = smallest_gain(own, "width", "depth")
    widest = rows[rows["width"] == 2048]
    common = rows[rows["seed"].isin(widest["seed"]) & (rows["width"] >= 1024)]
    gains = [smallest_gain(own, "width", "depth") for _, own in common.groupby("encoding")]
    return numbers | {"2048": min(gains)}


def scaling_depth(folder: Path) -> Numbers:
    """The gain from one hidden layer to the most."""
    rows = read(folder, "scaling_depth")
    return {
        f"{encoding}: depth": smallest_gain(own, "depth", "width")
        for encoding, own in rows.groupby("encoding")
    }


def scaling_data(folder: Path) -> Numbers:
    """The gain by more tasks, the largest loss, and the gain by more modules at equal fractions."""
    rows = read(folder, "scaling_data")
    rows["family"] = list(zip(rows["family.num_hot"], rows["family.num_modules"], strict=True))
    gains, losses = [], []
    for _, own in rows.groupby("family"):
        means = list(own.groupby("support/num_train")["test/r2"].mean())
        gains.append(means[-1] - means[0])
        losses += [before - after for before, after in itertools.combinations(means, 2)]
    by_modules = []
    num_modules = rows["family.num_modules"].nunique()
    for _, own in rows.groupby("family.num_hot"):
        families = own.groupby("frac_test")["family.num_modules"].nunique()
        largest = families.index[families == num_modules].max()
        shared = own[own["frac_test"] == largest]
        by_modules.append(smallest_gain(shared, "family.num_modules", "frac_test"))
    return {"tasks": np.mean(gains), "never falls": max(losses), "number": min(by_modules)}


def support_conditions(folder: Path) -> Numbers:
    """What students lose by an absent module, by unmixed groups, and by unspanned pairs."""
    rows = read(folder, "support_conditions")
    rows = rows[rows["recipe.learning_rate"] > 0]
    score = rows["test/r2"]
    support, many = rows["support"], rows["frac_test"] < 0.5
    triples = rows["family.num_hot"] == 3
    pairs = support == "Listed"

    def mean(name: str, with_many: bool) -> float:
        return score[triples & (support == name) & (many == with_many)].mean()

    def unspanned(weights: str) -> float:
        of_law = pairs & (rows["family.weights"] == weights)
        spans = rows["support/spanned"].astype(bool)
        return score[of_law & spans].mean() - score[of_law & ~spans].mean()

    return {
        "module missing": mean("Random", True) - mean("MissingModule", True),
        "unmixed, as published": mean("Random", True) - mean("Disconnected", True),
        "unmixed halves": mean("Random", False) - mean("Disconnected", False),
        "balanced": mean("Random", True) - mean("Balanced", True),
        "balanced, fewer": mean("Random", False) - mean("Balanced", False),
        "unspanned, all ones": unspanned("khot"),
        "unspanned, drawn": unspanned("discrete"),
    }


def module_frequency(folder: Path) -> Numbers:
    """What students lose by rare and by frequent modules, against balanced supports."""
    rows = read(folder, "module_frequency")
    balanced = rows[rows["support"] == "Balanced"].groupby("support/num_train")["test/r2"].mean()

    def loss(column: str, value: float) -> float:
        own = rows[(rows["support"] != "Balanced") & (rows[column] == value)]
        return balanced[own["support/num_train"].iloc[0]] - own["test/r2"].mean()

    numbers = rows["support.num_tasks"].dropna()
    rare, common = loss("support.num_tasks", 1), loss("support.num_tasks", numbers.max())
    numbers = {"rare modules": rare, "more of their tasks": rare - common}
    for number in (2, 4, 8):
        numbers[f"{number} popular modules"] = loss("support.num_popular", number)
    return numbers


def decodability(folder: Path) -> Numbers:
    """The squared correlation of test R2 with decodability, where the sets are simple."""
    rows = read(folder, "decodability")
    trained = rows[rows["recipe.learning_rate"] > 0]
    large = trained[trained["model.widths"] == "1024x1024x1024x1024"]
    sweeps = {
        "data, paper's recipe": large[large["recipe"] == "Paper"],
        "data": _data_sweep(large, "Identity"),
        "IntervalShuffle": _data_sweep(large, "IntervalShuffle"),
        "FewShot": _data_sweep(large, "FewShot"),
    }
    numbers = {}
    for name, own in sweeps.items():
        for layer in ("pre1", "pre2", "pre3"):
            column = f"LinearDecodability-paper/{layer}/test/r2"
            pairs = own[["test/r2", column]].dropna().clip(lower=0)
            numbers[f"{name}: {layer}"] = stats.pearsonr(pairs["test/r2"], pairs[column])[0] ** 2
    return numbers


def _data_sweep(large: pd.DataFrame, encoding: str) -> pd.DataFrame:
    """The students of one encoding that also have the probe with shuffled tasks."""
    is_probed = large["diagnostics"].str.contains("Shuffled")
    return large[is_probed & (large["recipe"] == "Fast") & (large["encoding"] == encoding)]


def information_loss(folder: Path) -> Numbers:
    """How much less is decodable from students that fail, beyond the untrained networks."""
    rows = read(folder, "information_loss")
    is_trained = rows["recipe.learning_rate"] > 0
    scores = rows[is_trained].set_index(["frac_test", "seed"])["test/r2"]
    own = scores.loc[list(zip(rows["frac_test"], rows["seed"], strict=True))].to_numpy()
    fails, generalizes = own < 0.5, own > 0.9
    numbers = {}
    for name, probe in {
        "train tasks": "LinearDecodability",
        "all tasks": "TaskInformation",
    }.items():
        deep = list(rows.filter(regex=rf"^{probe}/(pre|hidden)[1-9]/test/r2$"))
        gaps = [
            (rows.loc[generalizes & of, deep].mean() - rows.loc[fails & of, deep].mean()).mean()
            for of in (is_trained, ~is_trained)
        ]
        numbers[f"lost by those that fail, decoder of {name}"] = gaps[0] - gaps[1]
    hidden = list(rows.filter(regex=r"^LinearDecodability/(pre|hidden)\d/test/r2$"))
    kept = rows.loc[generalizes & is_trained, hidden].mean()
    return numbers | {"kept by those that generalise": kept.min()}


def scaling_law(folder: Path) -> Numbers:
    """The largest power of all tasks with which the tasks needed grow."""
    rows = read(folder, "scaling_law")
    by = ["family.num_hot", "family.num_modules"]
    numbers = {}
    for model, own in rows.groupby("model"):
        powers = []
        for target in (0.9, 0.95, 0.97):
            points = []
            for (num_hot, num_modules), family in own.groupby(by):
                needed = []
                for _, seed in family.groupby("seed"):
                    curve = seed.groupby("support/num_train")["test/r2"].mean()
                    tasks = needed_by(curve, target)
                    needed += [tasks] if curve.index.min() < tasks < math.inf else []
                if len(needed) == own["seed"].nunique():
                    total = sum(math.comb(num_modules, k) for k in range(1, num_hot + 1))
                    points += [(num_hot, total, tasks) for tasks in needed]
            for _, line in pd.DataFrame(points).groupby(0):
                if line[1].nunique() >= 4:
                    powers.append(slope(np.log(line[1]), np.log(line[2])))
        numbers[f"{model}: power"] = max(powers)
    return numbers


def transformer_efficiency(folder: Path) -> Numbers:
    """Tasks that an MLP needs as a multiple of what a transformer needs (medians)."""
    rows = read(folder, "transformer_efficiency")
    numbers = {}
    for family, decay in (("Hyperteacher", 0.0), ("Hyperteacher", 0.05), ("PreferenceGrid", 0.05)):
        score = "r2" if family == "Hyperteacher" else "trajectory_accuracy"
        own = rows[(rows["family"] == family) & (rows["recipe.weight_decay"] == decay)]
        own = own.assign(share=own[f"test/{score}"] / own[f"seen/{score}"])
        own.loc[own[f"seen/{score}"] <= 0.1, "share"] = 0.0
        is_apart = own.get("model.apart", pd.Series(False, own.index)).eq(True)
        mlp, other = own[own["model"] == "MLP"], own[(own["model"] == "Transformer") & ~is_apart]
        key = f"{family.lower()}, transformer, decay {decay:g}"
        of_mlp, of_other = (
            students.groupby("support/num_train")[f"test/{score}"].mean()
            for students in (mlp, other)
        )
        numbers[f"{key}: match"] = np.median(
            [tasks / needed_by(of_other, of_mlp[tasks]) for tasks in of_mlp.index[1:]]
        )
        shares = []
        for seed in sorted(set(mlp["seed"])):
            curves = [
                students[students["seed"] == seed].groupby("support/num_train")["share"].mean()
                for students in (mlp, other)
            ]
            needed = [needed_by(curve, 0.9) for curve in curves]
            shares.append(0.0 if math.isinf(needed[1]) else needed[0] / needed[1])
        numbers[f"{key}: share"] = np.median(shares)
    return numbers


def memorisation(folder: Path) -> Numbers:
    """The largest gap between seen and held-out tasks, and the score on unrelated tasks."""
    rows = read(folder, "memorisation")
    complete = rows.groupby("seed")["run"].nunique()
    rows = rows[rows["seed"].isin(complete.index[complete == complete.max()])]
    by = ["family.num_modules", "width"]
    related = rows[rows["family"] == "Hyperteacher"].groupby(by)[["seen/r2", "test/r2"]].mean()
    gaps = (related["seen/r2"] - related["test/r2"]).groupby("family.num_modules").max()
    unrelated = rows[rows["family"] == "Unrelated"].groupby(by)["test/r2"].mean()
    windows = []
    for _, own in related.groupby("family.num_modules"):
        curves = own.droplevel("family.num_modules")
        fit, generalize = (needed_by(curves[f"{side}/r2"], 0.9) for side in ("seen", "test"))
        windows.append(generalize / fit)
    finite = [window for window in windows if not math.isinf(window)]
    return {
        "control": unrelated.max(),
        "gap": gaps.iloc[-1] - gaps.iloc[0],
        "window": windows[-1] / finite[0],
    }


def theorem_31(folder: Path) -> Numbers:
    """The errors of the networks that were built, and how their size grows."""
    rows = read(folder, "theorem_31")
    counted = rows[rows["kind"] == "count"]
    errors = rows[(rows["kind"] == "attack") & (rows["eps"] > 0)]
    eps = sorted(counted["eps"].unique())
    numbers = {"error": (errors["sup_error"] / errors["eps"]).max()}
    shallow = counted[(counted["construction"] == "shallow") & (counted["where"] == "compact")]
    fine = shallow[shallow["eps"].isin([value for value in eps if value <= FINE])]
    for name, x, line in (("eps", "eps", "num_modules"), ("M", "num_modules", "eps")):
        slopes, sizes = [], []
        for _, own in fine.groupby(["size", "seed", line]):
            if own[x].nunique() > 1:
                slopes.append(slope(np.log2(own[x]), np.log2(own["neurons"])))
                sizes.append(len(own))
        numbers[f"exponent in {name}"] = np.average(slopes, weights=sizes)
    return numbers


def theorem_41(folder: Path) -> Numbers:
    """How many tasks the theorem's decoder recovers beyond its bound."""
    rows = read(folder, "theorem_41")
    checked = rows[rows["check"].astype(bool)]
    gaps = checked["recovery/theorem"] - checked["bound"]
    corrupted = checked["model"].isin(["adversary", "random"])
    students = checked["model"] == "student"
    return {
        "bound, students": gaps[students].min(),
        "bound, corrupted teachers": gaps[corrupted].min(),
    }


def more_modules(folder: Path) -> Numbers:
    """The share of its score that a student keeps with one and two more active modules."""
    rows = read(folder, "more_modules")
    most = rows[rows["frac_test"] == rows["frac_test"].min()]
    numbers = {}
    for num_hot, own in most.groupby("family.num_hot"):
        for more in (1, 2):
            score = own[f"extrapolation/num_hot={num_hot + more}/r2"].mean()
            numbers[f"K={num_hot}, K+{more}"] = score / own["test/r2"].mean()
    return numbers


def preference_scaling(folder: Path) -> Numbers:
    """The gain in accuracy over whole episodes by width and by tasks."""
    rows = read(folder, "preference_scaling")
    score = "test/trajectory_accuracy"
    common = rows["frac_test"].mode()[0]
    widths = rows[(rows["support"] == "Random") & (rows["frac_test"] == common)]
    by_width = widths.groupby("width")[score].mean()
    return {"width": by_width[by_width.index.max()] - by_width[by_width.index.min()]}


EXPERIMENTS: dict[str, Callable[[Path], Numbers]] = {
    function.__name__: function
    for function in (
        encodings,
        scaling_width,
        scaling_depth,
        scaling_data,
        support_conditions,
        module_frequency,
        decodability,
        information_loss,
        scaling_law,
        transformer_efficiency,
        memorisation,
        theorem_31,
        theorem_41,
        more_modules,
        preference_scaling,
    )
}


def compare(claims: list[dict], folder: Path) -> pd.DataFrame:
    """One line per recomputed number of a claim: the record's number, ours, and if they agree."""
    measured = {(claim["experiment"], claim["name"]): claim["measured"] for claim in claims}
    lines = []
    for experiment, function in EXPERIMENTS.items():
        for name, value in function(folder).items():
            record = measured.get((experiment, name))
            if record is not None:
                agrees = math.isclose(value, record, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
                lines.append((experiment, name, record, float(value), agrees))
    columns = ["experiment", "claim", "record", "recomputed", "agrees"]
    return pd.DataFrame(lines, columns=columns)


def main(claims_file: str, folder: str = str(RESULTS)) -> int:
    """Print the comparison; the exit status is 1 if a number differs."""
    claims = json.loads(Path(claims_file).read_text())["claims"]
    lines = compare(claims, Path(folder))
    print(lines.to_string(index=False))
    num_agreeing = int(lines["agrees"].sum())
    num_experiments = lines["experiment"].nunique()
    print(f"{num_agreeing} of {len(lines)} numbers of {num_experiments} experiments agree")
    return 0 if lines["agrees"].all() else 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
