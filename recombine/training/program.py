"""What runs of one structure compile to: three functions, vmapped over runs.

    start() -> setting, carry          advance(carry, first, count) -> carry          evaluate(carry) -> scores

`advance` trains `count` strides, each of them many steps scanned. The host (`trainer`) chooses the count, so that it
has a say every few seconds: progress, Ctrl-C and checkpoints happen in between. How the steps are cut into calls
changes no bit of the result.
"""

import collections
import functools
import json
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from recombine.parts.precision import multiplied_in
from recombine.parts.prng import new_key, stream
from recombine.parts.protocols import Batch, Family, Split
from recombine.sweeps.run import Run, knobs, label, restore, structure, to_json
from recombine.training import activity, device
from recombine.training.task_sampler import Laboratory, Setting, Shared, below, predict


class Inputs(NamedTuple):
    """What differs between the runs of a program."""

    key: PRNGKeyArray
    knobs: dict[str, Array]
    split: Split


class Carry(NamedTuple):
    """What training changes: the network, its optimiser, its running average (or None), where its loss was first not
    finite (or -1), and the sum of its losses since the last evaluation."""

    net: Any
    state: PyTree[Array]
    average: Any
    diverged_at: Array
    loss: Array


MAX_STRIDE = 64  # steps between two looks at the count: often enough for the host, too seldom to cost anything


def stride(run: Run) -> int:
    """The steps that are trained in one go: as many as divide the steps between evaluations, up to `MAX_STRIDE`."""
    between = run.num_steps // run.num_evals
    return next(n for n in range(min(MAX_STRIDE, between), 0, -1) if between % n == 0)


def _start(blank: Run, shared: Shared, inputs: Inputs) -> tuple[Setting, Carry]:
    run = restore(blank, inputs.knobs)
    world = run.family.init(stream(inputs.key, "world"))
    setting = Setting(world, run.encoding.init(stream(inputs.key, "encoding"), run.family))
    lab = Laboratory(run, shared, inputs.split, setting)
    # Only its shapes matter, so nothing is drawn for it.
    shapes = jax.eval_shape(lambda: lab.draw(inputs.key, shared.table[:1], run.num_points))
    example = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), shapes)
    net = run.model.init(
        stream(inputs.key, "model"),
        example,
        run.family.num_outputs,
        run.encoding.num_tokens(run.family),
        world,
    )
    average = net if getattr(run.recipe, "ema", 0) else None
    state = run.recipe.optimiser(run.num_steps).init(net)
    return setting, Carry(net, state, average, jnp.int32(-1), jnp.float32(0))


def fresh(run: Run) -> tuple[Any, Any, Any]:
    """An untrained network, world and encoding of a run: what a saved one is read into."""
    _, setting, carry = _alone(run)
    return carry.net, setting.world, setting.encoding


def _alone(run: Run) -> tuple[Laboratory, Setting, Carry]:
    """A run outside any sweep, with one task: enough for its shapes and for what it draws."""
    table = jnp.asarray(_first_task(run.family))
    shared = Shared(table, {}, table, {})
    split = Split(jnp.zeros(1, int), jnp.int32(1), jnp.int32(0))
    inputs = Inputs(
        new_key(run.seed), {name: jnp.asarray(v) for name, v in knobs(run).items()}, split
    )
    setting, carry = _start(structure(run), shared, inputs)
    return Laboratory(run, shared, split, setting), setting, carry


@functools.lru_cache(maxsize=32)
def _first_task(family: Family) -> np.ndarray:
    return family.tasks()[:1].copy()  # without a view's whole table behind it


def least_bytes(run: Run) -> dict[str, int]:
    """Memory that one run cannot do without, by what it is for; found from shapes alone."""
    kind = structure(run)
    if kind not in _needed:
        _needed[kind] = _count_bytes(run)
    return _needed[kind]


_needed: dict[Run, dict[str, int]] = {}


