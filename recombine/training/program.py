"""The program that runs of one structure compile to. It has three functions, vmapped over runs:

    start() -> setting, carry
    advance(carry, first, count) -> carry
    evaluate(carry) -> scores

`advance` trains `count` strides. A stride is a fixed number of steps in one scan. The host
(`trainer`) chooses `count` so that a call takes a few seconds: between two calls it reports
progress, writes checkpoints and reacts to Ctrl-C. How the strides are divided into calls does not
change a bit of the result.
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

from recombine.basics.errors import require
from recombine.parts.precision import matmul_dtype
from recombine.parts.prng import new_key, stream
from recombine.parts.protocols import Batch, Family, Split, has_memory
from recombine.sweeps.run import Run, knobs, label, restore_knobs, structure, to_json
from recombine.training import activity, device
from recombine.training.task_sampler import Setting, Shared, TaskSampler, predict, uniform_ints

MAX_STEPS_PER_STRIDE = 64  # short enough to react quickly, long enough to cost nothing


class Inputs(NamedTuple):
    """What differs between the runs of one program."""

    key: PRNGKeyArray
    knobs: dict[str, Array]
    split: Split


class Carry(NamedTuple):
    """What training changes."""

    net: Any
    optimizer_state: PyTree[Array]
    average: Any  # the exponential moving average of the network, or None
    diverged_at: Array  # the first step whose loss was not finite, or -1
    loss_sum: Array  # over the steps since the last evaluation
    memory: Any = ()  # of every task in a batch, if the model has a memory


def steps_per_stride(run: Run) -> int:
    """The largest number of steps up to the maximum that divides the steps between evaluations."""
    steps_per_evaluation = run.num_steps // run.num_evals
    largest = min(MAX_STEPS_PER_STRIDE, steps_per_evaluation)
    return next(n for n in range(largest, 0, -1) if steps_per_evaluation % n == 0)


# In the functions below, `template` is the structure of the runs: a `Run` without its knobs.


def _start(template: Run, shared: Shared, inputs: Inputs, net: Any = None) -> tuple[Setting, Carry]:
    """Draw the hidden teacher, the encoding's arrays and, unless one is given, a network."""
    run = restore_knobs(template, inputs.knobs)
    world = run.family.init(stream(inputs.key, "world"))
    setting = Setting(world, run.encoding.init(stream(inputs.key, "encoding"), run.family))
    sampler = TaskSampler(run, shared, inputs.split, setting)
    # The model needs the shapes of an example, not its values, so none is drawn.
    shapes = jax.eval_shape(lambda: sampler.draw(inputs.key, shared.table[:1], run.num_points))
    example = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), shapes)
    if net is None:
        net = run.model.init(
            stream(inputs.key, "model"),
            example,
            run.family.num_outputs,
            run.encoding.num_tokens(run.family),
            world,
        )
    average = net if getattr(run.recipe, "ema", 0) else None
    optimizer_state = run.recipe.optimiser(run.num_steps).init(net)
    memory = _first_memory(run, example)
    return setting, Carry(net, optimizer_state, average, jnp.int32(-1), jnp.float32(0), memory)


def _first_memory(run: Run, example: Batch) -> Any:
    """The memory of every task of a batch before the first step; () if the model has none."""
    if not has_memory(run.model):
        return ()
    of_one_task = run.model.memory(example)  # pyright: ignore[reportAttributeAccessIssue]
    for leaf in jax.tree.leaves(of_one_task):
        require(
            not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key),
            f"{type(run.model).__name__}.memory has a random key, which cannot be saved: the loss "
            "gets a new key at every step",
        )
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (run.num_tasks, *leaf.shape)), of_one_task
    )


def initialize(run: Run) -> tuple[Any, Any, Any]:
    """The untrained network, the hidden teacher and the encoding's arrays of a run.

    The network is drawn by the model, also for a run that starts from another one.
    """
    _, setting, carry = _start_alone(run)
    return carry.net, setting.world, setting.encoding


fresh = initialize  # the old name, for one more release


def _start_alone(run: Run) -> tuple[TaskSampler, Setting, Carry]:
    """Start a run outside any sweep, with a table of one task. Its shapes and draws are equal."""
    table = jnp.asarray(_first_task(run.family))
    shared = Shared(table, {}, table, {})
    split = Split(jnp.zeros(1, int), jnp.int32(1), jnp.int32(0))
    knob_values = {name: jnp.asarray(value) for name, value in knobs(run).items()}
    inputs = Inputs(new_key(run.seed), knob_values, split)
    setting, carry = _start(structure(run), shared, inputs)
    return TaskSampler(run, shared, split, setting), setting, carry


