"""Linear decoders of tasks from activations: ridge regressions from every layer to module weights.

    W = argmin sum_i |y_i - b - W h_i|^2 + l2 |W|^2

h_i is a layer's activation at a point and y_i the module weights of the point's task. The
decodability diagnostics share this code. Each layer takes one factorization, and all layers of a
network are solved as one batch.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from recombine.parts.protocols import Observation

Decoder = Callable[[Float[Array, "n d"]], Float[Array, "n M"]]
Features = tuple[dict[str, Array], Array]  # the features of layers by name, and the tasks


def scores(
    fit: Observation, sides: Mapping[str, Observation], l2: float | None
) -> dict[str, Array]:
    """R2 of every layer's decoder on each side, on average over modules and for each module.

    Decoders are fitted on `fit`. Names are `LAYER/SIDE/r2` and `LAYER/SIDE/module=*/r2`. `code` is
    the decoder from the code itself. `best` is the hidden layer with the highest R2 on the side
    `seen`, `deepest` the last hidden layer. With `l2=None` all is as in the public code: layers
    before their ReLU, and only the last point of each task.
    """
    result: dict[str, Array] = {}
    hidden = []
    layer_features = functools.partial(_layer_features, as_public=l2 is None)
    for features in (layer_features, _code_features):
        decoders = fit_ridges(*features(fit), l2)
        for side, observed in sides.items():
            layers, task = features(observed)
            for layer, h in layers.items():
                r2 = r2_by_column(decoders[layer](h), task)
                result[f"{layer}/{side}/module=*/r2"] = r2
                result[f"{layer}/{side}/r2"] = jnp.nanmean(r2)
        hidden += [layer for layer in decoders if layer not in ("code", "output")]
    if hidden:
        hidden.sort(key=_depth)
        result |= _best_and_deepest(result, hidden, sides)
    return result


def _best_and_deepest(
    r2: Mapping[str, Array], hidden: list[str], sides: Mapping[str, Observation]
) -> dict[str, Array]:
    """R2 of the hidden layer that is best on the side `seen`, and of the last hidden layer."""
    best = jnp.argmax(jnp.stack([r2[f"{layer}/seen/r2"] for layer in hidden]))
    result = {}
    for side in sides:
        by_layer = jnp.stack([r2[f"{layer}/{side}/r2"] for layer in hidden])
        result[f"best/{side}/r2"] = by_layer[best]
        result[f"deepest/{side}/r2"] = by_layer[-1]
    return result


def probed_layers(activations: dict[str, Array]) -> dict[str, Array]:
    """The activations that are decoded.

    These are all except the units inside a transformer's blocks (`feedforward0`, …) and the
    activations at the nodes of a computation (`nodes0`, …), which `ErrorPropagation` decodes.
    """
    skipped = ("feedforward", "nodes")
    return {name: h for name, h in activations.items() if not name.startswith(skipped)}


def _layer_features(observed: Observation, as_public: bool) -> Features:
    """One sample per point from every layer, and the task of each sample."""
    layers = probed_layers(observed.activations)
    if as_public:
        layers = {name: h[:, -1:] for name, h in layers.items() if not name.startswith("hidden")}
    num_points = next(iter(layers.values())).shape[1]
    features = {
        name: h.reshape(h.shape[0] * num_points, -1).astype(jnp.float32)
        for name, h in layers.items()
    }
    return features, jnp.repeat(observed.batch.task, num_points, axis=0)


def _code_features(observed: Observation) -> Features:
    """One sample per task from the code."""
    code = observed.batch.code
    return {"code": code.reshape(code.shape[0], -1).astype(jnp.float32)}, observed.batch.task


class _Problem(NamedTuple):
    """A ridge regression without an intercept, and the decoder for given weights."""

    h: Float[Array, "n d"]
    y: Float[Array, "n M"]
    decoder: Callable[[Float[Array, "d M"]], Decoder]

    @property
    def is_tall(self) -> bool:
        """Whether there are at least as many samples as features."""
        return self.h.shape[1] <= self.h.shape[0]


def fit_ridges(
    layers: dict[str, Array], y: Float[Array, "n M"], l2: float | None
) -> dict[str, Decoder]:
    """Fit exact ridge regressions from several layers to y; return functions that predict.

    The intercept is not penalized, and `l2` is relative to the mean variance of a layer's features.
    With `l2=None` the problem of the public code is solved instead: a penalty of 1 on the sum of
    squares, including the intercept.
    """
    to_problem = _append_one if l2 is None else _center
    problems = {name: to_problem(h, y) for name, h in layers.items()}
    systems = [_normal_equations(problem, l2) for problem in problems.values()]
    size = max(len(gram) for gram, _ in systems)
    grams, rights = zip(*(_pad(gram, right, size) for gram, right in systems), strict=True)
    solve_all = jax.vmap(functools.partial(solve_spd, block=32))
    solutions = solve_all(jnp.stack(grams), jnp.stack(rights))
    decoders = {}
    for (name, problem), solution in zip(problems.items(), solutions, strict=True):
        num_samples, num_features = problem.h.shape
        if problem.is_tall:
            weights = solution[:num_features]
        else:
            weights = _dot(problem.h.T, solution[:num_samples])
        decoders[name] = problem.decoder(weights)
    return decoders


def _normal_equations(problem: _Problem, l2: float | None) -> tuple[Array, Array]:
    """The smaller of two equivalent linear systems: features x features or samples x samples."""
    h, y, _ = problem
    variance = jnp.square(h).mean()
    penalty = 1.0 if l2 is None else l2 * h.shape[0] * jnp.where(variance > 0, variance, 1.0)
    if problem.is_tall:
        gram = _dot(h.T, h)
        right = _dot(h.T, y)
    else:
        gram = _dot(h, h.T)
        right = y
    return gram + penalty * jnp.eye(len(gram)), right


def _depth(layer: str) -> tuple[int, bool]:
    # The order is pre0, hidden0, pre1, …, but JAX returns dictionaries in alphabetical order.
    number = int(re.sub(r"\D", "", layer) or 0)
    return number, not layer.startswith("pre")


def _center(h: Array, y: Array) -> _Problem:
    mean_h = h.mean(axis=0)
    mean_y = y.mean(axis=0)

    def decoder(weights):
        return lambda new: _dot(new - mean_h, weights) + mean_y

    return _Problem(h - mean_h, y - mean_y, decoder)


def _append_one(h: Array, y: Array) -> _Problem:
    def with_one(h):
        return jnp.concatenate([h, jnp.ones((h.shape[0], 1))], axis=1)

    def decoder(weights):
        return lambda new: _dot(with_one(new), weights)

    return _Problem(with_one(h), y, decoder)


def _dot(a: Array, b: Array) -> Array:
    # In full precision: TF32 would lose the small eigenvalues of Gram matrices.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _pad(gram: Array, right: Array, size: int) -> tuple[Array, Array]:
    """Extend a system by equations 1 x = 0, so that systems of different sizes form a batch."""
    extra = size - len(gram)
    diagonal = jnp.concatenate([jnp.zeros(len(gram)), jnp.ones(extra)])
    return jnp.pad(gram, (0, extra)) + jnp.diag(diagonal), jnp.pad(right, ((0, extra), (0, 0)))


def solve_spd(
    a: Float[Array, "n n"], b: Float[Array, "n m"], block: int = 32
) -> Float[Array, "n m"]:
    """Solve a x = b for a positive definite a, by Gauss-Jordan elimination of whole blocks.

    LAPACK's Cholesky is not used: on a CPU with few cores, two batched calls in one program can
    deadlock. Elimination without pivoting is as stable as Cholesky for a positive definite a.
    """
    n = len(a)
    a, b = _pad(a, b, n + -n % block)

    def eliminate(i, ab, size):
        rows = jax.lax.dynamic_slice_in_dim(ab, i * size, size, axis=0)
        columns = jax.lax.dynamic_slice_in_dim(ab, i * size, size, axis=1)
        pivot = jax.lax.dynamic_slice_in_dim(rows, i * size, size, axis=1)
        rows = rows / pivot if size == 1 else _dot(invert(pivot), rows)
        return jax.lax.dynamic_update_slice_in_dim(ab - _dot(columns, rows), rows, i * size, axis=0)

    def invert(pivot):
        step = functools.partial(eliminate, size=1)
        extended = jnp.concatenate([pivot, jnp.eye(block)], axis=1)
        return jax.lax.fori_loop(0, block, step, extended)[:, block:]

    step = functools.partial(eliminate, size=block)
    extended = jnp.concatenate([a, b], axis=1)
    return jax.lax.fori_loop(0, len(a) // block, step, extended)[:n, len(a) :]


def r2_by_column(prediction: Float[Array, "n M"], y: Float[Array, "n M"]) -> Float[Array, " M"]:
    """R2 of every column against its own mean; NaN if the column is constant."""
    total = jnp.square(y - y.mean(axis=0)).sum(axis=0)
    return jnp.where(total > 1e-10, 1 - jnp.square(prediction - y).sum(axis=0) / total, jnp.nan)


probed = probed_layers  # the earlier name, which works until the next release