def _count_bytes(run: Run) -> dict[str, int]:
    def shapes():
        lab, _, carry = _alone(run)
        batch, evaluated = (
            lab.draw(new_key(0), lab.table, n) for n in (run.num_points, run.num_eval_points)
        )
        _loss(
            run, carry.net, batch
        )  # parts that do not go together fail here, before anything is compiled
        return carry, batch, evaluated

    carry, batch, evaluated = (
        sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
        for tree in jax.eval_shape(shapes)
    )
    return {
        "the network and its optimiser": carry,
        "a batch of tasks": run.num_tasks * batch,
        "the tasks of an evaluation": 2 * run.num_eval_tasks * evaluated,
    }


def _advance(
    blank: Run,
    shared: Shared,
    inputs: Inputs,
    setting: Setting,
    carry: Carry,
    first: Array,
    count: Array,
) -> Carry:
    """Train the strides from `first` on, `count` of them."""
    run = restore(blank, inputs.knobs)
    lab = Laboratory(run, shared, inputs.split, setting)
    step = functools.partial(_step, lab, stream(inputs.key, "train"))

    def one(i, carry):
        steps = (first + i) * stride(blank) + jnp.arange(stride(blank))
        return jax.lax.scan(step, carry, steps)[0]

    return jax.lax.fori_loop(0, count, one, (carry, low_copy(run, carry.net)))[0]


