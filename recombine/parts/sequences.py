"""Tasks as sequences: a row of words, filled up with 0, in the order in which they are used.

Families of sequences use these functions. They build the table of rows, and the views that supports
read: a set of modules says nothing about order, but neighbors and positions do.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from recombine.basics.errors import InputError, require
from recombine.basics.random_streams import generator
from recombine.parts.protocols import Nodes

VIEWS = ("modules", "neighbors", "positions", "lengths")
MAX_ROWS = 2_000_000  # of a table
MAX_CELLS = 1_000_000_000  # rows x features of the largest view of a table


def count(num_words: int, length: int, repeat: bool) -> int:
    """The number of sequences of one length."""
    return num_words**length if repeat else math.perm(num_words, length)


def check_table(name: str, num_rows: int, num_words: int, width: int) -> None:
    """Raise an `InputError` for a table that is too large."""
    require(
        num_rows <= MAX_ROWS,
        f"{name} would have a table of {num_rows:,} tasks, more than {MAX_ROWS:,}: lower the "
        "number of sequences of a length, or the length",
    )
    num_features = num_words * max(num_words, width)
    require(
        num_rows * num_features <= MAX_CELLS,
        f"{name} would have views of {num_rows:,} tasks and {num_features:,} features, which is "
        "too large: lower the number of tasks, of modules, or the length",
    )


def rows_of_length(
    num_words: int, length: int, width: int, repeat: bool, most: int, seed: int
) -> Int[np.ndarray, "N width"]:
    """All sequences of one length, sorted, or `most` distinct ones drawn uniformly."""
    total = count(num_words, length, repeat)
    if total <= most:
        words = range(1, num_words + 1)
        product = itertools.product(words, repeat=length)
        listed = product if repeat else itertools.permutations(words, length)
        rows = np.array(list(listed), np.int16)
    else:
        rng = generator(seed, f"length {length}")
        rows = _draw_distinct(rng, num_words, length, repeat, most)
    return np.pad(rows, ((0, 0), (0, width - length)))


def _draw_distinct(
    rng: np.random.Generator, num_words: int, length: int, repeat: bool, num_rows: int
) -> np.ndarray:
    rows = np.zeros((0, length), np.int16)
    while len(rows) < num_rows:
        if repeat:
            drawn = rng.integers(1, num_words + 1, (2 * num_rows, length))
        else:
            drawn = rng.random((2 * num_rows, num_words)).argsort(axis=1)[:, :length] + 1
        rows = np.concatenate([rows, drawn.astype(np.int16)])
        first = np.unique(rows, axis=0, return_index=True)[1]
        rows = rows[np.sort(first)]  # in the order of their first appearance: a uniform draw
    return rows[:num_rows]


def lengths(rows: np.ndarray) -> Int[np.ndarray, " N"]:
    """The number of words of each row."""
    return (rows > 0).sum(axis=1, dtype=np.int32)


def view(name: str, rows: Int[np.ndarray, "N width"], num_words: int) -> np.ndarray:
    """0/1 rows (N, features): which features of a kind each sequence has.

    - `modules`: word m.
    - `neighbors`: word m directly before word n, feature m * num_words + n.
    - `positions`: word m at position t, feature t * num_words + m.
    - `lengths`: t + 1 words, feature t.
    """
    num_rows, width = rows.shape
    positions = np.zeros((num_rows, width, num_words + 1), np.int8)
    np.put_along_axis(positions, rows[:, :, None].astype(np.int64), 1, axis=2)
    positions = positions[:, :, 1:]
    if name == "modules":
        return positions.max(axis=1)
    if name == "positions":
        return positions.reshape(num_rows, -1)
    if name == "lengths":
        return np.eye(width, dtype=np.int8)[lengths(rows) - 1]
    if name == "neighbors":
        return _neighbors(rows, num_words)
    raise InputError(f"there is no view {name!r}: choose one of {', '.join(VIEWS)}")


def _neighbors(rows: np.ndarray, num_words: int) -> np.ndarray:
    result = np.zeros((len(rows), num_words**2), np.int8)
    for first, second in itertools.pairwise(rows.T.astype(np.int64)):
        has_both = np.flatnonzero((first > 0) & (second > 0))
        feature = (first - 1) * num_words + second - 1
        result[has_both, feature[has_both]] = 1
    return result


def one_hot(row: Shaped[Array, " width"], num_words: int) -> Float[Array, " features"]:
    """A sequence as a float row: word m at position t is entry t * num_words + m - 1."""
    return jax.nn.one_hot(row.astype(jnp.int32) - 1, num_words).reshape(-1)


def words_of(task: Float[Array, " features"], num_words: int) -> Int[Array, " width"]:
    """The inverse of `one_hot`: the words of a sequence, 0 after its end."""
    table = task.reshape(-1, num_words)
    return jnp.where(table.max(axis=1) > 0.5, table.argmax(axis=1) + 1, 0)


def at_answer(values: Array, y: Nodes) -> Array:
    """The values (n, nodes, …) at the nodes that are the answer, (n, answers, …)."""
    index = y.answer.reshape(*y.answer.shape, *(1,) * (values.ndim - 2))
    return jnp.take_along_axis(values, index, axis=1)


def classification_scores(prediction: Float[Array, "n *nodes S"], y: Nodes) -> dict[str, Array]:
    """Cross-entropy, and the fraction of whole answers that are right.

    A prediction without an axis of nodes is about the answer only. If it has the axis, the loss is
    the mean over all nodes that exist, and `node_accuracy` is the fraction of these that is right.
    """
    num_answers = y.answer.shape[1]
    has_nodes = prediction.ndim == 3
    if has_nodes:
        logits = prediction
        true = y.values
        exists = y.exists
    else:
        logits = prediction.reshape(len(prediction), num_answers, -1)
        true = at_answer(y.values, y)
        exists = at_answer(y.exists, y)
    # A product, not an index: the gradient of an index is a scatter, which is slow.
    log_probabilities = jax.nn.log_softmax(logits)
    losses = -(log_probabilities * jax.nn.one_hot(true, logits.shape[-1])).sum(axis=-1)
    is_right = logits.argmax(axis=-1) == true
    num_existing = jnp.maximum(exists.sum(), 1)
    answered = at_answer(is_right | ~exists, y) if has_nodes else is_right | ~exists
    return {
        "loss": jnp.where(exists, losses, 0).sum() / num_existing,
        "accuracy": answered.all(axis=1).mean(),
        "node_accuracy": (is_right & exists).sum() / num_existing,
    }