@functools.lru_cache(maxsize=32)
def _first_task(family: Family) -> np.ndarray:
    return family.tasks()[:1].copy()  # a view would keep the whole table in memory


_min_memory_bytes: dict[Run, dict[str, int]] = {}  # by structure


def min_memory_bytes(run: Run) -> dict[str, int]:
    """The memory that one run needs at least, by purpose. Computed from shapes alone."""
    template = structure(run)
    if template not in _min_memory_bytes:
        _min_memory_bytes[template] = _count_bytes(run)
    return _min_memory_bytes[template]


def _count_bytes(run: Run) -> dict[str, int]:
    def shapes():
        sampler, _, carry = _start_alone(run)
        batch = sampler.draw(new_key(0), sampler.table, run.num_points)
        evaluated = sampler.draw(new_key(0), sampler.table, run.num_eval_points)
        # Parts that do not work together fail here, before anything is compiled.
        memory_of_batch = jax.tree.map(lambda leaf: leaf[:1], carry.memory)
        _, after = _loss(run, new_key(0), carry.net, batch, memory_of_batch)
        _check_memory(run, memory_of_batch, after)
        return carry._replace(memory=()), carry.memory, batch, evaluated

    carry, memory, batch, evaluated = map(num_bytes, jax.eval_shape(shapes))
    needs_of_memory = {"the model's memory between steps": memory} if memory else {}
    return {
        "the network and its optimizer": carry,
        **needs_of_memory,
        "a batch of tasks": run.num_tasks * batch,
        "the tasks of an evaluation": 2 * run.num_eval_tasks * evaluated,
    }


def _check_memory(run: Run, before: Any, after: Any) -> None:
    """Raise an `InputError` if the loss changes the shapes or types of the memory."""

    def describe(memory):
        leaves, tree = jax.tree.flatten(memory)
        return str(tree), [(leaf.shape, leaf.dtype.name) for leaf in leaves]

    require(
        describe(before) == describe(after),
        f"{type(run.model).__name__}.loss must return a memory of the shapes and types that "
        f"memory(batch) has; got {describe(after)[1]}, expected {describe(before)[1]}",
    )


