"""Do trained coordinate networks move factors of an image one at a time?

Claim: a network that is trained by gradient descent to draw an image has a fractured, entangled
representation: moving a single weight breaks the symmetry of the image and moves several of its
parts. A network with a factored representation of the same image does not (arXiv 2505.11581, which
shows pictures, no numbers).

Targets are images that we build from factors, symmetric in x, so that the factored solution is
known (`_coordinate_networks.py`). We compare it with
- `trained`: a random network that is trained to draw the image, by Adam as in the source,
- `sparse`: the same, pruned to three times as many weights as the factored solution has, and
  trained again. The source's factored networks are sparse, which trained ones are not,
- `started at factored`: the factored solution, all weights disturbed, and trained.
Every weight that is not 0 is moved by 5% of the root mean square of these weights. Measured are the
symmetry violation of the change, and whether more than 90% of the change is explained by small
changes of one factor. Control: moves of equal length in random directions.

Command:  recombine run fractured_images --scale small
Runtime:  small: at most 8 minutes on 2 cores; full scale was not measured.
Expected: trained networks break the symmetry; it is open whether sparseness explains the rest.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from recombine.basics.statistics import MIN_SEEDS
from recombine.experiments import claim
from recombine.experiments.claim import Frame, Measurement, where
from recombine.experiments.limits import _coordinate_networks as networks
from recombine.experiments.plots import bars, scatter
from recombine.parts.prng import new_key, stream

TITLE = "Single weights of networks that draw an image"
SOURCE = "arXiv 2505.11581"
FACTORED, TRAINED, SPARSE = "factored", "trained", "sparse"
STARTED = "started at factored"
SINGLE, RANDOM = "single weights", "random directions"
NUM_FACTORS = 3
MIN_SHARE = 0.9  # of a change that one factor explains
MOVE = 0.05  # relative to the root mean square of the weights that are not 0
NOISE = 0.1  # of the start near the factored solution, in the same unit
SPARSE_FACTOR = 3
NUM_RANDOM = 64
MIN_R2 = 0.98  # of the image, for all networks
SEEDS = {"tiny": 3, "small": 8, "full": 16}
SIZES = {"tiny": 8, "small": 32, "full": 128}  # pixels on a side
WIDTHS = {"tiny": 12, "small": 12, "full": 24}
STEPS = {"tiny": 50, "small": 4000, "full": 50_000}


def cells(scale: str) -> list[dict[str, Any]]:
    """One cell for each kind of network. Its rows are those of all seeds and kinds of moves."""
    return [{"scale": scale, "network": kind} for kind in (FACTORED, TRAINED, SPARSE, STARTED)]


def measure(scale: str, network: str) -> list[dict[str, Any]]:
    """Train networks and move their weights: a row for every seed and kind of move."""
    num_seeds = SEEDS[scale]
    measured = jax.device_get(_measure(scale, network, jnp.arange(num_seeds)))
    rows = []
    for seed in range(num_seeds):
        for moves in (SINGLE, RANDOM):
            columns = {name: float(values[seed]) for name, values in measured[moves].items()}
            rows.append({"seed": seed, "moves": moves, "r2": float(measured["r2"][seed])} | columns)
    return rows


@functools.partial(jax.jit, static_argnums=(0, 1))
def _measure(scale: str, network: str, seeds: Any) -> dict[str, Any]:
    """The scores of all seeds."""
    size = SIZES[scale]
    inputs = jnp.asarray(networks.pixels(size))

    def of_seed(seed):
        key = jax.random.fold_in(stream(new_key(0), "images"), seed)
        factors = networks.draw_factors(stream(key, "factors"), NUM_FACTORS)
        wanted = networks.target(factors, inputs)
        weights = _weights(scale, network, key, factors, wanted, inputs)
        flat = ravel_pytree(weights)[0]
        is_used = flat != 0
        length = MOVE * jnp.sqrt(jnp.square(flat).sum() / is_used.sum())
        random = jax.random.normal(stream(key, "directions"), (NUM_RANDOM, flat.size)) * is_used
        random = length * random / jnp.linalg.norm(random, axis=1, keepdims=True)
        return {
            "r2": networks.r2(weights, wanted, inputs),
            SINGLE: _scores(weights, length * jnp.eye(flat.size), is_used, factors, inputs, size),
            RANDOM: _scores(weights, random, jnp.ones(NUM_RANDOM), factors, inputs, size),
        }

    return jax.vmap(of_seed)(seeds)


def _weights(
    scale: str, network: str, key: Any, factors: Any, wanted: Any, inputs: Any
) -> networks.Weights:
    width = WIDTHS[scale]
    factored = networks.factored_weights(factors, width)
    if network == FACTORED:
        return factored
    train = functools.partial(networks.train, wanted=wanted, inputs=inputs, num_steps=STEPS[scale])
    everything = jax.tree.map(jnp.ones_like, factored)
    flat, unravel = ravel_pytree(factored)
    num_used = (flat != 0).sum()
    if network == STARTED:
        scale_of_noise = NOISE * jnp.sqrt(jnp.square(flat).sum() / num_used)
        noise = jax.random.normal(stream(key, "noise"), flat.shape)
        return train(unravel(flat + scale_of_noise * noise), everything)
    trained = train(networks.random_weights(stream(key, "start"), width), everything)
    if network == TRAINED:
        return trained
    return train(trained, networks.largest(trained, SPARSE_FACTOR * num_used))


def _scores(
    weights: Any, directions: Any, is_used: Any, factors: Any, inputs: Any, size: int
) -> dict[str, Any]:
    """Means over the directions that are used."""
    moves = networks.changes(weights, directions, inputs)
    # A weight of a unit without effect changes nothing.
    counts = is_used * (jnp.square(moves).mean(axis=1) > 1e-12)
    total = jnp.maximum(counts.sum(), 1)
    one = networks.share_of_one_factor(moves, factors, inputs) > MIN_SHARE
    return {
        "asymmetry": (counts * networks.asymmetry(moves, size)).sum() / total,
        "one factor": (counts * one).sum() / total,
        "weights": counts.sum(),
    }


def mean(column: str, network: str, moves: str = SINGLE) -> claim.Statistic:
    """The mean of a column for one kind of network and of moves."""

    def statistic(frame: Frame) -> float:
        chosen = frame[(frame["network"] == network) & (frame["moves"] == moves)]
        return float(chosen[column].mean())

    return statistic


def gap(column: str, first: str, second: str) -> claim.Statistic:
    """The difference of the means of two kinds of networks, for single weights."""
    return lambda frame: mean(column, first)(frame) - mean(column, second)(frame)


def _sparse_explains(column: str, first: str, second: str) -> Any:
    """Whether pruning removes more than half of the gap between the factored and the trained.

    Only sparse networks that draw the image count. With fewer than 3 of them it cannot be excluded.
    """

    def explains(measurement: Measurement) -> bool:
        frame = measurement.all_rows
        frame = frame[(frame["network"] != SPARSE) | (frame["r2"] >= MIN_R2)]
        if frame.loc[frame["network"] == SPARSE, "seed"].nunique() < MIN_SEEDS:
            return True
        kinds = [SPARSE if kind == TRAINED else kind for kind in (first, second)]
        return gap(column, kinds[0], kinds[1])(frame) < measurement.value / 2

    return explains


NEEDS = ("network", "moves", "asymmetry", "one factor")
AFTER_ROWS = "sparse networks that do not draw the image do not count as a control"
CLAIMS = [
    claim.reproduces(
        "symmetry",
        "Moving a single weight breaks the symmetry in trained networks, not in factored ones "
        "(difference of the symmetry violation)",
        published="shown in pictures",
        needs=NEEDS,
        statistic=gap("asymmetry", TRAINED, FACTORED),
        passes=claim.above(0.5),
        control="a sparse trained network must break it, too",
        is_confounded=_sparse_explains("asymmetry", TRAINED, FACTORED),
        after_rows=AFTER_ROWS,
    ),
    claim.reproduces(
        "one factor",
        "Moving a single weight moves one factor more often in factored networks than in trained "
        "ones (difference of shares)",
        published="shown in pictures",
        needs=NEEDS,
        statistic=gap("one factor", FACTORED, TRAINED),
        passes=claim.above(0.3),
        control="a sparse trained network must do so rarely, too",
        is_confounded=_sparse_explains("one factor", FACTORED, TRAINED),
        after_rows=AFTER_ROWS,
    ),
    claim.hypothesis(
        "start",
        "Training that starts near the factored solution breaks the symmetry less than training "
        "from a random network (difference of the symmetry violation)",
        needs=NEEDS,
        statistic=gap("asymmetry", TRAINED, STARTED),
        passes=claim.above(0.25),
    ),
    claim.control(
        "random directions",
        "Random directions in the weights of the factored solution do not move one factor (share)",
        needs=NEEDS,
        statistic=mean("one factor", FACTORED, RANDOM),
        passes=claim.at_most(0.2),
    ),
    claim.control(
        "equal images",
        "All networks, pruned ones included, draw the image (smallest R2)",
        rows=where({"moves": SINGLE}),
        needs=("r2",),
        statistic=claim.min_of("r2"),
        passes=claim.at_least(MIN_R2),
    ),
]


def summary(rows: Frame) -> dict[str, float]:
    """The means of every kind of network and of moves."""
    means = rows.groupby(["network", "moves"])[["asymmetry", "one factor", "r2"]].mean()
    return {
        f"{network}, {moves}: {column}": float(np.asarray(means.loc[(network, moves), column]))
        for network, moves in means.index
        for column in means.columns
    }


FIGURES = [
    bars(
        "asymmetry",
        against="network",
        color="moves",
        name="asymmetry",
        title="Symmetry violation when weights are moved",
        x_title="network",
        y_title="|D - flip(D)|² / |D|² of the change D",
    ),
    bars(
        "one factor",
        against="network",
        color="moves",
        name="factors",
        title="Moves that change one factor only",
        x_title="network",
        y_title="share of moves",
    ),
    scatter(
        "asymmetry",
        against="r2",
        color="network",
        rows=where({"moves": SINGLE}),
        name="images",
        title="Symmetry violation and quality of the image, one point per network",
        x_title="R² of the image",
        y_title="|D - flip(D)|² / |D|² of the change D",
    ),
]
