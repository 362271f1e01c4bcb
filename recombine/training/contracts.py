"""The contracts of parts. The tests check our parts, `recombine check FILE` checks yours.

A contract is a function of a part. It raises an `AssertionError` if the part breaks it. Its
docstring states the contract for the user.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from recombine.basics import user_files
from recombine.basics.errors import InputError
from recombine.basics.random_streams import generator
from recombine.parts import conditions
from recombine.parts.encodings.language import Language
from recombine.parts.families.chain import Chain
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.field_checks import field_types, is_knob
from recombine.parts.models.mlp import MLP
from recombine.parts.models.sequence_transformer import SequenceTransformer
from recombine.parts.prng import new_key, stream
from recombine.parts.protocols import Batch, Split, example_sampler, has_graph
from recombine.parts.recipes.fast import Fast
from recombine.sweeps import discovery
from recombine.sweeps.run import Run, label
from recombine.training.program import low_precision_copy
from recombine.training.task_sampler import Setting, TaskSampler, make_shared, make_split, predict

SMALL = Hyperteacher(num_modules=6, num_hot=2, d_input=4, d_hidden=4, num_outputs=3)
SMALL_CHAIN = Chain(num_modules=3, max_length=3, size=4)
KEY = new_key(0)
# Of the largest prediction. bfloat16 rounds by 0.4%, a few layers together by some percent.
MAX_BFLOAT16_ERROR = 0.05
TOLERANCE = 1e-4  # between a function and its jitted, vmapped or batched form
MIN_NUM_ACCEPTED = 3  # of 12 tables that a support must be able to split
Contract = Callable[[Any], None]


def check_module(module: ModuleType, path: Path) -> Iterator[dict[str, Any]]:
    """Check every part that a module defines against every contract of its kind."""
    for kind, classes in discovery.parts_of(module).items():
        for name, cls in classes.items():
            for contract in CONTRACTS[kind]:
                reason = ""
                try:
                    contract(cls() if contract is not constructs else cls)
                except Exception as error:
                    reason = user_files.describe_error(error, path)
                yield {
                    "part": name,
                    "kind": kind,
                    "promise": contract.__doc__,
                    "kept": not reason,
                    "reason": reason,
                }


def constructs(cls: type) -> None:
    """It needs no arguments, is frozen, hashes by value, and its fields are annotated."""
    part = cls()
    equal_part = cls()
    assert part == equal_part and hash(part) == hash(equal_part), (
        "two equal parts must have the same hash: use plain numbers and tuples"
    )
    assert type(part).__dataclass_params__.frozen, "write @dataclass(frozen=True)"
    assert set(field_types(cls)) == {field.name for field in dataclasses.fields(cls) if field.init}


def knobs_are_floats(part: Any) -> None:
    """Every field annotated Knob holds a number."""
    for name, hint in field_types(type(part)).items():
        if is_knob(hint):
            assert isinstance(getattr(part, name), (int, float)), f"{name} is not a number"


def family_table(family: Any) -> None:
    """Its rows are unique integers, each with a module at least, and each has its group labels."""
    tasks = family.tasks()
    assert tasks.ndim == 2 and len(tasks) > 0, "tasks() must return a table with at least one row"
    assert np.issubdtype(tasks.dtype, np.integer), f"rows must be integers, not {tasks.dtype}"
    assert len(np.unique(tasks, axis=0)) == len(tasks), "some rows occur twice"
    modules = family.modules(tasks)
    assert modules.shape == (len(tasks), family.num_modules), f"modules() has shape {modules.shape}"
    assert np.isin(modules, (0, 1)).all(), "modules() must return rows of 0 and 1"
    assert (modules.sum(axis=1) > 0).all(), "every task needs at least one module"
    for group, labels in family.groups(tasks).items():
        assert len(labels) == len(tasks), f"the group {group!r} needs a label for every row"


def family_is_pure(family: Any) -> None:
    """The same key gives the same world, weights and samples; another key gives other samples."""
    row = jnp.asarray(family.tasks()[-1])
    world = family.init(KEY)
    _assert_same(world, family.init(KEY))
    task = family.weigh(KEY, row)
    _assert_same(task, family.weigh(KEY, row))
    samples = family.sample(world, KEY, task, 4)
    _assert_same(samples, family.sample(world, KEY, task, 4))
    other_samples = family.sample(world, new_key(1), task, 4)
    if getattr(family, "deterministic", False):
        _assert_same(samples, other_samples, message="deterministic, but its samples differ")
        return
    pairs = zip(jax.tree.leaves(samples), jax.tree.leaves(other_samples), strict=True)
    assert any(not np.array_equal(a, b) for a, b in pairs), "sample must use its key"


def family_traces(family: Any) -> None:
    """Sampling under jit and vmap equals sampling one task at a time."""
    rows = jnp.asarray(family.tasks()[-3:])
    world = family.init(KEY)

    def draw(key, row):
        task = family.weigh(stream(key, "weigh"), row)
        return family.sample(world, stream(key, "sample"), task, 4)

    _assert_traceable(draw, jax.random.split(KEY, len(rows)), rows)


def family_scores(family: Any) -> None:
    """Its score has a finite loss with finite gradients."""
    world = family.init(KEY)
    row = jnp.asarray(family.tasks()[-1])
    x, y = family.sample(world, KEY, family.weigh(KEY, row), 8)
    code = jnp.zeros(2)
    net = MLP(widths=(8,)).init(KEY, Batch(x, y, code, row), family.num_outputs)
    prediction, _ = net(x, code)
    loss_and_gradient = jax.value_and_grad(lambda prediction: family.score(prediction, y)["loss"])
    _assert_finite(loss_and_gradient(prediction))


def family_views(family: Any) -> None:
    """If it has views, they are 0/1 rows of all tasks, and the view `modules` is `modules(…)`."""
    tasks = family.tasks()
    for name in getattr(family, "views", ()):
        rows = family.view(name, tasks)
        assert rows.ndim == 2 and len(rows) == len(tasks), f"view {name!r} needs a row per task"
        assert np.isin(rows, (0, 1)).all(), f"view {name!r} must have rows of 0 and 1"
        if name == "modules":
            _assert_same(rows, family.modules(tasks), message="modules() gives other rows")


def family_graph(family: Any) -> None:
    """If it has a graph, parents come first, layers fit, and operations give the true values."""
    if not has_graph(family):
        return
    world = family.init(KEY)
    for row in family.tasks()[[0, -1]]:
        task = family.weigh(KEY, jnp.asarray(row))
        graph = family.graph(task)
        x, y = family.sample(world, KEY, task, 4)
        values = family.trace(world, task, x)
        _assert_graph(np.asarray(graph.parents), np.asarray(graph.layer))
        num_nodes = y.values.shape[1]
        assert np.array_equal(values[:, -num_nodes:], y.values), "y has other values than trace"
        is_node = np.asarray(graph.layer) >= 0
        assert np.array_equal(is_node[-num_nodes:], y.exists[0]), "y has other nodes than the graph"
        operated = family.operate(world, task, values)
        assert family.right(operated, values)[:, is_node].all(), (
            "operate gives other values than trace"
        )
        assert len(family.subgraphs(task)) == len(is_node), "subgraphs needs a row per node"


def _assert_graph(parents: np.ndarray, layer: np.ndarray) -> None:
    for node in np.flatnonzero(layer >= 0):
        own = parents[node][parents[node] >= 0]
        assert (own < node).all(), f"node {node} has a parent with a larger number"
        above = layer[own][layer[own] >= 0]
        expected = above.max() + 1 if len(above) else 0
        assert layer[node] == expected, f"node {node} has layer {layer[node]}, not {expected}"


def support_splits(support: Any) -> None:
    """It marks every row 0, 1 or 2, with train and test rows, and repeats a split for its seed."""
    modules = Hyperteacher(num_modules=12).tasks()
    for seed, frac_test in enumerate((0.1, 0.25, 0.5)):
        parts = support.parts(modules, generator(seed, "support"), frac_test)
        is_valid = parts.shape == (len(modules),) and np.isin(parts, (0, 1, 2)).all()
        assert is_valid, "parts must mark every row with 0, 1 or 2"
        for mark, side in ((1, "train"), (2, "test")):
            assert (parts == mark).any(), f"no {side} row at frac_test={frac_test}"
        _assert_same(parts, support.parts(modules, generator(seed, "support"), frac_test))


def support_keeps_guarantees(support: Any) -> None:
    """Its guarantees hold, for several sizes, fractions and seeds."""
    assert hasattr(support, "guarantees"), (
        "add the line: guarantees: ClassVar[frozenset[str]] = frozenset()"
    )
    unknown = support.guarantees - {"compositional", "connected", "balanced", "spanned"}
    assert not unknown, f"unknown guarantees: {sorted(unknown)}"
    num_accepted = 0
    for seed in range(12):
        modules = Hyperteacher(num_modules=8 + seed % 5, num_hot=2 + seed % 3).tasks()
        frac_test = (0.1, 0.25, 0.5, 0.7)[seed % 4]
        try:
            parts = support.parts(modules, generator(seed, "support"), frac_test)
        except InputError:  # a support may refuse what is impossible
            continue
        num_accepted += 1
        facts = conditions.describe(modules[parts == 1], modules[parts == 2])
        for name in support.guarantees:
            assert facts[name], f"not {name} with seed {seed}, {modules.shape[1]} modules"
    assert num_accepted >= MIN_NUM_ACCEPTED, "it refused nearly every table of 8 to 12 modules"


def encoding_codes(encoding: Any) -> None:
    """Codes are finite vectors. With tokens, they are integers below num_tokens."""
    code = _encoder(encoding)(KEY, jnp.array([0.5, 0, 0, 1, 0, 0]))
    num_tokens = encoding.num_tokens(SMALL)
    _assert_finite(code)
    assert code.ndim >= 1, "a code must be a vector"
    if num_tokens:
        assert jnp.issubdtype(code.dtype, jnp.integer), "with tokens, a code has integers"
        assert code.min() >= 0 and code.max() < num_tokens, (
            f"tokens must be from 0 to {num_tokens - 1}"
        )
    else:
        assert jnp.issubdtype(code.dtype, jnp.floating), "without tokens, a code has floats"


def encoding_traces(encoding: Any) -> None:
    """The same key gives the same code, also under jit and vmap."""
    encode = _encoder(encoding)
    tasks = jax.vmap(SMALL.weigh)(jax.random.split(KEY, 3), jnp.asarray(SMALL.tasks()[-3:]))
    _assert_same(encode(KEY, tasks[0]), encode(KEY, tasks[0]))
    _assert_traceable(encode, jax.random.split(KEY, 3), tasks)


def model_shapes(model: Any) -> None:
    """All leaves of its network are arrays. It predicts every point, and names its activations."""
    net, batch = _network(model)
    leaves = jax.tree.leaves(net)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves), (
        "leaves must be arrays: mark others as static"
    )
    outputs = net(batch.x, batch.code)
    assert isinstance(outputs, tuple) and len(outputs) == 2, (
        "net(x, code) must return (prediction, activations)"
    )
    prediction, activations = outputs
    if getattr(model, "needs_nodes", False):
        expected = (8, *batch.y.values.shape[1:], SMALL_CHAIN.num_outputs)
    else:
        expected = (8, SMALL.num_outputs)
    assert prediction.shape == expected, f"predictions are {prediction.shape}, not {expected}"
    assert activations, "there are no activations"
    for layer, h in activations.items():
        assert h.shape[0] == 8, f"the activation {layer!r} needs a value for each of 8 points"


def model_traces(model: Any) -> None:
    """The same key gives the same network. jit and vmap change nothing. Gradients are finite."""
    net, batch = _network(model)
    _assert_same(net, _network(model)[0])
    xs = jnp.stack([batch.x, 2 * batch.x])
    codes = jnp.stack([batch.code, batch.code])
    _assert_traceable(lambda x, code: net(x, code)[0], xs, codes)

    def loss(net):
        if getattr(model, "needs_nodes", False):
            return model.loss(net, batch, SMALL_CHAIN.score)
        return jnp.square(net(batch.x, batch.code)[0] - batch.y).mean()

    _assert_finite(jax.jit(jax.grad(loss))(net))


def model_many(model: Any) -> None:
    """If its network has `many`, several tasks at once give the same numbers as one by one."""
    net, batch = _network(model)
    if not hasattr(net, "many"):
        return
    x = jnp.stack([batch.x, -batch.x, batch.x])
    code = jnp.stack([batch.code, batch.code, batch.code[::-1]])
    together, *alone = jax.jit(lambda net: (net.many(x, code), *map(net, x, code)))(net)
    many_names = set(together[1])
    names = set(alone[0][1])
    assert many_names == names, (
        f"`many` names its activations {sorted(many_names)}, one task {sorted(names)}"
    )
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    message = "`many` gave other numbers than one task at a time"
    _assert_same(together, stacked, TOLERANCE, message)


def model_low_precision(model: Any) -> None:
    """If its network has mixed_precision, bfloat16 changes little, and gradients are finite."""
    net, batch = _network(model)
    low_precision_net = low_precision_copy(Run(recipe=Fast(precision="bfloat16")), net)
    if low_precision_net is None:
        return
    if getattr(model, "needs_nodes", False):  # a bit of rounding may choose another symbol
        _assert_finite(model.loss(low_precision_net, batch, SMALL_CHAIN.score))
        return
    batch = jax.tree.map(lambda leaf: leaf[None], batch)

    def loss(net):
        prediction, activations = predict(net, batch)
        return jnp.square(prediction - batch.y).mean(), (prediction, activations)

    # Jitted, because a deep network takes most of a minute operation by operation.
    loss_and_gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, (prediction, activations)), gradient = loss_and_gradient(low_precision_net)
    _assert_finite((prediction, activations, gradient))
    expected, _ = predict(net, batch)
    error = float(jnp.abs(prediction - expected).max() / (jnp.abs(expected).max() + 1e-6))
    assert error < MAX_BFLOAT16_ERROR, (
        f"with bfloat16 matrices predictions are off by {error:.0%}: add and normalize in float32"
    )


def model_points_apart(model: Any) -> None:
    """A point's prediction depends on no other point, unless the model has `together = True`."""
    net, batch = _network(model)
    if getattr(model, "together", False):
        return
    alone = jnp.concatenate([net(x[None], batch.code)[0] for x in batch.x])
    assert np.allclose(net(batch.x, batch.code)[0], alone, atol=TOLERANCE), (
        "a point's prediction depends on other points: if that is intended, write together = True"
    )


