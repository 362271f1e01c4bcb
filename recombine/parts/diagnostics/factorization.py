"""Additive factorization of a layer: is its activation a sum of one vector per active module?

    h_t = mean + sum_m z_tm u_m

h_t is a layer's activation averaged over the points of task t, and z_t holds the task's module
weights. The module vectors u_m are fitted on train tasks. R2 is the part of the variance of h_t
that they explain on fresh samples of train tasks ("seen") and on test tasks: raw, or whitened so
that every direction of h_t counts equally. arXiv 2507.07102 and 2602.24264 argue that compositional
generalization requires orthogonal module vectors that do not depend on the other modules in a task.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recombine.basics.errors import require
from recombine.parts.decoder import fit_ridges, probed_layers, solve_spd
from recombine.parts.field_checks import check
from recombine.parts.protocols import Lab, Observation, Split


class Means(NamedTuple):
    """Tasks, and a layer's mean activation over each half of every task's points.

    A mean over few points has a sampling error. The errors of the two halves are independent, so
    the product of the halves is unbiased, and products are used in place of squares. (The steps of
    one episode are not quite independent.)
    """

    task: Float[Array, "n M"]
    halves: Float[Array, "2 n d"]

    def centred(self) -> Float[Array, "2 n d"]:
        """The halves minus the mean over all tasks."""
        return self.halves - self.halves.mean(axis=(0, 1))


class Sum(NamedTuple):
    """The additive model of a layer: a mean, and one vector (a row of `parts`) per module."""

    mean: Float[Array, " d"]
    parts: Float[Array, "M d"]

    def units(self) -> Float[Array, "M d"]:
        """The module vectors with length 1; NaN for a module without a vector."""
        length = jnp.sqrt(jnp.square(self.parts).sum(axis=1, keepdims=True))
        return self.parts / jnp.where(length > 0, length, jnp.nan)


@dataclass(frozen=True)
class Factorization:
    """Scores of the additive model of every layer.

    The model is fitted on `num_fit` train tasks and scored on `num_seen` train and `num_test` test
    tasks. `l2` is the relative strength of two penalties: of the fit, relative to the mean variance
    of the module weights, and of the whitening, relative to the mean variance of a layer's units.
    Directions with less variance than the latter hardly count.
    """

    num_fit: int = 512
    num_seen: int = 512
    num_test: int = 1024
    l2: float = 1e-3

    def __post_init__(self):
        check(self, num_fit=4, num_seen=2, num_test=2, l2=0)
        require(
            self.l2 > 0,
            "Factorization.l2 must be above 0: "
            "otherwise the fit of a layer with dead units has no solution",
        )

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """Scores by layer; `deepest` is the last hidden layer.

        - `seen/r2`, `test/r2`, `seen/whitened_r2`, `test/whitened_r2`: explained variance.
        - `test/shuffled_r2`: the permuted-label control, fitted on permuted train tasks.
        - `cos_across`: mean |cos| between the vectors of two modules.
        - `cos_within`: mean |cos| between a module's vectors fitted on two halves of train tasks.
        - `rank`: the participation ratio of the variances of h_t.
        """
        key_first, key_second, key_seen, key_test, key_order = jax.random.split(key, 5)
        first_rows, second_rows = _two_halves(lab.split, self.num_fit // 2)
        observations = [
            lab.look(key_first, lab.table[first_rows]),
            lab.look(key_second, lab.table[second_rows]),
            lab.observe(key_seen, "train", self.num_seen),
            lab.observe(key_test, "test", self.num_test),
        ]
        order = jax.random.permutation(key_order, len(first_rows) + len(second_rows))

        def score_layer(first, second, seen, test):
            return _scores(first, second, seen, test, order, self.l2)

        result: dict[str, Array] = {}
        layer_means = [_means_by_layer(observation) for observation in observations]
        for names, *means in _by_width(layer_means):
            for score, values in jax.vmap(score_layer)(*means).items():
                for i, name in enumerate(names):
                    result[f"{name}/{score}"] = values[i]
        return result | _deepest(result, observations[0])


def _deepest(scores: dict[str, Array], observation: Observation) -> dict[str, Array]:
    """The scores of the last hidden layer, under the name `deepest`."""
    hidden = [name for name in observation.activations if name.startswith("hidden")]
    if not hidden:
        return {}
    last = max(hidden, key=lambda name: (len(name), name))  # hidden11 is after hidden9
    return {
        name.replace(last, "deepest", 1): score
        for name, score in scores.items()
        if name.startswith(f"{last}/")
    }


def _two_halves(split: Split, n: int) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
    """n rows from the first half of the train tasks, and n from the second.

    If there is only one train task, it is in both.
    """
    second_size = jnp.maximum(split.num_train // 2, 1)
    first_size = split.num_train - split.num_train // 2
    i = jnp.arange(n)
    first = split.order[i % first_size]
    second = split.order[split.num_train - second_size + i % second_size]
    return first, second


def _means_by_layer(observation: Observation) -> dict[str, Means]:
    def halves(h):
        h = h.reshape(*h.shape[:2], -1).astype(jnp.float32)
        middle = h.shape[1] // 2
        return jnp.stack([h[:, :middle].mean(axis=1), h[:, middle:].mean(axis=1)])

    layers = probed_layers(observation.activations)
    return {name: Means(observation.batch.task, halves(h)) for name, h in layers.items()}


def _by_width(observations: list[dict[str, Means]]) -> Iterator[Any]:
    """Group layers of equal width, which are measured together.

    Yields their names, followed by the stacked means of each observation.
    """
    first = observations[0]
    for width in {means.halves.shape[2] for means in first.values()}:
        names = [name for name, means in first.items() if means.halves.shape[2] == width]
        stacked = [_stack([layers[name] for name in names]) for layers in observations]
        yield names, *stacked


def _scores(
    first: Means, second: Means, seen: Means, test: Means, order: Array, l2: float
) -> dict[str, Array]:
    """The scores of one layer, fitted on two sets of train tasks."""
    both = _join(first, second)
    permuted = both._replace(task=both.task[order])
    # The sets are doubled, so that all four fits have the same shape.
    fits = _stack([both, permuted, _join(first, first), _join(second, second)])
    fitted, shuffled, of_first, of_second = _unstack(jax.vmap(lambda m: _fit(m, l2))(fits), 4)

    halves = both.centred()
    h = halves.mean(axis=0)
    covariance = _dot(halves[0].T, halves[1])
    penalty = l2 * jnp.square(h).sum() / h.shape[1]
    eye = jnp.eye(h.shape[1])
    # The length of a whitened vector needs the inverse of the covariance, not its root.
    inverse = solve_spd(_dot(h.T, h) + jnp.where(penalty > 0, penalty, 1.0) * eye, eye)

    result = {"test/shuffled_r2": _r2(shuffled, test)}
    for side, means in {"seen": seen, "test": test}.items():
        result[f"{side}/r2"] = _r2(fitted, means)
        result[f"{side}/whitened_r2"] = _r2(fitted, means, inverse)
    units = fitted.units()
    cos_within = (of_first.units() * of_second.units()).sum(axis=1)
    result["cos_within"] = jnp.nanmean(jnp.abs(cos_within))
    off_diagonal = ~jnp.eye(len(units), dtype=bool)
    result["cos_across"] = jnp.nanmean(jnp.abs(_dot(units, units.T)), where=off_diagonal)
    result["rank"] = jnp.square(jnp.trace(covariance)) / jnp.square(covariance).sum()
    return result


def _join(first: Means, second: Means) -> Means:
    return Means(
        jnp.concatenate([first.task, second.task]),
        jnp.concatenate([first.halves, second.halves], axis=1),
    )


def _stack(trees: list[Means]) -> Means:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _unstack(tree: Any, n: int) -> list[Any]:
    return [jax.tree.map(lambda leaf, i=i: leaf[i], tree) for i in range(n)]


def _fit(means: Means, l2: float) -> Sum:
    """Fit the additive model by least squares with a small ridge penalty."""
    num_modules = means.task.shape[1]
    predict = fit_ridges({"": means.task}, means.halves.mean(axis=0), l2)[""]
    # The predictions for no active module, and for each module alone.
    mean, *single = predict(jnp.eye(num_modules + 1, num_modules, -1))
    return Sum(mean, jnp.stack(single) - mean)


def _r2(fitted: Sum, means: Means, inverse: Array | None = None) -> Float[Array, ""]:
    """The fraction of the variance of `means` that the model explains; NaN if they are constant.

    With the `inverse` of the covariance, variance is measured in whitened coordinates.
    """

    def squared_length(halves):
        second = halves[1] if inverse is None else _dot(halves[1], inverse)
        return (halves[0] * second).sum()

    total = squared_length(means.centred())
    residual = means.halves - fitted.mean - _dot(means.task, fitted.parts)
    varies = total > 1e-10 * squared_length(means.halves)  # more than rounding
    return jnp.where(varies, 1 - squared_length(residual) / total, jnp.nan)


def _dot(a: Array, b: Array) -> Array:
    # In full precision: TF32 would lose the small eigenvalues of covariances.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
