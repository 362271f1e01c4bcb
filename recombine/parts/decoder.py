"""Reads tasks from activations: ridge regressions from every layer to the module weights, fitted on train tasks.

    W = argmin sum_i |y_i - b - W h_i|^2 + l2 |W|^2,   h_i a layer's activation at a point, y_i the task's weights

What the decodability diagnostics share. Each layer takes one factorisation, all layers of a network one batch.
"""

import functools
import re
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from recombine.parts.protocols import Observation

Decoder = Callable[[Float[Array, "n d"]], Float[Array, "n M"]]


def scores(
    fit: Observation, sides: Mapping[str, Observation], l2: float | None
) -> dict[str, Array]:
    """The R2 of every layer's decoder on each side, for all modules and each of them; fitted on `fit`.

    `best` is the hidden layer that scores highest on the side `seen`, `deepest` the last one, `code` the same from the
    code itself. With `l2=None` it is all as in the public code: layers before their ReLU, the last point of a task.
    """
    found, hidden = {}, []
    for look in (
        functools.partial(_layers, l2 is None),
        _code,
    ):  # a layer has a sample per point, a code one per task
        decoders = fit_ridges(*look(fit), l2)
        for side, observed in sides.items():
            layers, task = look(observed)
            for layer, h in layers.items():
                r2 = r2_by_column(decoders[layer](h), task)
                found |= {f"{layer}/{side}/module=*/r2": r2, f"{layer}/{side}/r2": jnp.nanmean(r2)}
        hidden += [layer for layer in decoders if layer not in ("code", "output")]
    hidden.sort(key=_depth)
    if not hidden:
        return found
    best = jnp.argmax(jnp.stack([found[f"{layer}/seen/r2"] for layer in hidden]))
    for side in sides:
        r2s = jnp.stack([found[f"{layer}/{side}/r2"] for layer in hidden])
        found |= {f"best/{side}/r2": r2s[best], f"deepest/{side}/r2": r2s[-1]}
    return found


def probed(activations: dict[str, Array]) -> dict[str, Array]:
    """The layers that probes decode: all but the units inside a transformer's blocks (`feedforward0`, …)."""
    return {name: h for name, h in activations.items() if not name.startswith("feedforward")}


def _layers(public: bool, seen: Observation) -> tuple[dict[str, Array], Array]:
    """The features of every layer, and the task to be read from each of them."""
    kept = probed(seen.activations)
    if public:
        kept = {name: h[:, -1:] for name, h in kept.items() if not name.startswith("hidden")}
    num_points = next(iter(kept.values())).shape[1]
    flat = {
        name: h.reshape(h.shape[0] * num_points, -1).astype(jnp.float32) for name, h in kept.items()
    }
    return flat, jnp.repeat(seen.batch.task, num_points, axis=0)


def _code(seen: Observation) -> tuple[dict[str, Array], Array]:
    code = seen.batch.code
    return {"code": code.reshape(code.shape[0], -1).astype(jnp.float32)}, seen.batch.task


def fit_ridges(
    layers: dict[str, Array], y: Float[Array, "n M"], l2: float | None
) -> dict[str, Decoder]:
    """Exact ridge regressions from several layers to y, as functions from features to predictions.

    The intercept is not penalised and `l2` is relative to a layer's mean variance. With `l2=None` the public code's
    problem is solved instead: a penalty of 1 on the sum of squares, and on the intercept too.
    """
    problems = {
        name: _center(h, y) if l2 is not None else _append_one(h, y) for name, h in layers.items()
    }
    systems = []
    for h, y_, _ in problems.values():
        variance = jnp.square(h).mean()
        penalty = 1.0 if l2 is None else l2 * h.shape[0] * jnp.where(variance > 0, variance, 1.0)
        # The smaller of two equivalent systems: features x features, or samples x samples.
        tall = h.shape[1] <= h.shape[0]
        gram, right = (_dot(h.T, h), _dot(h.T, y_)) if tall else (_dot(h, h.T), y_)
        systems.append((gram + penalty * jnp.eye(len(gram)), right))
    size = max(len(gram) for gram, _ in systems)
    grams, rights = zip(*(_pad(gram, right, size) for gram, right in systems), strict=True)
    solutions = jax.vmap(functools.partial(solve_spd, block=32))(
        jnp.stack(grams), jnp.stack(rights)
    )
    decoders = {}
    for (name, (h, _, predict)), x in zip(problems.items(), solutions, strict=True):
        decoders[name] = predict(
            x[: h.shape[1]] if h.shape[1] <= h.shape[0] else _dot(h.T, x[: h.shape[0]])
        )
    return decoders