def num_bytes(tree: Any) -> int:
    """The memory of a tree of arrays, or of their shapes."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _advance(
    template: Run,
    shared: Shared,
    inputs: Inputs,
    setting: Setting,
    carry: Carry,
    first: Array,
    count: Array,
) -> Carry:
    """Train `count` strides, beginning with stride number `first`."""
    run = restore_knobs(template, inputs.knobs)
    sampler = TaskSampler(run, shared, inputs.split, setting)
    step = functools.partial(_step, sampler, stream(inputs.key, "train"))
    num_steps = steps_per_stride(template)

    def train_stride(i, carry):
        steps = (first + i) * num_steps + jnp.arange(num_steps)
        return jax.lax.scan(step, carry, steps)[0]

    with_copy = (carry, low_precision_copy(run, carry.net))
    return jax.lax.fori_loop(0, count, train_stride, with_copy)[0]


def _step(
    sampler: TaskSampler, key: PRNGKeyArray, carry: tuple[Carry, Any], step: Array
) -> tuple[tuple[Carry, Any], None]:
    """One training step: draw a batch of train tasks, and update the network."""
    # The low-precision copy is carried from step to step. The update writes it together with the
    # weights, which costs less than casting them again at the beginning of a step.
    (net, optimizer_state, average, diverged_at, loss_sum, memory), low_precision_net = carry
    run = sampler.run
    key_pick, key_draw = jax.random.split(jax.random.fold_in(key, step))
    picked = uniform_ints(key_pick, sampler.split.num_train, (run.num_tasks,))
    rows = sampler.table[sampler.split.order[picked]]
    batch = sampler.draw(key_draw, rows, run.num_points)

    own_loss = functools.partial(_loss, run, key_draw)
    loss_and_gradient = eqx.filter_value_and_grad(own_loss, has_aux=True)
    if low_precision_net is None:
        (loss, memory), gradient = loss_and_gradient(net, batch, memory)
    else:
        (loss, memory), gradient = loss_and_gradient(low_precision_net, batch, memory)
        gradient = jax.tree.map(lambda leaf, weight: leaf.astype(weight.dtype), gradient, net)
    optimizer = run.recipe.optimiser(run.num_steps)
    updates, optimizer_state = optimizer.update(gradient, optimizer_state, net)
    net = optax.apply_updates(net, updates)
    if average is not None:
        average = optax.incremental_update(net, average, 1 - getattr(run.recipe, "ema", 0.0))

    diverges_now = (diverged_at < 0) & ~jnp.isfinite(loss)
    diverged_at = jnp.where(diverges_now, step, diverged_at)
    follows_evaluation = step % (run.num_steps // run.num_evals) == 0
    loss_sum = jnp.where(follows_evaluation, 0, loss_sum) + loss
    new_carry = Carry(net, optimizer_state, average, diverged_at, loss_sum, memory)
    return (new_carry, low_precision_copy(run, net)), None


def _loss(
    run: Run, key: PRNGKeyArray, net: Any, batch: Batch, memory: Any = ()
) -> tuple[Array, Any]:
    """The training loss of a batch, and the memory after it."""
    model: Any = run.model
    if has_memory(model):
        keys = jax.random.split(stream(key, "loss"), len(batch.task))

        def loss_of_task(batch, key, memory):
            return model.loss(net, batch, score=run.family.score, key=key, memory=memory)

        losses, memory = jax.vmap(loss_of_task)(batch, keys, memory)
        return losses.mean(), memory
    if getattr(model, "random_loss", False):
        keys = jax.random.split(stream(key, "loss"), len(batch.task))
        own_loss = functools.partial(model.loss, net, score=run.family.score)
        return jax.vmap(lambda batch, key: own_loss(batch, key=key))(batch, keys).mean(), ()
    if hasattr(model, "loss"):
        return jax.vmap(lambda batch: model.loss(net, batch, run.family.score))(batch).mean(), ()
    prediction, _ = predict(net, batch)
    return jax.vmap(run.family.score)(prediction, batch.y)["loss"].mean(), ()


def low_precision_copy(run: Run, net: Any) -> Any:
    """A copy of the network whose matrices have the recipe's type. None if that is float32.

    Only networks with `mixed_precision` get a copy. Others would promote the types or fail.
    """
    dtype = matmul_dtype(getattr(run.recipe, "precision", "float32"))
    if dtype == jnp.float32 or not getattr(net, "mixed_precision", False):
        return None

    def lower(leaf):
        is_float32_matrix = leaf.ndim >= 2 and leaf.dtype == jnp.float32
        return leaf.astype(dtype) if is_float32_matrix else leaf

    return jax.tree.map(lower, net)


def _evaluate(
    template: Run,
    labels: "Labels",
    shared: Shared,
    inputs: Inputs,
    setting: Setting,
    carry: Carry,
    index: Array,
) -> dict[str, Array]:
    """The scores of evaluation number `index`."""
    run = restore_knobs(template, inputs.knobs)
    sampler = TaskSampler(run, shared, inputs.split, setting)
    sampler.net = carry.net if carry.average is None else carry.average
    key = jax.random.fold_in(stream(inputs.key, "eval"), index)
    scores = _task_scores(sampler, labels, key) | _diagnostic_scores(sampler, key)
    train_loss = carry.loss_sum / (run.num_steps // run.num_evals)
    return scores | {"train/loss": train_loss, "diverged_at": carry.diverged_at}


class _Side(NamedTuple):
    """The tasks of one side of an evaluation: seen, test or extrapolation."""

    table: Array
    groups: dict[str, Array]  # of the table's rows
    labels: tuple[tuple[str, int], ...]  # the groups' names and values
    picked: Array  # rows of the table


def _task_scores(sampler: TaskSampler, labels: "Labels", key: PRNGKeyArray) -> dict[str, Array]:
    """The scores on seen, test and extrapolation tasks, and the unit activity on seen tasks."""
    num_tasks = sampler.run.num_eval_tasks
    keys = jax.random.split(key, 4)
    sides = _pick_sides(sampler, labels, keys, num_tasks)
    # One draw and one forward pass for all sides, because a draw takes longest to compile.
    rows = jnp.concatenate([side.table[side.picked] for side in sides.values()])
    observed = sampler.look(keys[3], rows)
    metrics = jax.vmap(sampler.family.score)(observed.prediction, observed.batch.y)
    scores = {}
    for metric, values in metrics.items():
        side_values = values.reshape(-1, num_tasks)
        for (name, side), task_values in zip(sides.items(), side_values, strict=True):
            scores[f"{name}/{metric}"] = task_values.mean()
            for group, group_value in side.labels:
                is_member = side.groups[group][side.picked] == group_value
                num_members = is_member.sum()
                # NaN if no task of the group was picked.
                group_mean = jnp.where(is_member, task_values, 0).sum() / num_members
                scores[f"{name}/{group}={group_value}/{metric}"] = group_mean
                scores[f"{name}/{group}={group_value}/num_tasks"] = num_members
    seen_activations = {layer: h[:num_tasks] for layer, h in observed.activations.items()}
    for name, value in activity.measure(sampler.net, seen_activations).items():
        scores[f"activity/{name}"] = value
    return scores


def _pick_sides(
    sampler: TaskSampler, labels: "Labels", keys: PRNGKeyArray, num_tasks: int
) -> dict[str, _Side]:
    shared = sampler.shared
    seen = sampler.pick(keys[0], "train", num_tasks)
    test = sampler.pick(keys[1], "test", num_tasks)
    sides = {
        "seen": _Side(shared.table, shared.groups, labels["table"], seen),
        "test": _Side(shared.table, shared.groups, labels["table"], test),
    }
    num_beyond = shared.beyond.shape[0]
    if num_beyond:
        picked = uniform_ints(keys[2], num_beyond, (num_tasks,))
        sides["extrapolation"] = _Side(
            shared.beyond, shared.beyond_groups, labels["beyond"], picked
        )
    return sides


def _diagnostic_scores(sampler: TaskSampler, key: PRNGKeyArray) -> dict[str, Array]:
    scores = {}
    for diagnostic in sampler.run.diagnostics:
        name = label(diagnostic)
        measured = diagnostic.measure(stream(key, f"diagnostic/{name}"), sampler)
        scores |= {f"{name}/{metric}": value for metric, value in measured.items()}
    return scores


class Labels(collections.UserDict):
    """The values of each group in a family's tables. Hashable, so that `jit` can take it."""

    def __hash__(self):
        return hash(tuple(sorted(self.data.items())))


