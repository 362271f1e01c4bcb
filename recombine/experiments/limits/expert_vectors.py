"""Do expert vectors of singular values mix better than low-rank updates?

Claim: fine-tuning only the singular values of a trained network gives expert vectors that can be
mixed at inference, and does better than LoRA (arXiv 2501.06252; the published comparison also
changes the objective, so here all methods have the same loss, layers and steps).

A student is trained on tasks without the last four modules. For each of them an expert is trained
on combinations of this module with known ones. A mixture of the experts of two new modules must
then solve tasks with both, which no expert has seen. Its change of the student's weights is a
weighted sum of those of the experts. (For `SVF, sum kept` it is a sum of the parameters p, as
published.) The weights of the sum are
- `mean`: one half each,
- `least squares`: fitted on 10 examples, as if predictions were linear in the weights,
- `cross-entropy`: found on the same examples by the cross-entropy method, as published.

Methods, on all weight matrices:
- `SVF`: a multiplier for each singular value,
- `SVF, sum kept`: as published, multipliers sigmoid(p), rescaled so that the sum of singular values
  stays. The overall scale cannot be learned,
- `LoRA, matched`: a rank-one update with a fixed random input direction; for each layer as many
  parameters as it has outputs,
- `LoRA`: a rank-one update, with about twice as many parameters,
- `full`: all weights.
Comparisons: the student before any expert (`base`), and a student that is trained on all tasks
except those with two new modules (`joint`). Control: the experts' vectors with their entries
permuted within each layer must fall to the base.

Command:  recombine run expert_vectors --scale small
Runtime:  tiny: 20 to 50 seconds of CPU time; small and full were not measured.
Expected: open. Passes if a mixture of SVF experts is better than one of LoRA experts by .1, and has
          at least 70% of the R2 of the joint student.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from recombine.experiments import claim
from recombine.experiments.claim import Frame, where
from recombine.experiments.limits import _adaptation, _subnetworks
from recombine.experiments.limits._students import trained
from recombine.experiments.plots import bars
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key, stream
from recombine.parts.recipes.fast import Fast
from recombine.parts.supports.listed import Listed
from recombine.sweeps.run import Run

TITLE = "Do expert vectors of singular values mix?"
SOURCE = "arXiv 2501.06252"
NUM_NEW = 4  # modules without which the student is trained
SVF, SVF_KEPT, LORA_MATCHED, LORA, FULL = "SVF", "SVF, sum kept", "LoRA, matched", "LoRA", "full"
METHODS = (SVF, SVF_KEPT, LORA_MATCHED, LORA, FULL)
MIXTURES = ("mean", "least squares", "cross-entropy")
MIN_ADVANTAGE = 0.1
MIN_SHARE = 0.7
MAX_PERMUTED_GAIN = 0.05  # of permuted vectors over the base
MIN_R2 = -1.0  # a worse mixture counts as this, so that no single one decides a mean
NUM_SHOTS = 10
POPULATION, NUM_ELITES, NUM_ROUNDS = 32, 6, 10  # of the cross-entropy method
FIRST_SIGMA = 0.5
SEEDS = {"tiny": 3, "small": 3, "full": 8}
SELECTION_SEED = 1000
RATES = (0.1, 0.03, 0.01, 0.003)  # of Adam, selected for each method on another seed
RUNS: dict[str, Run] = {
    "tiny": Run(
        Hyperteacher(6, 2, 3, 3, 3),
        model=MLP((16, 16)),
        num_steps=50,
        num_evals=1,
        diagnostics=(),
    ),
    "small": Run(Hyperteacher(9, 3, 4, 4, 4), model=MLP((64, 64)), num_evals=1, diagnostics=()),
    "full": Run(
        model=MLP((512, 512, 512)),
        recipe=Fast(0.02, 0.05, vector_rate=0.1),
        num_steps=8000,
        num_evals=1,
        num_tasks=512,
        num_points=4,
        diagnostics=(),
    ),
}
STEPS = {"tiny": 20, "small": 500, "full": 5000}  # of an expert


def cells(scale: str) -> list[dict[str, Any]]:
    """One cell for each method. Its rows are those of all seeds and pairs of new modules.

    At tiny scale there are only two methods, because compilation takes most of the time.
    """
    methods = (SVF, LORA) if scale == "tiny" else METHODS
    return [{"scale": scale, "method": method} for method in methods]


def student_run(scale: str, seed: int, joint: bool) -> Run:
    """The base student, which never sees new modules, or the one that never sees two at once."""
    run = RUNS[scale]
    table = run.family.tasks()
    num_new = (table[:, -NUM_NEW:] > 0).sum(axis=1)
    train = table[num_new <= (1 if joint else 0)]
    support = Listed(_combinations(train), _combinations(table[num_new == 2]))
    return dataclasses.replace(run, support=support, seed=seed)


def _combinations(rows: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(np.flatnonzero(row).tolist()) for row in rows)


class Method(NamedTuple):
    """A parametrization of a network's weights: all parameters are 0 for the network itself."""

    zeros: Callable[[Any], Any]  # network -> parameters
    net_of: Callable[[Any, Any, Any], Any]  # network, its fixed arrays, parameters -> network
    fixed: Callable[[Any, Any], Any]  # network, key -> arrays that are not trained


