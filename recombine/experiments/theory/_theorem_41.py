"""Theorem 4.1: from the code of a model that is mostly right, the task can be recovered.

If a model is right on a share 1 - delta of all (task, input) pairs, there is a decoder that
recovers the task from its code alone for a share 1 - sqrt(delta) of the tasks.

The decoder: give the code to the model, ask it for its answers at many inputs, and compare them
with the answers of every candidate task. Choose the candidate that agrees most often. An answer is
right, or agrees, if its distance is at most tau.

Assumption (the check): every two tasks differ by more than 2 tau on a share `apart` of the inputs
that is larger than 2 sqrt(delta). tau must depend on the tasks alone, and must be below half the
distance of the two closest tasks.

Proof. By Markov's inequality at most sqrt(delta) of the tasks have more than sqrt(delta) of their
inputs wrong. For every other task, its own candidate agrees with the model on at least
1 - sqrt(delta) of the inputs. Another candidate can agree only where the model is wrong or where
the two tasks differ by at most 2 tau: on at most sqrt(delta) + 1 - apart.

The direct argument gives a sharper bound: a task is lost only if apart / 2 of its inputs are wrong,
so at most 2 delta / apart of the tasks are lost. If the check holds, that is less than sqrt(delta).
This bound cannot be improved: `adversary` attains it if all tasks are equally far apart.

Tasks and inputs are finite samples, and all shares are counted on them. So the statement holds
exactly, without sampling error. Distances are computed in float64, because rounding could violate
the triangle inequality.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from recombine.experiments.theory import _definitions
from recombine.experiments.theory._definitions import distance
from recombine.parts.decoder import fit_ridges
from recombine.parts.prng import new_key, stream
from recombine.parts.protocols import example_sampler
from recombine.training.fitted import Fitted
from recombine.training.task_sampler import make_split

L2 = 1e-3  # relative to the mean variance of a layer, as in LinearDecodability
NUM_FIT = 512  # train tasks with fresh weights that a linear decoder is fitted to, as there

Functions = Shaped[np.ndarray, "tasks n *outputs"]  # the answers of every task to the same inputs


class Candidates(NamedTuple):
    """The tasks of a world with their weights and their answers at the inputs `x`.

    `apart` has, for each of `taus`, the share of the inputs on which two tasks differ by more than
    2 tau: the smallest of all pairs.
    """

    tasks: np.ndarray
    functions: np.ndarray
    x: Array
    taus: np.ndarray
    apart: np.ndarray


class Student(NamedTuple):
    """What decoders recover from a student.

    `agrees` is the agreement with every candidate at each tau. `linear` says which tasks linear
    decoders recover from the code, the deepest layer and that of the untrained network.
    `held_out` are the held-out tasks and `r2` is the score on them.
    """

    agrees: np.ndarray
    linear: dict[str, np.ndarray]
    held_out: np.ndarray
    r2: float


def agreement(
    models: Functions, candidates: Functions, taus: Float[np.ndarray, " taus"]
) -> Float[np.ndarray, "taus tasks candidates"]:
    """The share of the inputs on which the model, given a task, is within tau of each candidate."""
    with jax.enable_x64(True):
        counts = _count(jnp.asarray(models), jnp.asarray(candidates), jnp.asarray(taus, float))
        return np.asarray(counts).swapaxes(0, 1) / candidates.shape[1]


@jax.jit
def _count(models, candidates, taus):
    def of_task(answers):
        return (distance(answers, candidates) <= taus[:, None, None]).sum(axis=-1)

    return jax.lax.map(of_task, models)


def share_wrong(
    agrees: Float[np.ndarray, "tasks candidates"], truth: Int[np.ndarray, " tasks"]
) -> Float[np.ndarray, " tasks"]:
    """The share of the inputs on which each task is wrong; delta is the mean."""
    return 1 - np.take_along_axis(agrees, truth[:, None], axis=1)[:, 0]


def recovered(
    agrees: Float[np.ndarray, "tasks candidates"], truth: Int[np.ndarray, " tasks"]
) -> Bool[np.ndarray, " tasks"]:
    """Whether the true candidate agrees with the model more often than any other; a tie fails."""
    others = agrees.copy()
    np.put_along_axis(others, truth[:, None], -1.0, axis=1)
    return np.take_along_axis(agrees, truth[:, None], axis=1)[:, 0] > others.max(axis=1)


def share_apart(
    functions: Functions, taus: Float[np.ndarray, " taus"]
) -> Float[np.ndarray, "taus tasks tasks"]:
    """The share of the inputs on which two tasks differ by more than 2 tau; 1 on the diagonal."""
    shares = 1 - agreement(functions, functions, 2 * np.asarray(taus))
    return np.maximum(shares, np.eye(len(functions)))


def bound(delta: float) -> float:
    """The share of tasks that the theorem promises to recover."""
    return 1 - math.sqrt(delta)


def sharp_bound(delta: float, min_apart: float) -> float:
    """A lower bound on the share of recovered tasks, with or without the check."""
    return 1 - min(1.0, 2 * delta / min_apart) if min_apart > 0 else 0.0


def check_holds(delta: float, min_apart: float) -> bool:
    """Whether the tasks are far enough apart for the theorem to apply."""
    return min_apart > 2 * math.sqrt(delta)


def evaluate(
    agrees: Float[np.ndarray, "tasks candidates"],
    truth: Int[np.ndarray, " tasks"],
    min_apart: float,
) -> dict[str, Any]:
    """The error, the check, the bounds and the recovered tasks of one model.

    The control `permuted` takes each candidate's answers for those of the next candidate.
    """
    delta = float(share_wrong(agrees, truth).mean())
    return {
        "delta": delta,
        "apart": min_apart,
        "check": check_holds(delta, min_apart),
        "bound": bound(delta),
        "sharp bound": sharp_bound(delta, min_apart),
        "recovery/theorem": float(recovered(agrees, truth).mean()),
        "recovery/permuted": float(recovered(np.roll(agrees, 1, axis=1), truth).mean()),
    }


def adversary(functions: Functions, tau: float, budget: float) -> Functions:
    """The model that loses the most tasks while at most a share `budget` of all pairs is wrong.

    A task is lost to its nearest neighbor if the model gives the neighbor's answers on half of the
    inputs where the two differ. Elsewhere it answers halfway between them, which is right for both.
    The cheapest tasks go first.
    """
    num_tasks, num_inputs = functions.shape[:2]
    shares = share_apart(functions, np.array([tau]))[0] + 2 * np.eye(num_tasks)
    nearest = shares.argmin(axis=1)
    num_different = np.round(shares.min(axis=1) * num_inputs)
    costs = np.ceil(num_different / 2).astype(int)
    answers = functions.copy()
    num_left = budget * num_tasks * num_inputs
    for task in np.argsort(costs, kind="stable"):
        num_left -= costs[task]
        if num_left < 0:
            break
        own, other = functions[task], functions[nearest[task]]
        different = np.flatnonzero(distance(own, other) > 2 * tau)
        wrong = different[: costs[task]]
        answers[task] = (own + other) / 2
        answers[task, different] = own[different]
        answers[task, wrong] = other[wrong]
    return answers


def random_errors(functions: Functions, budget: float, rng: np.random.Generator) -> Functions:
    """A model that gives another task's answer on a random share `budget` of all pairs."""
    num_tasks, num_inputs = functions.shape[:2]
    own = np.arange(num_tasks)[:, None]
    others = (own + rng.integers(1, num_tasks, (num_tasks, num_inputs))) % num_tasks
    is_wrong = rng.random((num_tasks, num_inputs)) < budget
    return functions[np.where(is_wrong, others, own), np.arange(num_inputs)]