def labels_of(shared: Shared) -> Labels:
    """The values of each group, as pairs (group, value), for both tables of a family."""

    def pairs(groups):
        return tuple(
            (name, int(value)) for name, values in groups.items() for value in np.unique(values)
        )

    return Labels(table=pairs(shared.groups), beyond=pairs(shared.beyond_groups))


class Program(NamedTuple):
    """The three compiled functions of one structure."""

    start: Any
    advance: Any
    evaluate: Any


def compile_program(
    template: Run, labels: Labels, leaves: tuple[jax.ShapeDtypeStruct, ...], tree: Any
) -> Program:
    """Compile the program of one structure for a lane of runs.

    `leaves` and `tree` are the shapes of its arguments `(Shared, Inputs)`.
    """
    return _compile_program(json.dumps(to_json(template)), template, labels, leaves, tree)


# The text contains the hashes of the user's classes. In a notebook, code that a class uses may
# change although the class itself stays equal.
@functools.lru_cache(maxsize=32)
def _compile_program(
    _: str, template: Run, labels: Labels, leaves: tuple[jax.ShapeDtypeStruct, ...], tree: Any
) -> Program:
    device.enable_program_cache()
    shared, inputs = jax.tree.unflatten(tree, leaves)
    start = device.vmap_over_runs(functools.partial(_start, template), (None, 0))
    start_arguments = (shared, inputs)
    if template.start is not None:  # the networks to start from have the shapes of drawn ones
        start_arguments += (jax.eval_shape(start, shared, inputs)[1].net,)
        start = device.vmap_over_runs(functools.partial(_start, template), (None, 0, 0))
    advance = device.vmap_over_runs(
        functools.partial(_advance, template), (None, 0, 0, 0, None, None), donated=3
    )
    evaluate = device.vmap_over_runs(
        functools.partial(_evaluate, template, labels), (None, 0, 0, 0, None)
    )
    setting, carry = jax.eval_shape(start, *start_arguments)
    number = jax.ShapeDtypeStruct((), np.int32)
    lowered = (
        start.lower(*start_arguments),
        advance.lower(shared, inputs, setting, carry, number, number),
        evaluate.lower(shared, inputs, setting, carry, number),
    )
    options = device.compiler_options()
    return Program(*(function.compile(compiler_options=options) for function in lowered))


compile_program.cache_clear = _compile_program.cache_clear  # pyright: ignore[reportFunctionMemberAccess]