def _evaluate(
    blank: Run,
    labels: Any,
    shared: Shared,
    inputs: Inputs,
    setting: Setting,
    carry: Carry,
    index: Array,
) -> dict[str, Array]:
    run = restore(blank, inputs.knobs)
    lab = Laboratory(run, shared, inputs.split, setting)
    lab.net = carry.net if carry.average is None else carry.average
    scores = _scores(lab, labels, jax.random.fold_in(stream(inputs.key, "eval"), index))
    loss = carry.loss / (run.num_steps // run.num_evals)
    return scores | {"train/loss": loss, "diverged_at": carry.diverged_at}


def low_copy(run: Run, net: Any) -> Any:
    """A copy of the network whose matrices are in the recipe's type; None where that is float32.

    Only for networks that say `mixed_precision`: in others, types that differ would be promoted back or refused.
    """
    dtype = multiplied_in(getattr(run.recipe, "precision", "float32"))
    if dtype == jnp.float32 or not getattr(net, "mixed_precision", False):
        return None

    def lower(leaf):
        return leaf.astype(dtype) if leaf.ndim >= 2 and leaf.dtype == jnp.float32 else leaf

    return jax.tree.map(lower, net)


def _step(
    lab: Laboratory, key: PRNGKeyArray, carry: tuple[Carry, Any], step: Array
) -> tuple[tuple[Carry, Any], None]:
    # The low copy is carried, not cast anew: the update then writes it while it has the weights at hand.
    (net, state, average, diverged_at, total), low = carry
    run = lab.run
    key_pick, key_draw = jax.random.split(jax.random.fold_in(key, step))
    picked = below(key_pick, lab.split.num_train, (run.num_tasks,))
    batch = lab.draw(key_draw, lab.table[lab.split.order[picked]], run.num_points)
    loss, gradient = eqx.filter_value_and_grad(functools.partial(_loss, run))(
        net if low is None else low, batch
    )
    if low is not None:
        gradient = jax.tree.map(lambda leaf, master: leaf.astype(master.dtype), gradient, net)
    updates, state = run.recipe.optimiser(run.num_steps).update(gradient, state, net)
    net = optax.apply_updates(net, updates)
    if average is not None:
        average = optax.incremental_update(net, average, 1 - getattr(run.recipe, "ema", 0.0))
    fails = (diverged_at < 0) & ~jnp.isfinite(loss)
    total = jnp.where(step % (run.num_steps // run.num_evals) == 0, 0, total) + loss
    return (
        Carry(net, state, average, jnp.where(fails, step, diverged_at), total),
        low_copy(run, net),
    ), None


def _loss(run: Run, net: Any, batch: Batch) -> Array:
    if hasattr(run.model, "loss"):
        return jax.vmap(lambda batch: run.model.loss(net, batch, run.family.score))(batch).mean()  # pyright: ignore
    prediction, _ = predict(net, batch)
    return jax.vmap(run.family.score)(prediction, batch.y)["loss"].mean()


def _scores(lab: Laboratory, labels: Any, key: PRNGKeyArray) -> dict[str, Array]:
    shared, n = lab.shared, lab.run.num_eval_tasks
    keys = jax.random.split(key, 4)
    sides = {
        "seen": (shared.table, shared.groups, lab.pick(keys[0], "train", n)),
        "test": (shared.table, shared.groups, lab.pick(keys[1], "test", n)),
    }
    if shared.beyond.shape[0]:
        picked = below(keys[2], shared.beyond.shape[0], (n,))
        sides["extrapolation"] = (shared.beyond, shared.beyond_groups, picked)
    # All sides in one draw and one forward pass: a draw is most of what there is to compile.
    rows = jnp.concatenate([table[picked] for table, _, picked in sides.values()])
    seen = lab.look(keys[3], rows)
    scores = {}
    for metric, values in jax.vmap(lab.family.score)(seen.prediction, seen.batch.y).items():
        for (side, (_, groups, picked)), of_side in zip(
            sides.items(), values.reshape(-1, n), strict=True
        ):
            scores[f"{side}/{metric}"] = of_side.mean()
            for group, value in labels["beyond" if side == "extrapolation" else "table"]:
                member = groups[group][picked] == value
                mean = jnp.where(member, of_side, 0).sum() / member.sum()
                scores[f"{side}/{group}={value}/{metric}"] = (
                    mean  # NaN where no such task was picked
                )
                scores[f"{side}/{group}={value}/num_tasks"] = member.sum()
    seen_activations = {name: h[:n] for name, h in seen.activations.items()}
    scores |= {
        f"activity/{name}": value
        for name, value in activity.measure(lab.net, seen_activations).items()
    }
    for diagnostic in lab.run.diagnostics:
        name = label(diagnostic)
        measured = diagnostic.measure(stream(key, f"diagnostic/{name}"), lab)
        scores |= {f"{name}/{metric}": value for metric, value in measured.items()}
    return scores


class Labels(collections.UserDict):
    """The values that each group takes, hashable so that they can be static."""

    def __hash__(self):
        return hash(tuple(sorted(self.data.items())))


def labels_of(shared: Shared) -> Labels:
    """The values of the groups of a family's tables."""

    def pairs(groups):
        return tuple(
            (name, int(value)) for name, values in groups.items() for value in np.unique(values)
        )

    return Labels(table=pairs(shared.groups), beyond=pairs(shared.beyond_groups))


class Compiled(NamedTuple):
    """The three functions of one structure."""

    start: Any
    advance: Any
    evaluate: Any


def compiled(
    blank: Run, labels: Labels, leaves: tuple[jax.ShapeDtypeStruct, ...], tree: Any
) -> Compiled:
    """The functions of one structure, for all runs of a call, compiled for arguments of such shapes."""
    return _compiled(json.dumps(to_json(blank)), blank, labels, leaves, tree)


# The text holds the hashes of the user's classes: in a notebook, what they use may change while they stay the same.
@functools.lru_cache(maxsize=32)
def _compiled(
    _: str, blank: Run, labels: Labels, leaves: tuple[jax.ShapeDtypeStruct, ...], tree: Any
) -> Compiled:
    device.keep_programs()
    shared, inputs = jax.tree.unflatten(tree, leaves)
    start = device.over_runs(functools.partial(_start, blank), (None, 0))
    advance = device.over_runs(
        functools.partial(_advance, blank), (None, 0, 0, 0, None, None), donated=3
    )
    evaluate = device.over_runs(functools.partial(_evaluate, blank, labels), (None, 0, 0, 0, None))
    number = jax.ShapeDtypeStruct((), np.int32)
    trained = (shared, inputs, *jax.eval_shape(start, shared, inputs))
    lowered = (
        start.lower(shared, inputs),
        advance.lower(*trained, number, number),
        evaluate.lower(*trained, number),
    )
    return Compiled(*(one.compile(compiler_options=device.compiler_options()) for one in lowered))


compiled.cache_clear = _compiled.cache_clear  # pyright: ignore[reportFunctionMemberAccess]