def decode_linearly(
    features: Float[np.ndarray, "fit d"],
    tasks: Float[np.ndarray, "fit M"],
    new_features: Float[np.ndarray, "tasks d"],
    candidates: Float[np.ndarray, "candidates M"],
) -> Int[np.ndarray, " tasks"]:
    """Predict tasks from new features by a ridge regression, and choose the nearest candidates."""
    decoder = fit_ridges({"": jnp.asarray(features)}, jnp.asarray(tasks), L2)[""]
    predicted = np.asarray(decoder(jnp.asarray(new_features)))
    return ((predicted[:, None] - candidates) ** 2).sum(axis=-1).argmin(axis=1)


def candidates(
    family: Any, world: Any, seed: int, num_inputs: int, shares: Sequence[float]
) -> Candidates:
    """Every task of a family, with weights drawn once.

    Each tau is a share of half the distance of the two closest tasks.
    """
    tasks = _definitions.weighted_tasks(family, stream(new_key(seed), "tasks"), 1)
    key = stream(new_key(seed), "inputs")
    functions = _definitions.answers(family, world, jnp.asarray(tasks), key, num_inputs)
    x, _ = family.sample(world, key, jnp.asarray(tasks[0]), num_inputs)
    taus = np.array(shares) * _definitions.closest(functions).separation / 2
    min_apart = share_apart(functions, taus).min(axis=(1, 2))
    return Candidates(tasks, functions, x, taus, min_apart)


def decode_student(fitted: Fitted, untrained: Any, known: Candidates) -> Student:
    """Decode the tasks of a trained MLP; linear decoders are fitted on its train tasks."""
    run: Any = fitted.run
    table = run.family.tasks()
    split, _ = make_split(run, run.family.modules(table))
    train = np.asarray(split.order[: split.num_train])
    keys = jax.random.split(stream(new_key(run.seed), "decoders"), NUM_FIT)
    rows = table[train[np.arange(NUM_FIT) % len(train)]]
    fit_tasks = jax.vmap(run.family.weigh)(keys, jnp.asarray(rows))
    tasks = jnp.concatenate([fit_tasks, known.tasks])

    forward = functools.partial(_forward, run.family, run.encoding, fitted.encoding, fitted.world)
    answers, code, hidden = forward(fitted.net, tasks, known.x)
    _, _, hidden_untrained = forward(untrained, tasks, known.x)

    truth = np.arange(len(known.tasks))
    is_recovered = {}
    for name, layer in (("code", code), ("hidden", hidden), ("untrained", hidden_untrained)):
        chosen = decode_linearly(
            layer[:NUM_FIT], np.asarray(fit_tasks), layer[NUM_FIT:], known.tasks
        )
        is_recovered[name] = chosen == truth
    agrees = agreement(np.asarray(answers[NUM_FIT:], np.float64), known.functions, known.taus)
    r2 = float(fitted.rows["test/r2"].iloc[-1])
    return Student(agrees, is_recovered, np.setdiff1d(truth, train), r2)


@eqx.filter_jit
def _forward(
    family: Any, encoding: Any, params: Any, world: Any, net: Any, tasks: Array, x: Array
) -> Any:
    """The network's answers at x for each task, the codes, and the mean of the deepest layer."""

    def of_task(task):
        code = encoding.encode(params, new_key(0), task, example_sampler(family, world, task))
        answers, activations = net(x, code)
        *_, deepest = (h for name, h in activations.items() if name.startswith("hidden"))
        return answers, code, deepest.mean(axis=0)

    return jax.lax.map(of_task, tasks)
