"""What every part must keep, as functions: one suite for ours (in the tests) and for yours (`recombine check FILE`).

A contract is a function of a part that raises an `AssertionError`, its docstring is the promise in plain words.
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
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.field_checks import hints, is_knob
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key, stream
from recombine.parts.protocols import Batch, Split, examples_of
from recombine.parts.recipes.fast import Fast
from recombine.sweeps import discovery
from recombine.sweeps.run import Run, label
from recombine.training.program import low_copy
from recombine.training.task_sampler import Laboratory, Setting, make_shared, make_split, predict

SMALL = Hyperteacher(num_modules=6, num_hot=2, d_input=4, d_hidden=4, num_outputs=3)
KEY = new_key(0)
ROUGHLY = (
    0.05  # of the largest prediction: bfloat16 rounds by 0.4%, a few layers of it by some percent
)
Contract = Callable[[Any], None]


def check_module(module: ModuleType, path: Path) -> Iterator[dict[str, Any]]:
    """Run every contract on every part that a module defines."""
    for kind, classes in discovery.parts_of(module).items():
        for name, cls in classes.items():
            for contract in CONTRACTS[kind]:
                reason = ""
                try:
                    contract(cls() if contract is not constructs else cls)
                except Exception as error:
                    reason = user_files.where(error, path)
                yield {
                    "part": name,
                    "kind": kind,
                    "promise": contract.__doc__,
                    "kept": not reason,
                    "reason": reason,
                }


def constructs(cls: type) -> None:
    """It constructs with no arguments, is frozen, hashes by value, and its fields are annotated."""
    one, other = cls(), cls()
    assert one == other and hash(one) == hash(other), (
        "two equal parts must hash alike: use plain numbers and tuples"
    )
    assert type(one).__dataclass_params__.frozen, "write @dataclass(frozen=True)"
    assert set(hints(cls)) == {field.name for field in dataclasses.fields(cls) if field.init}


def knobs_are_floats(part: Any) -> None:
    """Every field annotated Knob holds a number."""
    for name, hint in hints(type(part)).items():
        assert not is_knob(hint) or isinstance(getattr(part, name), (int, float)), (
            f"{name} is not a number"
        )


def family_table(family: Any) -> None:
    """Its table has unique whole-number rows, each with at least one module, and a group label for every row."""
    tasks = family.tasks()
    assert tasks.ndim == 2 and len(tasks) > 0, "tasks() must give a table with at least one row"
    assert np.issubdtype(tasks.dtype, np.integer), f"rows must be whole numbers, not {tasks.dtype}"
    assert len(np.unique(tasks, axis=0)) == len(tasks), "some rows occur twice"
    modules = family.modules(tasks)
    assert modules.shape == (len(tasks), family.num_modules), f"modules() has shape {modules.shape}"
    assert np.isin(modules, (0, 1)).all() and (modules.sum(axis=1) > 0).all(), (
        "rows must be 0/1 and not empty"
    )
    assert all(len(labels) == len(tasks) for labels in family.groups(tasks).values()), (
        "a group misses rows"
    )


def family_is_pure(family: Any) -> None:
    """The same key gives the same world, weights and samples; another key gives other samples."""
    row = jnp.asarray(family.tasks()[-1])
    _same(family.init(KEY), family.init(KEY))
    world, task = family.init(KEY), family.weigh(KEY, row)
    _same(task, family.weigh(KEY, row))
    first, other = family.sample(world, KEY, task, 4), family.sample(world, new_key(1), task, 4)
    _same(first, family.sample(world, KEY, task, 4))
    assert any(
        not np.array_equal(a, b) for a, b in zip(_leaves(first), _leaves(other), strict=True)
    ), "keys are unused"


def family_traces(family: Any) -> None:
    """Sampling under jit and vmap equals sampling one task at a time."""
    rows = jnp.asarray(family.tasks()[-3:])
    world = family.init(KEY)

    def draw(key, row):
        return family.sample(
            world, stream(key, "sample"), family.weigh(stream(key, "weigh"), row), 4
        )

    _traces(draw, jax.random.split(KEY, len(rows)), rows)


def family_scores(family: Any) -> None:
    """Its score has a finite loss, and gradients of it are finite."""
    world, row = family.init(KEY), jnp.asarray(family.tasks()[-1])
    x, y = family.sample(world, KEY, family.weigh(KEY, row), 8)
    net = MLP(widths=(8,)).init(KEY, Batch(x, y, jnp.zeros(2), row), family.num_outputs)
    loss, slope = jax.value_and_grad(lambda p: family.score(p, y)["loss"])(net(x, jnp.zeros(2))[0])
    _finite((loss, slope))


def support_splits(support: Any) -> None:
    """It marks every row 0, 1 or 2, leaves both sides non-empty, and draws the same split from the same seed."""
    modules = Hyperteacher(num_modules=12).tasks()
    for seed, frac_test in enumerate((0.1, 0.25, 0.5)):
        parts = support.parts(modules, generator(seed, "support"), frac_test)
        assert parts.shape == (len(modules),) and np.isin(parts, (0, 1, 2)).all(), (
            "parts must be 0, 1 or 2 per row"
        )
        assert (parts == 1).any() and (parts == 2).any(), (
            f"a side is empty at frac_test={frac_test}"
        )
        _same(parts, support.parts(modules, generator(seed, "support"), frac_test))


def support_keeps_guarantees(support: Any) -> None:
    """What it guarantees holds, over sizes, fractions and seeds."""
    assert hasattr(support, "guarantees"), (
        "add the line: guarantees: ClassVar[frozenset[str]] = frozenset()"
    )
    assert support.guarantees <= {"compositional", "connected", "balanced", "spanned"}, (
        support.guarantees
    )
    kept = 0
    for seed in range(12):
        modules = Hyperteacher(num_modules=8 + seed % 5, num_hot=2 + seed % 3).tasks()
        try:
            parts = support.parts(
                modules, generator(seed, "support"), (0.1, 0.25, 0.5, 0.7)[seed % 4]
            )
        except InputError:  # to refuse what cannot be had is right
            continue
        facts = conditions.describe(modules[parts == 1], modules[parts == 2])
        kept += 1
        for name in support.guarantees:
            assert facts[name], f"not {name} with seed {seed}, {modules.shape[1]} modules"
    assert kept >= 3, "it refused nearly every table of 8 to 12 modules"


def encoding_codes(encoding: Any) -> None:
    """Codes are finite vectors, of whole numbers below num_tokens where it has tokens."""
    code, num_tokens = (
        _encoder(encoding)(KEY, jnp.array([0.5, 0, 0, 1, 0, 0])),
        encoding.num_tokens(SMALL),
    )
    _finite(code)
    assert code.ndim >= 1, "a code must be a vector"
    if num_tokens:
        assert (
            jnp.issubdtype(code.dtype, jnp.integer) and code.min() >= 0 and code.max() < num_tokens
        )
    else:
        assert jnp.issubdtype(code.dtype, jnp.floating), "without tokens a code is a float vector"


def encoding_traces(encoding: Any) -> None:
    """The same key gives the same code, also under jit and vmap."""
    encode = _encoder(encoding)
    tasks = jax.vmap(SMALL.weigh)(jax.random.split(KEY, 3), jnp.asarray(SMALL.tasks()[-3:]))
    _same(encode(KEY, tasks[0]), encode(KEY, tasks[0]))
    _traces(encode, jax.random.split(KEY, 3), tasks)


def model_shapes(model: Any) -> None:
    """Its network has only arrays as leaves, predicts every point, and names its activations."""
    net, batch = _network(model)
    assert all(isinstance(leaf, jax.Array) for leaf in _leaves(net)), (
        "leaves must be arrays: mark others as static"
    )
    found = net(batch.x, batch.code)
    assert isinstance(found, tuple) and len(found) == 2, (
        "net(x, code) must give (prediction, activations)"
    )
    prediction, activations = found
    assert prediction.shape == (8, 3), f"8 points with 3 outputs gave {prediction.shape}"
    assert activations and all(h.shape[0] == 8 for h in activations.values()), (
        "an activation per point and layer"
    )


def model_traces(model: Any) -> None:
    """The same key gives the same network; jit and vmap change nothing; gradients are finite."""
    net, batch = _network(model)
    _same(net, _network(model)[0])
    xs = jnp.stack([batch.x, 2 * batch.x])
    _traces(lambda x, code: net(x, code)[0], xs, jnp.stack([batch.code, batch.code]))
    _finite(
        jax.jit(jax.grad(lambda net: jnp.square(net(batch.x, batch.code)[0] - batch.y).mean()))(net)
    )


def model_many(model: Any) -> None:
    """Where its network has `many`, tasks together give what they give one by one."""
    net, batch = _network(model)
    if not hasattr(net, "many"):
        return
    x, code = (
        jnp.stack([batch.x, -batch.x, batch.x]),
        jnp.stack([batch.code, batch.code, batch.code[::-1]]),
    )
    together, *alone = jax.jit(lambda net: (net.many(x, code), *map(net, x, code)))(net)
    names = set(alone[0][1])
    assert set(together[1]) == names, (
        f"`many` names its activations {sorted(together[1])}, one task {sorted(names)}"
    )
    alone = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    _same(together, alone, 1e-4, "`many` gave other numbers than one task at a time")


def model_low_precision(model: Any) -> None:
    """Where its network says mixed_precision, bfloat16 matrices give nearly the same numbers and finite gradients."""
    net, batch = _network(model)
    low = low_copy(Run(recipe=Fast(precision="bfloat16")), net)
    if low is None:
        return
    batch = jax.tree.map(lambda leaf: leaf[None], batch)

    def loss(net):
        prediction, activations = predict(net, batch)
        return jnp.square(prediction - batch.y).mean(), (prediction, activations)

    # Compiled as one: operation by operation would take most of a minute for a deep network.
    (_, (prediction, activations)), slope = jax.jit(jax.value_and_grad(loss, has_aux=True))(low)
    _finite((prediction, activations, slope))
    expected = predict(net, batch)[0]
    error = float(jnp.abs(prediction - expected).max() / (jnp.abs(expected).max() + 1e-6))
    assert error < ROUGHLY, (
        f"with bfloat16 matrices predictions are off by {error:.0%}: add and normalise in float32"
    )


def model_points_apart(model: Any) -> None:
    """A point's prediction depends on no other point, unless the model says `together = True`."""
    net, batch = _network(model)
    if not getattr(model, "together", False):
        alone = jnp.concatenate([net(x[None], batch.code)[0] for x in batch.x])
        assert np.allclose(net(batch.x, batch.code)[0], alone, atol=1e-4), (
            "if it is meant to, write together = True"
        )