def _depth(layer: str) -> tuple[int, bool]:
    # pre0, hidden0, pre1, …: JAX hands dictionaries back in alphabetical order.
    return int(re.sub(r"\D", "", layer) or 0), not layer.startswith("pre")


def _center(h: Array, y: Array):
    mean_h, mean_y = h.mean(axis=0), y.mean(axis=0)
    return h - mean_h, y - mean_y, lambda weights: lambda new: _dot(new - mean_h, weights) + mean_y


def _append_one(h: Array, y: Array):
    def widen(h):
        return jnp.concatenate([h, jnp.ones((h.shape[0], 1))], axis=1)

    return widen(h), y, lambda weights: lambda new: _dot(widen(new), weights)


def _dot(a: Array, b: Array) -> Array:
    # Gram matrices would lose their small eigenvalues in TF32.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _pad(gram: Array, right: Array, size: int) -> tuple[Array, Array]:
    """Extend a system by equations 1 x = 0, so that layers of different widths are solved together."""
    extra = size - len(gram)
    tail = jnp.concatenate([jnp.zeros(len(gram)), jnp.ones(extra)])
    return jnp.pad(gram, (0, extra)) + jnp.diag(tail), jnp.pad(right, ((0, extra), (0, 0)))


def solve_spd(
    a: Float[Array, "n n"], b: Float[Array, "n m"], block: int = 32
) -> Float[Array, "n m"]:
    """Solve a x = b for a positive definite a, by Gauss-Jordan elimination of whole blocks.

    Not LAPACK's Cholesky: on a CPU with few cores, two batched calls of it in one program wait for each other's
    threads for ever. Without pivots this is as stable as Cholesky, a being positive definite.
    """
    n = len(a)
    a, b = _pad(a, b, n + -n % block)

    def eliminate(i, ab, size):
        rows = jax.lax.dynamic_slice_in_dim(ab, i * size, size, axis=0)
        columns = jax.lax.dynamic_slice_in_dim(ab, i * size, size, axis=1)
        pivot = jax.lax.dynamic_slice_in_dim(rows, i * size, size, axis=1)
        rows = rows / pivot if size == 1 else _dot(invert(pivot), rows)
        return jax.lax.dynamic_update_slice_in_dim(ab - _dot(columns, rows), rows, i * size, axis=0)

    def invert(p):
        step = functools.partial(eliminate, size=1)
        return jax.lax.fori_loop(0, block, step, jnp.concatenate([p, jnp.eye(block)], axis=1))[
            :, block:
        ]

    step = functools.partial(eliminate, size=block)
    return jax.lax.fori_loop(0, len(a) // block, step, jnp.concatenate([a, b], axis=1))[
        :n, len(a) :
    ]


def r2_by_column(prediction: Float[Array, "n M"], y: Float[Array, "n M"]) -> Float[Array, " M"]:
    """R2 of every column against its own mean; NaN where the column is constant."""
    spread = jnp.square(y - y.mean(axis=0)).sum(axis=0)
    return jnp.where(spread > 1e-10, 1 - jnp.square(prediction - y).sum(axis=0) / spread, jnp.nan)