def diagnostic_measures(diagnostic: Any) -> None:
    """It returns numbers, or vectors with a * in their name, the same for the same key."""
    sampler = _task_sampler(getattr(diagnostic, "needs_graph", False))
    scores = diagnostic.measure(KEY, sampler)
    assert scores, f"{label(diagnostic)} measured nothing"
    for name, value in scores.items():
        num_axes = 1 if "*" in name else 0
        assert value.ndim == num_axes, (
            f"{name} has {value.ndim} axes: a vector's name needs a *, a number's has none"
        )
    _assert_same(scores, diagnostic.measure(KEY, sampler))


def recipe_learns(recipe: Any) -> None:
    """A hundred steps lower a quadratic loss."""
    weights = {"matrix": jnp.ones((4, 3)), "vector": jnp.ones(3)}
    optimizer = recipe.optimiser(100)

    def loss(weights):
        return sum(jnp.square(leaf - 0.5).sum() for leaf in jax.tree.leaves(weights))

    def step(carry, _):
        weights, state = carry
        updates, state = optimizer.update(jax.grad(loss)(weights), state, weights)
        return (jax.tree.map(jnp.add, weights, updates), state), None

    (after, _), _ = jax.lax.scan(step, (weights, optimizer.init(weights)), length=100)
    assert loss(after) < loss(weights), f"the loss went from {loss(weights)} to {loss(after)}"


