"""Subnetworks of trained networks: one mask per module, found by gradient descent.

The network keeps its weights. A mask for a module has one score s for each weight; biases are not
masked. While it is trained on tasks in which only this module is active, the network has the
weights W sigmoid(t s), where t grows from 1 to 200. Then the mask is hard: it keeps the weights
with s > 0. The `subnetwork` is the network with the kept weights only, and its `ablation` is the
network without them.

    effect(network) = max(R2, 0) on the module's own tasks - its mean over the other modules

A module has its own subnetwork if the effect of the subnetwork is above `MIN_EFFECT` and that of
the ablation is below -`MIN_EFFECT`. Source of the method: arXiv 2301.10884.

In shapes, S is the number of students and M that of modules. Students are networks of one structure
with `Identity` codes, stacked on the first axis.
"""

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.parts.prng import new_key, stream

MIN_EFFECT = 0.2
FIRST_T, LAST_T = 1.0, 200.0
MIN_VARIANCE = 1e-6  # of the answers of a batch, so that R2 is defined for constant answers
Mask = tuple[Array, ...]  # of the weights of each layer


class Setting(NamedTuple):
    """How masks are trained: Adam's learning rate, the first value of all scores, the penalty.

    The penalty is the loss for a mask that keeps all weights.
    """

    learning_rate: float
    first_score: float
    penalty: float