def diagnostic_measures(diagnostic: Any) -> None:
    """It gives numbers, or vectors named with a *, the same for the same key."""
    lab = _laboratory()
    scores = diagnostic.measure(KEY, lab)
    assert scores, f"{label(diagnostic)} measured nothing"
    for name, value in scores.items():
        assert value.ndim == ("*" in name), (
            f"{name} has {value.ndim} axes: a vector's name needs a *, a number's none"
        )
    _same(scores, diagnostic.measure(KEY, lab))


def recipe_learns(recipe: Any) -> None:
    """A hundred steps of it lower a quadratic loss."""
    weights = {"matrix": jnp.ones((4, 3)), "vector": jnp.ones(3)}
    optimiser = recipe.optimiser(100)

    def loss(w):
        return sum(jnp.square(leaf - 0.5).sum() for leaf in _leaves(w))

    def step(carry, _):
        w, state = carry
        updates, state = optimiser.update(jax.grad(loss)(w), state, w)
        return (jax.tree.map(jnp.add, w, updates), state), None

    (after, _), _ = jax.lax.scan(step, (weights, optimiser.init(weights)), length=100)
    assert loss(after) < loss(weights), f"the loss went from {loss(weights)} to {loss(after)}"


CONTRACTS: dict[str, list[Contract]] = {
    "family": [
        constructs,
        knobs_are_floats,
        family_table,
        family_is_pure,
        family_traces,
        family_scores,
    ],
    "support": [constructs, knobs_are_floats, support_splits, support_keeps_guarantees],
    "encoding": [constructs, knobs_are_floats, encoding_codes, encoding_traces],
    "model": [
        *(constructs, knobs_are_floats, model_shapes, model_traces),
        *(model_many, model_low_precision, model_points_apart),
    ],
    "diagnostic": [constructs, knobs_are_floats, diagnostic_measures],
    "recipe": [constructs, knobs_are_floats, recipe_learns],
}