CONTRACTS: dict[str, list[Contract]] = {
    "family": [
        constructs,
        knobs_are_floats,
        family_table,
        family_is_pure,
        family_traces,
        family_scores,
        family_views,
        family_graph,
    ],
    "support": [constructs, knobs_are_floats, support_splits, support_keeps_guarantees],
    "encoding": [constructs, knobs_are_floats, encoding_codes, encoding_traces],
    "model": [
        constructs,
        knobs_are_floats,
        model_shapes,
        model_traces,
        model_many,
        model_low_precision,
        model_points_apart,
    ],
    "diagnostic": [constructs, knobs_are_floats, diagnostic_measures],
    "recipe": [constructs, knobs_are_floats, recipe_learns],
}


def _assert_same(
    tree: Any,
    other: Any,
    tolerance: float = 0,
    message: str = "the same input gave other numbers",
) -> None:
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        assert np.shape(a) == np.shape(b), f"{message}: shapes {np.shape(a)} and {np.shape(b)}"
        assert np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True), message


def _assert_finite(tree: Any) -> None:
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)), "not finite"


def _assert_traceable(function: Callable, *args: Any) -> None:
    """Check that jit and vmap do not change the results. The arguments are stacked."""
    single_args = [[arg[i] for arg in args] for i in range(len(args[0]))]
    singles = [function(*single) for single in single_args]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles)
    _assert_same(singles[0], jax.jit(function)(*single_args[0]), TOLERANCE)
    _assert_same(stacked, jax.vmap(function)(*args), TOLERANCE)


