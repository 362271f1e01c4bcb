"""Students of one number of parameters and several depths."""

import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from recombine.basics.errors import require
from recombine.parts.models.mlp import MLP
from recombine.parts.models.sequence_transformer import SequenceTransformer
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch, Encoding, Family, Model

MAX_DEVIATION = 0.02  # of the number of parameters from that of the reference


@functools.lru_cache(maxsize=1024)
def num_parameters(model: Model, family: Family, encoding: Encoding) -> int:
    """The number of parameters of a student, from the shapes of its arrays. Nothing is drawn."""

    def draw() -> Any:
        key = new_key(0)
        task = family.weigh(key, jnp.asarray(family.tasks()[0]))
        world = family.init(key)
        x, y = family.sample(world, key, task, 2)

        def examples(key: Any, n: int) -> Any:
            return family.sample(world, key, task, n)

        code = encoding.encode(encoding.init(key, family), key, task, examples)
        example = Batch(x, y, code, task)
        net = model.init(key, example, family.num_outputs, encoding.num_tokens(family))
        return eqx.filter(net, eqx.is_inexact_array)

    leaves = jax.tree.leaves(jax.eval_shape(draw))
    return sum(math.prod(leaf.shape) for leaf in leaves)


def mlps(
    depths: tuple[int, ...],
    width: int,
    family: Family,
    encoding: Encoding,
    residual: bool = False,
) -> list[MLP]:
    """MLPs of these depths with as many parameters as one of two layers of this width."""

    def count(model: Model) -> int:
        return num_parameters(model, family, encoding)

    def of_width(depth: int, width: int) -> MLP:
        return MLP((width,) * depth, residual=residual)

    target = count(of_width(2, width))
    models = []
    for depth in depths:
        best = _closest(lambda size, depth=depth: count(of_width(depth, size)), target)
        models.append(of_width(depth, best))
    _check(models, count, target)
    return models


def transformers(
    depths: tuple[int, ...], width: int, family: Family, encoding: Encoding
) -> list[SequenceTransformer]:
    """Transformers with as many parameters as one of two blocks of this width.

    The number of blocks times the squared width is about constant, and widths are multiples of 8.
    The feed-forward networks make up for the rest.
    """

    def count(model: Model) -> int:
        return num_parameters(model, family, encoding)

    def of_size(depth: int, d_ff: int) -> SequenceTransformer:
        d_model = 8 * max(1, round(width * math.sqrt(2 / depth) / 8))
        num_heads = 4 if d_model >= 128 else 2 if d_model >= 64 else 1
        return SequenceTransformer(depth, d_model, num_heads, d_ff)

    target = count(of_size(2, 4 * width))
    models = []
    for depth in depths:
        best = _closest(lambda size, depth=depth: count(of_size(depth, size)), target)
        models.append(of_size(depth, best))
    _check(models, count, target)
    return models


def _closest(count: Callable[[int], int], target: int) -> int:
    """The size, from 1 on, at which a count is closest to the target.

    The count must be a polynomial of the size of degree 2 at most, as the number of weights is. So
    three counts give all others.
    """
    first, second, third = (count(size) for size in (1, 2, 3))
    curvature = third - 2 * second + first

    def at(size: int) -> int:
        return first + (size - 1) * (second - first) + (size - 1) * (size - 2) // 2 * curvature

    size = 1
    while at(size + 1) <= target:
        size += 1
    return min((size, size + 1), key=lambda size: abs(at(size) - target))


def _check(models: list[Any], count: Callable[[Model], int], target: int) -> None:
    """Raise an `InputError` unless all models have the target's number of parameters."""
    for model in models:
        deviation = abs(count(model) / target - 1)
        require(
            deviation <= MAX_DEVIATION,
            f"{model} has {count(model)} parameters, not {target} within {MAX_DEVIATION:.0%}: "
            "choose another reference width",
        )