# The source has eight settings for each of three subsets of layers. Its first scores are .1 to
# -.05, its learning rates 1e-2 and 1e-4 for more steps, and its penalty is about .1.
GRID = tuple(Setting(*values) for values in itertools.product((0.1, 0.01), (0.05, -0.05), (0.1, 1)))


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long masks are trained, and on how many tasks they are scored."""

    num_steps: int = 300
    num_tasks: int = 8  # in a batch; one module is active in each
    num_points: int = 16
    num_eval_tasks: int = 16
    num_eval_points: int = 64


class Students(NamedTuple):
    """Networks of one structure, with their family and their hidden teachers."""

    family: Any
    nets: Any
    worlds: Any

    @property
    def num(self) -> int:
        """The number of students."""
        return len(jax.tree.leaves(self.nets)[0])


def stack(family: Any, nets: Any, worlds: Any) -> Students:
    """Students from lists of networks and of hidden teachers."""
    stacked_nets = jax.tree.map(lambda *leaves: jnp.stack(leaves), *nets)
    stacked_worlds = jax.tree.map(lambda *leaves: jnp.stack(leaves), *worlds)
    return Students(family, stacked_nets, stacked_worlds)


def weights_of(net: Any) -> Mask:
    """The weight matrices of a network."""
    return tuple(layer.weight for layer in net.layers)


def with_weights(net: Any, weights: Mask) -> Any:
    """The network with other weight matrices."""
    return eqx.tree_at(weights_of, net, weights)


def masked(net: Any, mask: Mask) -> Any:
    """The network with its weights multiplied by a mask."""
    products = tuple(w * m for w, m in zip(weights_of(net), mask, strict=True))
    return with_weights(net, products)


def inverted(mask: Mask) -> Mask:
    """The mask that keeps what this one removes."""
    return tuple(1 - m for m in mask)


def draw_tasks(
    family: Any, world: Any, key: PRNGKeyArray, module: Any, num_tasks: int, num_points: int
) -> tuple[Array, Array, Array]:
    """Tasks in which only one module is active: points, answers and codes."""
    row = (jnp.arange(family.num_modules) == module).astype(jnp.float32)

    def draw(key):
        key_weight, key_points = jax.random.split(key)
        task = family.weigh(key_weight, row)
        return (*family.sample(world, key_points, task, num_points), task)

    return jax.vmap(draw)(jax.random.split(key, num_tasks))


def relative_error(prediction: Array, y: Array) -> Array:
    """Squared error over the variance of the answers of all tasks of a batch."""
    variance = jnp.square(y - y.mean(axis=(0, 1))).sum()
    return jnp.square(prediction - y).sum() / jnp.maximum(variance, MIN_VARIANCE)


def module_scores(
    family: Any, world: Any, net: Any, key: PRNGKeyArray, effort: Effort
) -> Float[Array, " M"]:
    """max(R2, 0) of a network on the tasks of each module alone.

    R2 is relative to the mean of each output over all these tasks.
    """

    def score(module):
        x, y, code = draw_tasks(
            family, world, key, module, effort.num_eval_tasks, effort.num_eval_points
        )
        return jnp.maximum(1 - relative_error(net.many(x, code)[0], y), 0)

    return jax.lax.map(score, jnp.arange(family.num_modules))


def train_mask(
    family: Any,
    world: Any,
    net: Any,
    module: Array,
    setting: Setting,
    key: PRNGKeyArray,
    effort: Effort,
) -> Mask:
    """The hard mask of one module of one network, of zeros and ones."""
    adam = optax.scale_by_adam()
    scores = tuple(jnp.full_like(w, setting.first_score) for w in weights_of(net))
    num_weights = sum(w.size for w in scores)

    def loss(scores, t, x, y, code):
        soft = tuple(jax.nn.sigmoid(t * s) for s in scores)
        error = relative_error(masked(net, soft).many(x, code)[0], y)
        return error + setting.penalty * sum(m.sum() for m in soft) / num_weights

    def step(carry, i):
        scores, state = carry
        t = FIRST_T * (LAST_T / FIRST_T) ** (i / max(effort.num_steps - 1, 1))
        batch = draw_tasks(
            family, world, jax.random.fold_in(key, i), module, effort.num_tasks, effort.num_points
        )
        updates: Any
        updates, state = adam.update(jax.grad(loss)(scores, t, *batch), state)
        moves = [setting.learning_rate * update for update in updates]
        scores = tuple(s - move for s, move in zip(scores, moves, strict=True))
        return (scores, state), None

    first = (scores, adam.init(scores))
    (scores, _), _ = jax.lax.scan(step, first, jnp.arange(effort.num_steps))
    return tuple((s > 0).astype(w.dtype) for s, w in zip(scores, weights_of(net), strict=True))


def random_mask(key: PRNGKeyArray, mask: Mask) -> Mask:
    """A random mask that keeps as many weights of each layer."""
    keys = jax.random.split(key, len(mask))
    return tuple(
        jax.random.permutation(k, m.ravel()).reshape(m.shape)
        for k, m in zip(keys, mask, strict=True)
    )


class Measured(NamedTuple):
    """What is measured of every module's mask, in arrays (S, M).

    `student` is the score of the whole network. `sub`, `ablated`, `random_sub` and
    `random_ablated` are (S, M, M): the scores on every module of the networks that belong to a
    module's mask. `overlap` is the Jaccard index with the masks of other modules, on average, and
    `expected_overlap` that of independent masks of the same sizes.
    """

    student: Array
    sub: Array
    ablated: Array
    random_sub: Array
    random_ablated: Array
    size: Array
    overlap: Array
    expected_overlap: Array
    masks: Any


@functools.partial(jax.jit, static_argnums=(0, 4))
def _measure(
    family: Any, nets: Any, worlds: Any, setting: Any, effort: Effort, seed: Array
) -> Measured:
    def of_student(net, world, key):
        keys = {name: stream(key, name) for name in ("train", "score", "random")}
        modules = jnp.arange(family.num_modules)
        keys_train = jax.random.split(keys["train"], family.num_modules)
        keys_random = jax.random.split(keys["random"], family.num_modules)
        masks = jax.vmap(
            lambda module, key: train_mask(family, world, net, module, setting, key, effort)
        )(modules, keys_train)
        random_masks = jax.vmap(random_mask)(keys_random, masks)

        def scores_of(masks):
            return jax.vmap(
                lambda mask: module_scores(family, world, masked(net, mask), keys["score"], effort)
            )(masks)

        student = module_scores(family, world, net, keys["score"], effort)
        size, overlap, expected = _overlaps(masks)
        return Measured(
            student,
            scores_of(masks),
            scores_of(inverted(masks)),
            scores_of(random_masks),
            scores_of(inverted(random_masks)),
            size,
            overlap,
            expected,
            masks,
        )

    num_students = len(jax.tree.leaves(nets)[0])
    keys = jax.random.split(stream(new_key(0), "masks"), num_students)
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, seed)
    return jax.vmap(of_student)(nets, worlds, keys)


def _overlaps(masks: Mask) -> tuple[Array, Array, Array]:
    """The size of every mask, and its Jaccard index with the others: found, and by chance."""
    flat = jnp.concatenate([m.reshape(len(m), -1) for m in masks], axis=1)
    num_modules, num_weights = flat.shape
    size = flat.mean(axis=1)
    both = flat @ flat.T / num_weights
    either = size[:, None] + size[None] - both
    both_by_chance = size[:, None] * size[None]
    either_by_chance = size[:, None] + size[None] - both_by_chance
    others = 1 - jnp.eye(num_modules)

    def mean_over_others(values):
        return (values * others).sum(axis=1) / others.sum(axis=1)

    jaccard = both / jnp.maximum(either, 1 / num_weights)
    by_chance = both_by_chance / jnp.maximum(either_by_chance, 1 / num_weights)
    return size, mean_over_others(jaccard), mean_over_others(by_chance)


def measure(students: Students, setting: Setting, effort: Effort, seed: int = 0) -> Measured:
    """Train the masks of all students and modules in one program, and score them."""
    values = Setting(*map(jnp.float32, setting))
    measured = _measure(
        students.family, students.nets, students.worlds, values, effort, jnp.int32(seed)
    )
    return jax.device_get(measured)


def effects(scores: Any) -> np.ndarray:
    """The score of every mask on its own module minus the mean over others: (S, M, M) to (S, M)."""
    return np.diagonal(scores, axis1=1, axis2=2) - on_others(scores)


def on_others(scores: Any) -> np.ndarray:
    """The mean score of every mask on the modules that are not its own: (S, M, M) to (S, M)."""
    own = np.diagonal(scores, axis1=1, axis2=2)
    return (scores.sum(axis=2) - own) / (scores.shape[-1] - 1)


def select(students: Students, effort: Effort, seed: int = 0) -> Setting:
    """The setting of the grid with the largest mean effect of subnetwork minus ablation.

    Choose it on other students than those that are reported.
    """
    totals = []
    for setting in GRID:
        measured = measure(students, setting, effort, seed)
        totals.append(float((effects(measured.sub) - effects(measured.ablated)).mean()))
    return GRID[int(np.argmax(totals))]


def rows(measured: Measured) -> list[list[dict[str, float]]]:
    """The numbers of every student's modules as columns."""
    columns = {
        "student": measured.student,
        "subnetwork": effects(measured.sub),
        "ablation": effects(measured.ablated),
        "random subnetwork": effects(measured.random_sub),
        "random ablation": effects(measured.random_ablated),
        "ablation, others": on_others(measured.ablated),
        "random ablation, others": on_others(measured.random_ablated),
        "size": measured.size,
        "overlap": measured.overlap,
        "overlap by chance": measured.expected_overlap,
    }
    num_students, num_modules = measured.student.shape
    return [
        [
            {"module": m} | {name: float(values[s, m]) for name, values in columns.items()}
            for m in range(num_modules)
        ]
        for s in range(num_students)
    ]


def has_own(rows: Any, prefix: str = "") -> Any:
    """Whether a module has its own subnetwork, by the columns of `rows`."""
    return (rows[f"{prefix}subnetwork"] > MIN_EFFECT) & (rows[f"{prefix}ablation"] < -MIN_EFFECT)


def setting_columns(setting: Setting) -> dict[str, float]:
    """The selected setting as columns."""
    return {f"setting/{name}": float(value) for name, value in setting._asdict().items()}
