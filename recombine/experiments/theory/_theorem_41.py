"""Theorem 4.1: from the code of a model that is mostly right, the task can be recovered.

If a model is right on a share 1 - delta of all (task, input) pairs, there is a decoder that recovers the task from its
code alone for a share 1 - sqrt(delta) of the tasks.

The decoder: ask the model, given the code, at many inputs, compare with every candidate task's answers, and name the
one that agrees with the model most often. Right, and agreeing, is to be within tau.

Assumption, the check: every two tasks are more than 2 tau apart on a share `apart` of the inputs that is larger than
2 sqrt(delta). tau must come from the tasks alone, below half the distance of the closest two.

Proof. By Markov at most sqrt(delta) of the tasks have more than sqrt(delta) of their inputs wrong. For every other task
its own candidate agrees with the model on at least 1 - sqrt(delta) of the inputs, and another can agree only where the
model is wrong or the two are within 2 tau: on at most sqrt(delta) + 1 - apart. The same argument without the detour by
sqrt(delta) gives more: a task is lost only if apart / 2 of its inputs are wrong, so at most 2 delta / apart are lost.
Where the check holds that is less than sqrt(delta). It is the best bound: `adversary` attains it when all tasks are
equally far apart.

Tasks and inputs are finite samples and their shares are counted, so the statement holds exactly, without error from
sampling. Distances are in float64, because rounding could turn the triangle inequality around.
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
from recombine.parts.protocols import examples_of
from recombine.training.fitted import Fitted
from recombine.training.task_sampler import make_split

L2 = 1e-3  # of a layer's mean variance, as in LinearDecodability
NUM_FIT = 512  # train tasks, freshly weighed, that a linear decoder is fitted to, as there

Functions = Shaped[np.ndarray, "tasks n *outputs"]  # the answers of every task to the same inputs


class Candidates(NamedTuple):
    """The weighed tasks of a world, their answers at x, several taus, and the least share of the inputs on which two
    tasks are more than 2 tau apart, for each."""

    tasks: np.ndarray
    functions: np.ndarray
    x: Array
    taus: np.ndarray
    apart: np.ndarray


class Student(NamedTuple):
    """How often a student agrees with every candidate at each tau, which tasks linear decoders recover (from its code,
    its deepest layer and that of the untrained network), the tasks that it never saw, and its score on them."""

    agrees: np.ndarray
    linear: dict[str, np.ndarray]
    unseen: np.ndarray
    r2: float


def agreement(
    models: Functions, candidates: Functions, taus: Float[np.ndarray, " taus"]
) -> Float[np.ndarray, "taus tasks candidates"]:
    """On which share of the inputs the model, told a task, is within tau of each candidate."""
    with jax.enable_x64(True):
        counts = _count(jnp.asarray(models), jnp.asarray(candidates), jnp.asarray(taus, float))
        return np.asarray(counts).swapaxes(0, 1) / candidates.shape[1]


@jax.jit
def _count(models, candidates, taus):
    def of_task(answers):
        return (distance(answers, candidates) <= taus[:, None, None]).sum(axis=-1)

    return jax.lax.map(of_task, models)


def wrong(
    agrees: Float[np.ndarray, "tasks candidates"], truth: Int[np.ndarray, " tasks"]
) -> Float[np.ndarray, " tasks"]:
    """On which share of its inputs each task is wrong; delta is the mean."""
    return 1 - np.take_along_axis(agrees, truth[:, None], axis=1)[:, 0]


def recovered(
    agrees: Float[np.ndarray, "tasks candidates"], truth: Int[np.ndarray, " tasks"]
) -> Bool[np.ndarray, " tasks"]:
    """Whether the true candidate agrees with the model more often than every other: a tie is a failure."""
    others = agrees.copy()
    np.put_along_axis(others, truth[:, None], -1.0, axis=1)
    return np.take_along_axis(agrees, truth[:, None], axis=1)[:, 0] > others.max(axis=1)


def apart(
    functions: Functions, taus: Float[np.ndarray, " taus"]
) -> Float[np.ndarray, "taus tasks tasks"]:
    """On which share of the inputs every two tasks are more than 2 tau apart; a task from itself, 1."""
    shares = 1 - agreement(functions, functions, 2 * np.asarray(taus))
    return np.maximum(shares, np.eye(len(functions)))


def bound(delta: float) -> float:
    """The share of tasks that the theorem promises to recover."""
    return 1 - math.sqrt(delta)


def sharp_bound(delta: float, least_apart: float) -> float:
    """The share of tasks that are recovered at least, with or without the check."""
    return 1 - min(1.0, 2 * delta / least_apart) if least_apart > 0 else 0.0


def check(delta: float, least_apart: float) -> bool:
    """Whether the tasks are far enough apart for the theorem to promise anything."""
    return least_apart > 2 * math.sqrt(delta)


def point(
    agrees: Float[np.ndarray, "tasks candidates"],
    truth: Int[np.ndarray, " tasks"],
    least_apart: float,
) -> dict[str, Any]:
    """All that the theorem is about, for one model. The control `permuted` takes a candidate's answers for the next
    one's."""
    delta = float(wrong(agrees, truth).mean())
    return {
        "delta": delta,
        "apart": least_apart,
        "check": check(delta, least_apart),
        "bound": bound(delta),
        "sharp bound": sharp_bound(delta, least_apart),
        "recovery/theorem": float(recovered(agrees, truth).mean()),
        "recovery/permuted": float(recovered(np.roll(agrees, 1, axis=1), truth).mean()),
    }