def _encoder(encoding: Any) -> Callable:
    """The encoding as a function of key and task."""
    params = encoding.init(KEY, SMALL)
    world = SMALL.init(KEY)
    return lambda key, task: encoding.encode(params, key, task, example_sampler(SMALL, world, task))


def _network(model: Any) -> tuple[Any, Batch]:
    """A network of the model, and a batch of 8 points."""
    needs_nodes = getattr(model, "needs_nodes", False)
    family: Any = SMALL_CHAIN if needs_nodes else SMALL
    task = jnp.array([0.5, 0, 0, 1, 0, 0])
    code = task
    if needs_nodes:
        task = family.task((2, 0))
        code = family.sentence(task)
    world = family.init(KEY)
    x, y = family.sample(world, KEY, task, 8)
    batch = Batch(x, y, code, task)
    num_tokens = len(family.vocabulary) if needs_nodes else 0
    arguments = (KEY, batch, family.num_outputs, num_tokens, world)
    try:
        inspect.signature(model.init).bind(*arguments)
    except TypeError as error:
        raise AssertionError(
            "write init(self, key, example, num_outputs, num_tokens=0, world=None)"
        ) from error
    return model.init(*arguments), batch


def _task_sampler(with_graph: bool = False) -> TaskSampler:
    """A small run with an untrained network."""
    run = Run(family=SMALL, model=MLP(widths=(8, 8)), num_points=4)
    if with_graph:
        model = SequenceTransformer(1, 8, 2, 16, targets="scratchpad")
        run = Run(family=SMALL_CHAIN, encoding=Language(), model=model, num_points=4)
    shared = jax.tree.map(jnp.asarray, make_shared(run.family))
    host_split, _ = make_split(run, run.family.modules(np.asarray(shared.table)))
    split = Split(*map(jnp.asarray, host_split))
    setting = Setting(run.family.init(KEY), run.encoding.init(KEY, run.family))
    sampler = TaskSampler(run, shared, split, setting)
    example = jax.tree.map(lambda leaf: leaf[0], sampler.draw(KEY, shared.table[:1], 4))
    num_tokens = run.encoding.num_tokens(run.family)
    sampler.net = run.model.init(KEY, example, run.family.num_outputs, num_tokens, setting.world)
    return sampler