def _svd(net: Any, _: Any) -> Any:
    return [jnp.linalg.svd(weight, full_matrices=False) for weight in _subnetworks.weights_of(net)]


def _svf_zeros(net: Any) -> Any:
    return [jnp.zeros(min(weight.shape)) for weight in _subnetworks.weights_of(net)]


def _svf_net(net: Any, fixed: Any, params: Any) -> Any:
    weights = [(u * (s * (1 + p))) @ v for (u, s, v), p in zip(fixed, params, strict=True)]
    return _subnetworks.with_weights(net, tuple(weights))


def _kept_net(net: Any, fixed: Any, params: Any) -> Any:
    weights = []
    for (u, s, v), p in zip(fixed, params, strict=True):
        scaled = s * jax.nn.sigmoid(p)
        weights.append((u * (scaled * s.sum() / scaled.sum())) @ v)
    return _subnetworks.with_weights(net, tuple(weights))


def _directions(net: Any, key: Any) -> Any:
    """A random unit vector on the input side of every layer."""
    weights = _subnetworks.weights_of(net)
    keys = jax.random.split(key, len(weights))
    vectors = [
        jax.random.normal(k, (weight.shape[1],)) for k, weight in zip(keys, weights, strict=True)
    ]
    return [vector / jnp.linalg.norm(vector) for vector in vectors]


def _matched_zeros(net: Any) -> Any:
    return [jnp.zeros(weight.shape[0]) for weight in _subnetworks.weights_of(net)]


def _matched_net(net: Any, fixed: Any, params: Any) -> Any:
    layers = zip(_subnetworks.weights_of(net), fixed, params, strict=True)
    return _subnetworks.with_weights(net, tuple(w + jnp.outer(b, a) for w, a, b in layers))


def _lora_zeros(net: Any) -> Any:
    weights = _subnetworks.weights_of(net)
    return [(jnp.zeros(weight.shape[0]), jnp.zeros(weight.shape[1])) for weight in weights]


def _lora_net(net: Any, fixed: Any, params: Any) -> Any:
    layers = zip(_subnetworks.weights_of(net), fixed, params, strict=True)
    weights = tuple(w + jnp.outer(b, first + a) for w, first, (b, a) in layers)
    return _subnetworks.with_weights(net, weights)


def _full_zeros(net: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, net)


def _full_net(net: Any, _: Any, params: Any) -> Any:
    return jax.tree.map(jnp.add, net, params)


MAKE: dict[str, Method] = {
    SVF: Method(_svf_zeros, _svf_net, _svd),
    SVF_KEPT: Method(_svf_zeros, _kept_net, _svd),
    LORA_MATCHED: Method(_matched_zeros, _matched_net, _directions),
    LORA: Method(_lora_zeros, _lora_net, _directions),
    FULL: Method(_full_zeros, _full_net, lambda net, _: None),
}


def num_parameters(method: str, net: Any) -> int:
    """The number of parameters of one expert."""
    return sum(leaf.size for leaf in jax.tree.leaves(MAKE[method].zeros(net)))