def _leaves(tree: Any) -> list:
    return jax.tree.leaves(tree)


def _same(
    one: Any, other: Any, tolerance: float = 0, message: str = "the same input gave other numbers"
) -> None:
    for a, b in zip(_leaves(one), _leaves(other), strict=True):
        assert np.shape(a) == np.shape(b), f"{message}: shapes {np.shape(a)} and {np.shape(b)}"
        assert np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True), message


def _finite(tree: Any) -> None:
    assert all(np.isfinite(leaf).all() for leaf in _leaves(tree)), "not finite"


def _traces(function: Callable, *args: Any) -> None:
    singles = [function(*(arg[i] for arg in args)) for i in range(len(args[0]))]
    _same(singles[0], jax.jit(function)(*(arg[0] for arg in args)), 1e-4)
    _same(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles), jax.vmap(function)(*args), 1e-4
    )


def _encoder(encoding: Any) -> Callable:
    params, world = encoding.init(KEY, SMALL), SMALL.init(KEY)
    return lambda key, task: encoding.encode(params, key, task, examples_of(SMALL, world, task))


def _network(model: Any) -> tuple[Any, Batch]:
    task = jnp.array([0.5, 0, 0, 1, 0, 0])
    world = SMALL.init(KEY)
    x, y = SMALL.sample(world, KEY, task, 8)
    batch = Batch(x, y, task, task)
    given = (KEY, batch, SMALL.num_outputs, 0, world)
    try:
        inspect.signature(model.init).bind(*given)
    except TypeError as error:
        raise AssertionError(
            "write init(self, key, example, num_outputs, num_tokens=0, world=None)"
        ) from error
    return model.init(*given), batch


def _laboratory() -> Laboratory:
    run = Run(family=SMALL, model=MLP(widths=(8, 8)), num_points=4)
    shared = jax.tree.map(jnp.asarray, make_shared(SMALL))
    split = Split(*map(jnp.asarray, make_split(run, np.asarray(shared.table))[0]))
    return Laboratory(run, shared, split, Setting(SMALL.init(KEY), ()), _network(run.model)[0])
