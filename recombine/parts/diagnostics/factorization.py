"""Is a layer a sum of parts, one for each active module? The additive decomposition of what a layer makes of a task.

    h_t = mean + sum_m z_tm u_m,   h_t a layer's activation averaged over the points of task t, z_t the task's weights

The parts u_m are fitted on train tasks. R2 is what they explain of h_t on fresh samples of train tasks ("seen") and on
test tasks, raw (all variance) and whitened (every direction of h_t counts alike). Orthogonal parts, each the same in
any company, are what arXiv 2507.07102 and 2602.24264 say generalisation requires.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recombine.basics.errors import require
from recombine.parts.decoder import fit_ridges, probed, solve_spd
from recombine.parts.field_checks import check
from recombine.parts.protocols import Lab, Observation, Split


class Means(NamedTuple):
    """Tasks, and the mean activation of a layer over either half of each task's points.

    The mean over few points has an error of its own. The two halves' errors are independent, so that a product of the
    halves has none on average: products take the place of squares. (Steps of one episode are less independent.)
    """

    task: Float[Array, "n M"]
    halves: Float[Array, "2 n d"]

    def centred(self) -> Float[Array, "2 n d"]:
        """The halves without the mean of all tasks."""
        return self.halves - self.halves.mean(axis=(0, 1))


class Sum(NamedTuple):
    """The additive model of a layer."""

    mean: Float[Array, " d"]
    parts: Float[Array, "M d"]

    def units(self) -> Float[Array, "M d"]:
        """The parts with length 1; NaN where the train tasks tell nothing about one."""
        length = jnp.sqrt(jnp.square(self.parts).sum(axis=1, keepdims=True))
        return self.parts / jnp.where(length > 0, length, jnp.nan)


@dataclass(frozen=True)
class Factorization:
    """`l2` is relative to a mean variance: of the modules' weights in the fit, of a layer's units in the whitening,
    where directions with less than it hardly count."""

    num_fit: int = 512
    num_seen: int = 512
    num_test: int = 1024
    l2: float = 1e-3

    def __post_init__(self):
        check(self, num_fit=4, num_seen=2, num_test=2, l2=0)
        require(
            self.l2 > 0,
            "Factorization.l2 must be above 0: a layer with a dead unit has no solution without it",
        )

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """Scores by layer; `deepest` is the last hidden one.

        `r2` and `whitened_r2` by side; `shuffled_r2` on test tasks, by parts that were fitted on train tasks in another
        order; `cos_across`, the mean |cos| of the parts of two modules; `cos_within`, of a module's part fitted on one
        half of the train tasks and on the other; `rank`, the participation ratio of the variances of h_t (a count
        of directions for 95% of it would need them one by one).
        """
        key_one, key_other, key_seen, key_test, key_order = jax.random.split(key, 5)
        one, other = (lab.table[rows] for rows in _apart(lab.split, self.num_fit // 2))
        looks = lab.look(key_one, one), lab.look(key_other, other)
        looks += (
            lab.observe(key_seen, "train", self.num_seen),
            lab.observe(key_test, "test", self.num_test),
        )
        order = jax.random.permutation(key_order, len(one) + len(other))
        found: dict[str, Array] = {}
        for names, *alike in _by_width([_by_layer(look) for look in looks]):
            scores = jax.vmap(
                lambda one, other, seen, test: _scores(one, other, seen, test, order, self.l2)
            )(*alike)
            found |= {
                f"{name}/{score}": v[i]
                for score, v in scores.items()
                for i, name in enumerate(names)
            }
        hidden = [name for name in looks[0].activations if name.startswith("hidden")]
        for last in sorted(hidden, key=lambda name: (len(name), name))[-1:]:  # 11 comes after 9
            own = {name: score for name, score in found.items() if name.startswith(f"{last}/")}
            found |= {name.replace(last, "deepest", 1): score for name, score in own.items()}
        return found


def _apart(split: Split, n: int) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
    """n train tasks of one half of them, and n of the other. (A single train task is in both.)"""
    second = jnp.maximum(split.num_train // 2, 1)
    first = split.num_train - split.num_train // 2
    place = jnp.arange(n)
    return split.order[place % first], split.order[split.num_train - second + place % second]


def _by_layer(seen: Observation) -> dict[str, Means]:
    def halves(h):
        h = h.reshape(*h.shape[:2], -1).astype(jnp.float32)
        middle = h.shape[1] // 2
        return jnp.stack([h[:, :middle].mean(axis=1), h[:, middle:].mean(axis=1)])

    return {name: Means(seen.batch.task, halves(h)) for name, h in probed(seen.activations).items()}


def _by_width(looks: list[dict[str, Means]]) -> Iterator[Any]:
    """Layers of one width are measured together: their names, and each look at them stacked."""
    for width in {means.halves.shape[2] for means in looks[0].values()}:
        names = [name for name, means in looks[0].items() if means.halves.shape[2] == width]
        yield (
            names,
            *(
                jax.tree.map(lambda *leaves: jnp.stack(leaves), *(look[n] for n in names))
                for look in looks
            ),
        )


def _scores(
    one: Means, other: Means, seen: Means, test: Means, order: Array, l2: float
) -> dict[str, Array]:
    """The scores of one layer, fitted on two sets of train tasks."""
    both, *twice = (
        _join(*pair) for pair in ((one, other), (one, one), (other, other))
    )  # all of one shape
    stacked = jax.tree.map(
        lambda *sets: jnp.stack(sets), both, both._replace(task=both.task[order]), *twice
    )
    fitted, shuffled, *apart = _unstack(jax.vmap(lambda means: _fit(means, l2))(stacked), 4)
    halves = both.centred()
    h, shared = halves.mean(axis=0), _dot(halves[0].T, halves[1])
    penalty = l2 * jnp.square(h).sum() / h.shape[1]
    eye = jnp.eye(h.shape[1])
    # The size of a whitened vector needs the inverse of the covariance, and not its root.
    inverse = solve_spd(_dot(h.T, h) + jnp.where(penalty > 0, penalty, 1.0) * eye, eye)
    found = {"test/shuffled_r2": _r2(shuffled, test)}
    for side, new in {"seen": seen, "test": test}.items():
        found |= {f"{side}/r2": _r2(fitted, new), f"{side}/whitened_r2": _r2(fitted, new, inverse)}
    parts = fitted.units()
    found["cos_within"] = jnp.nanmean(jnp.abs((apart[0].units() * apart[1].units()).sum(axis=1)))
    found["cos_across"] = jnp.nanmean(
        jnp.abs(_dot(parts, parts.T)), where=~jnp.eye(len(parts), dtype=bool)
    )
    found["rank"] = jnp.square(jnp.trace(shared)) / jnp.square(shared).sum()
    return found


def _join(one: Means, other: Means) -> Means:
    return Means(
        jnp.concatenate([one.task, other.task]), jnp.concatenate([one.halves, other.halves], axis=1)
    )


def _unstack(tree: Any, n: int) -> list[Any]:
    return [jax.tree.map(lambda leaf, i=i: leaf[i], tree) for i in range(n)]


def _fit(means: Means, l2: float) -> Sum:
    """Least squares with a small ridge."""
    predict = fit_ridges({"": means.task}, means.halves.mean(axis=0), l2)[""]
    mean, *parts = predict(jnp.eye(means.task.shape[1] + 1, means.task.shape[1], -1))
    return Sum(mean, jnp.stack(parts) - mean)


def _r2(fitted: Sum, new: Means, inverse: Array | None = None) -> Float[Array, ""]:
    """What the parts explain of the variance of new means; NaN where they do not vary."""

    def size(halves):
        return (halves[0] * (halves[1] if inverse is None else _dot(halves[1], inverse))).sum()

    spread = size(new.centred())
    missed = new.halves - fitted.mean - _dot(new.task, fitted.parts)
    varies = spread > 1e-10 * size(new.halves)  # more than rounding makes of a constant
    return jnp.where(varies, 1 - size(missed) / spread, jnp.nan)


def _dot(a: Array, b: Array) -> Array:
    # Covariances would lose their small eigenvalues in TF32.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