def measure(
    scale: str,
    method: str,
    folder: Path,
    show_progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Train experts and mix them: a row for every seed, pair of new modules and way of mixing."""
    seeds = [SELECTION_SEED, *range(SEEDS[scale])]
    show_progress(f"{method}: training students")
    runs = [student_run(scale, seed, joint) for joint in (False, True) for seed in seeds]
    fits = trained(runs, folder)
    base, joint = fits[: len(seeds)], fits[len(seeds) :]
    show_progress(f"{method}: selecting a learning rate")
    scores = [_expert_score(scale, method, rate, base[0]) for rate in RATES]
    rate = RATES[int(np.argmax(scores))]
    rows = []
    for seed, student, joint_student in list(zip(seeds, base, joint, strict=True))[1:]:
        show_progress(f"{method}: experts of seed {seed}")
        about = {"seed": seed, "learning_rate": rate}
        about["parameters"] = num_parameters(method, student.net)
        measured = _measure_student(
            scale, method, student.net, joint_student.net, student.world, rate, seed
        )
        rows += [about | row for row in measured]
    return rows


def _expert_score(scale: str, method: str, rate: float, student: Any) -> float:
    """The mean R2 of a student's experts on the combinations that they were trained on."""
    arguments = (student.net, student.world, jnp.float32(rate), jnp.int32(SELECTION_SEED))
    _, scores, _ = _experts(scale, method, *arguments)
    return float(jnp.nan_to_num(scores, nan=-1e9).mean())


@functools.partial(jax.jit, static_argnums=(0, 1))
def _experts(scale: str, method: str, net: Any, world: Any, rate: Any, seed: Any) -> Any:
    """The parameters of the expert of every new module, their scores, and the fixed arrays."""
    family: Any = RUNS[scale].family
    make = MAKE[method]
    key = jax.random.fold_in(stream(new_key(0), "experts"), seed)
    fixed = make.fixed(net, stream(key, "fixed"))
    known = list(range(family.num_modules - NUM_NEW))
    new = range(family.num_modules - NUM_NEW, family.num_modules)
    rows = jnp.stack([jnp.asarray(_adaptation.rows_with(family, m, known)) for m in new])
    budget = _adaptation.Budget(STEPS[scale], learning_rate=rate)

    def train_expert(rows, key):
        def net_of(params):
            return make.net_of(net, fixed, params)

        key_train, key_score = jax.random.split(key)
        zeros = make.zeros(net)
        params = _adaptation.adapt(family, world, net_of, zeros, rows, key_train, budget)
        return params, _adaptation.score(family, world, net_of(params), key_score, rows)

    keys = jax.random.split(stream(key, "train"), NUM_NEW)
    params, scores = jax.vmap(train_expert)(rows, keys)
    return params, scores, fixed


@functools.partial(jax.jit, static_argnums=(0, 1))
def _pair_scores(
    scale: str,
    method: str,
    nets: tuple[Any, Any],
    world: Any,
    fixed: Any,
    experts: Any,
    rows: Any,
    key: Any,
) -> dict[str, Any]:
    """R2 on tasks with two new modules: of the base, the joint student and each mixture.

    `experts` are the parameters of the two experts, stacked.
    """
    family: Any = RUNS[scale].family
    make = MAKE[method]
    net, joint = nets
    keys = {name: stream(key, name) for name in ("shots", "score", "cem", "order")}

    def mixed(weights, experts):
        if method == SVF_KEPT:  # as published, the parameters p are mixed
            params = jax.tree.map(lambda p: jnp.tensordot(weights, p, 1), experts)
            return make.net_of(net, fixed, params)
        nets = jax.vmap(lambda params: make.net_of(net, fixed, params))(experts)
        return jax.tree.map(lambda w, ws: w + jnp.tensordot(weights, ws - w, 1), net, nets)

    def score(network):
        r2 = _adaptation.score(family, world, network, keys["score"], rows)
        return jnp.maximum(jnp.nan_to_num(r2, nan=MIN_R2), MIN_R2)

    picked = rows[jax.random.randint(keys["order"], (NUM_SHOTS,), 0, len(rows))]
    shots = _adaptation.draw(family, world, keys["shots"], picked, 1)
    half = jnp.full(2, 0.5)
    scores = {"base": score(net), "joint": score(joint)}
    for name, vectors in (("", experts), ("permuted: ", _permuted(experts, keys["order"]))):
        mix = functools.partial(mixed, experts=vectors)
        weights_of_way = {
            "mean": half,
            "least squares": _least_squares(mix, net, shots),
            "cross-entropy": _cross_entropy(mix, shots, keys["cem"]),
        }
        for way, weights in weights_of_way.items():
            scores[name + way] = score(mix(weights))
            scores[f"{name}{way}/weights"] = weights.mean()
    return scores


def _least_squares(mix: Any, net: Any, shots: Any) -> Any:
    """The weights that fit the answers best if predictions were linear in them."""
    x, y, code = shots
    base = net.many(x, code)[0].ravel()
    moves = jnp.stack([mix(one).many(x, code)[0].ravel() - base for one in jnp.eye(2)], axis=1)
    gram = moves.T @ moves
    ridge = 1e-6 * jnp.trace(gram) + 1e-12
    return jnp.linalg.solve(gram + ridge * jnp.eye(2), moves.T @ (y.ravel() - base))


def _cross_entropy(mix: Any, shots: Any, key: Any) -> Any:
    """The weights found by the cross-entropy method: resample around the best of a population."""
    x, y, code = shots

    def error(weights):
        value = jnp.square(mix(weights).many(x, code)[0] - y).mean()
        return jnp.nan_to_num(value, nan=jnp.inf)

    def one_round(carry, key):
        mean, sigma = carry
        population = mean + sigma * jax.random.normal(key, (POPULATION, 2))
        best = population[jnp.argsort(jax.vmap(error)(population))[:NUM_ELITES]]
        return (best.mean(axis=0), best.std(axis=0) + 1e-3), None

    first = (jnp.full(2, 0.5), jnp.full(2, FIRST_SIGMA))
    (mean, _), _ = jax.lax.scan(one_round, first, jax.random.split(key, NUM_ROUNDS))
    return mean


def _permuted(experts: Any, key: Any) -> Any:
    """The experts' vectors with the entries of each array permuted."""
    leaves, tree = jax.tree.flatten(experts)
    permuted = []
    for i, leaf in enumerate(leaves):
        keys = jax.random.split(jax.random.fold_in(key, i), len(leaf))
        shuffled = jax.vmap(lambda k, one: jax.random.permutation(k, one.ravel()))(keys, leaf)
        permuted.append(shuffled.reshape(leaf.shape))
    return jax.tree.unflatten(tree, permuted)


def _measure_student(
    scale: str, method: str, net: Any, joint: Any, world: Any, rate: float, seed: int
) -> list[dict[str, Any]]:
    family: Any = RUNS[scale].family
    params, scores, fixed = _experts(scale, method, net, world, jnp.float32(rate), jnp.int32(seed))
    first_new = family.num_modules - NUM_NEW
    rows = []
    for i, j in itertools.combinations(range(NUM_NEW), 2):
        known = list(range(first_new))
        tasks = _adaptation.rows_with(family, first_new + i, [*known, first_new + j])
        tasks = tasks[tasks[:, first_new + j] > 0]
        pair = jax.tree.map(lambda leaf, i=i, j=j: leaf[jnp.array([i, j])], params)
        key = jax.random.fold_in(stream(new_key(seed), "pairs"), NUM_NEW * i + j)
        score_of = _pair_scores(
            scale, method, (net, joint), world, fixed, pair, jnp.asarray(tasks), key
        )
        score_of = {name: float(value) for name, value in jax.device_get(score_of).items()}
        experts = float((scores[i] + scores[j]) / 2)
        for way in MIXTURES:
            rows.append(
                {
                    "pair": f"{first_new + i}, {first_new + j}",
                    "mixture": way,
                    "composed": score_of[way],
                    "permuted": score_of[f"permuted: {way}"],
                    "weights": score_of[f"{way}/weights"],
                    "base": score_of["base"],
                    "joint": score_of["joint"],
                    "experts": experts,
                }
            )
    return rows


def prepare(rows: Frame) -> Frame:
    """The rows, with the advantage over the base."""
    frame = rows.copy()
    frame["gain"] = frame["composed"] - frame["base"]
    return frame


def best(frame: Frame, methods: tuple[str, ...], column: str = "composed") -> float:
    """The mean of a column over seeds and pairs, for the best of some methods and all mixtures."""
    chosen = frame[frame["method"].isin(methods)]
    return float(chosen.groupby(["method", "mixture"])[column].mean().max())


def advantage(frame: Frame) -> float:
    """R2 of the best mixture of SVF experts minus that of the best mixture of LoRA experts."""
    return best(frame, (SVF, SVF_KEPT)) - best(frame, (LORA_MATCHED, LORA))


def share_of_joint(frame: Frame) -> float:
    """R2 of the best mixture of SVF experts as a share of that of the joint student."""
    return best(frame, (SVF, SVF_KEPT)) / float(frame["joint"].mean())


def permuted_gain(frame: Frame) -> float:
    """The gain over the base that is left, for the best mixture of permuted SVF vectors."""
    chosen = frame[frame["method"].isin([SVF, SVF_KEPT])]
    means = chosen.groupby(["method", "mixture"])[["permuted", "base"]].mean()
    return float((means["permuted"] - means["base"]).max())


NEEDS = ("method", "mixture", "composed", "base", "joint")
CLAIMS = [
    claim.reproduces(
        "beats LoRA",
        "The best mixture of SVF experts is better on pairs of new modules than the best of LoRA "
        "experts (difference of R2)",
        published="better than LoRA (79.2 against 77.2 on GSM8K)",
        needs=NEEDS,
        statistic=advantage,
        passes=claim.at_least(MIN_ADVANTAGE),
        control="permuted vectors must fall to the base",
        control_fails=lambda measurement: permuted_gain(measurement.all_rows) <= MAX_PERMUTED_GAIN,
    ),
    claim.hypothesis(
        "near joint training",
        "The best mixture of SVF experts has most of the R2 of a student that is trained on all "
        "tasks with at most one new module (share)",
        needs=NEEDS,
        statistic=share_of_joint,
        passes=claim.at_least(MIN_SHARE),
    ),
    claim.hypothesis(
        "mixing helps",
        "The best mixture of SVF experts is better than the student without experts (difference of "
        "R2)",
        needs=(*NEEDS, "gain"),
        statistic=lambda frame: best(frame, (SVF, SVF_KEPT), "gain"),
        passes=claim.above(0.0),
    ),
    claim.hypothesis(
        "full fine-tuning",
        "The best mixture of SVF experts is better than the best of fully fine-tuned experts "
        "(difference of R2)",
        needs=NEEDS,
        statistic=lambda frame: best(frame, (SVF, SVF_KEPT)) - best(frame, (FULL,)),
        passes=claim.above(0.0),
    ),
    claim.control(
        "permuted vectors",
        "Permuted vectors fall to the base (gain over the base, best mixture)",
        needs=("method", "mixture", "permuted", "base"),
        statistic=permuted_gain,
        passes=claim.at_most(MAX_PERMUTED_GAIN),
    ),
    claim.control(
        "experts learn",
        "SVF experts learn their own module (R2 on its combinations with known ones)",
        rows=where({"method": SVF}),
        needs=("experts",),
        statistic=claim.mean_of("experts"),
        passes=claim.at_least(0.5),
    ),
]


def summary(rows: Frame) -> dict[str, float]:
    """The means of every method and mixture."""
    frame = prepare(rows)
    values = {"base": float(frame["base"].mean()), "joint": float(frame["joint"].mean())}
    for method, group in frame.groupby("method"):
        values[f"{method}: experts"] = float(group["experts"].mean())
        values[f"{method}: parameters"] = float(group["parameters"].mean())
        for way, rows_of_way in group.groupby("mixture"):
            values[f"{method}: {way}"] = float(rows_of_way["composed"].mean())
    return values


FIGURES = [
    bars(
        "composed",
        against="method",
        color="mixture",
        name="composed",
        title="Mixtures of two experts on tasks with both of their modules",
        x_title="parametrization of the experts",
        y_title="R² on pairs of new modules",
    ),
    bars(
        "permuted",
        against="method",
        color="mixture",
        name="permuted",
        title="Control: mixtures of permuted vectors",
        x_title="parametrization of the experts",
        y_title="R² on pairs of new modules",
    ),
    bars(
        "experts",
        against="method",
        name="experts",
        title="Experts on their own module",
        x_title="parametrization of the experts",
        y_title="R² on combinations with known modules",
    ),
]