def adversary(functions: Functions, tau: float, budget: float) -> Functions:
    """The model that loses most tasks while wrong on at most a share `budget` of all pairs.

    A task is lost to the one nearest to it when the model gives that one's answers on half of the inputs where the two
    differ, and is halfway between them, which is right for both, elsewhere. The cheapest tasks go first.
    """
    num_tasks, num_inputs = functions.shape[:2]
    shares = apart(functions, np.array([tau]))[0] + 2 * np.eye(num_tasks)
    nearest = shares.argmin(axis=1)
    costs = np.ceil(np.round(shares.min(axis=1) * num_inputs) / 2).astype(int)
    made, left = functions.copy(), budget * num_tasks * num_inputs
    for task in np.argsort(costs, kind="stable"):
        left -= costs[task]
        if left < 0:
            break
        own, other = functions[task], functions[nearest[task]]
        far = np.flatnonzero(distance(own, other) > 2 * tau)
        made[task] = (own + other) / 2
        made[task, far] = own[far]
        made[task, far[: costs[task]]] = other[far[: costs[task]]]
    return made


def scattered(functions: Functions, budget: float, rng: np.random.Generator) -> Functions:
    """A model that gives another task's answer on a random share `budget` of all pairs."""
    num_tasks, num_inputs = functions.shape[:2]
    others = (
        np.arange(num_tasks)[:, None] + rng.integers(1, num_tasks, (num_tasks, num_inputs))
    ) % num_tasks
    hit = rng.random((num_tasks, num_inputs)) < budget
    return functions[np.where(hit, others, np.arange(num_tasks)[:, None]), np.arange(num_inputs)]


def linear(
    features: Float[np.ndarray, "fit d"],
    tasks: Float[np.ndarray, "fit M"],
    new: Float[np.ndarray, "tasks d"],
    candidates: Float[np.ndarray, "candidates M"],
) -> Int[np.ndarray, " tasks"]:
    """The candidates nearest to what a ridge regression from features to tasks makes of new features."""
    decoder = fit_ridges({"": jnp.asarray(features)}, jnp.asarray(tasks), L2)[""]
    guessed = np.asarray(decoder(jnp.asarray(new)))
    return ((guessed[:, None] - candidates) ** 2).sum(axis=-1).argmin(axis=1)


def candidates(
    family: Any, world: Any, seed: int, num_inputs: int, shares: Sequence[float]
) -> Candidates:
    """Every row of a family's table, weighed once; each tau is a share of half the closest two tasks' distance."""
    tasks, key = (
        _definitions.weighings(family, stream(new_key(seed), "tasks"), 1),
        stream(new_key(seed), "inputs"),
    )
    functions = _definitions.answers(family, world, jnp.asarray(tasks), key, num_inputs)
    x, _ = family.sample(world, key, jnp.asarray(tasks[0]), num_inputs)
    taus = np.array(shares) * _definitions.closest(functions).separation / 2
    return Candidates(tasks, functions, x, taus, apart(functions, taus).min(axis=(1, 2)))


def student(fitted: Fitted, untrained: Any, known: Candidates) -> Student:
    """What the theorem's decoder and the linear ones make of a trained MLP; these are fitted on its train tasks."""
    run: Any = fitted.run
    table, truth = run.family.tasks(), np.arange(len(known.tasks))
    split, _ = make_split(run, run.family.modules(table))
    train = np.asarray(split.order[: split.num_train])
    keys = jax.random.split(stream(new_key(run.seed), "decoders"), NUM_FIT)
    tasks = jax.vmap(run.family.weigh)(
        keys, jnp.asarray(table[train[np.arange(NUM_FIT) % len(train)]])
    )
    look = functools.partial(_inside, run.family, run.encoding, fitted.encoding, fitted.world)
    answers, code, hidden = look(fitted.net, jnp.concatenate([tasks, known.tasks]), known.x)
    _, _, before = look(untrained, jnp.concatenate([tasks, known.tasks]), known.x)
    found = {
        name: linear(layer[:NUM_FIT], np.asarray(tasks), layer[NUM_FIT:], known.tasks) == truth
        for name, layer in {"code": code, "hidden": hidden, "untrained": before}.items()
    }
    agrees = agreement(np.asarray(answers[NUM_FIT:], np.float64), known.functions, known.taus)
    return Student(
        agrees, found, np.setdiff1d(truth, train), float(fitted.rows["test/r2"].iloc[-1])
    )


@eqx.filter_jit
def _inside(
    family: Any, encoding: Any, params: Any, world: Any, net: Any, tasks: Array, x: Array
) -> Any:
    """What a network answers at x when it is told each task, the codes, and its deepest layer in the mean over x."""

    def of_task(task):
        code = encoding.encode(params, new_key(0), task, examples_of(family, world, task))
        answers, activations = net(x, code)
        *_, deepest = (h for name, h in activations.items() if name.startswith("hidden"))
        return answers, code, deepest.mean(axis=0)

    return jax.lax.map(of_task, tasks)
