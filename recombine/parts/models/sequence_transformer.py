"""A transformer over the tokens within a point: the input, the words of the code, and the answer.

    tokens of a point:  x, word 1, …, word L, answer, step 1, step 2, …
    h <- h + Attention(norm(h)),   h <- h + W_2 gelu(W_1 norm(h))

Words see each other in both directions. The answer is the output at its own token, at the tokens of
the words (all steps at once), or step by step: every step is written as a further token, which sees
the tokens before it. Word 0 is padding and hidden from all others.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped

from recombine.basics.errors import require
from recombine.parts.field_checks import check, check_layers
from recombine.parts.linear_layer import linear
from recombine.parts.prng import stream
from recombine.parts.protocols import Batch, Nodes

EPSILON = 1e-6  # of the norms
BASE = 10_000.0  # of the wavelengths of rotary positions
MAX_TOKENS = 4096  # in one point

PositionKind = Literal["absolute", "random_offset", "rotary"]
Targets = Literal["answer", "parallel", "scratchpad"]


class Positions(eqx.Module):
    """Learned vectors of absolute positions."""

    embedding: eqx.nn.Embedding


class Block(eqx.Module):
    """Attention and a feed-forward network, each with a norm and a residual connection."""

    norm_attention: Float[Array, " d"]
    queries: eqx.nn.Linear
    keys: eqx.nn.Linear
    values: eqx.nn.Linear
    attended: eqx.nn.Linear
    norm_feedforward: Float[Array, " d"]
    widen: eqx.nn.Linear
    narrow: eqx.nn.Linear
    num_heads: int = eqx.field(static=True)

    def __call__(
        self,
        h: Float[Array, "points tokens d"],
        mask: Bool[Array, "points tokens tokens"],
        rotation: tuple[Array, Array] | None,
    ) -> tuple[Float[Array, "points tokens d"], Float[Array, "points tokens f"]]:
        """Apply the block; also return the units of the feed-forward network."""
        normed = _norm(h, self.norm_attention)
        shape = (*h.shape[:2], self.num_heads, -1)
        queries = _head_norm(_apply(self.queries, normed).reshape(shape))
        keys = _head_norm(_apply(self.keys, normed).reshape(shape))
        values = _apply(self.values, normed).reshape(shape)
        if rotation is not None:
            queries = _rotate(queries, *rotation)
            keys = _rotate(keys, *rotation)
        dtype = self.values.weight.dtype
        attention = jax.nn.dot_product_attention(
            queries.astype(dtype), keys.astype(dtype), values.astype(dtype), mask=mask[:, None]
        )
        h = h + _apply(self.attended, attention.reshape(h.shape))
        units = jax.nn.gelu(_apply(self.widen, _norm(h, self.norm_feedforward)))
        return h + _apply(self.narrow, units), units


class Sequencer(eqx.Module):
    """The network. It is called with the points (n, I) and the code of one task.

    `num_steps` is the number of tokens after the answer's own. `is_choice` says whether a step is
    one of several values; otherwise it is a vector of floats.
    """

    mixed_precision: ClassVar[bool] = True  # products have the type of the weights

    embedding: eqx.nn.Embedding | None
    of_code: eqx.nn.Linear | None
    of_point: eqx.nn.Linear
    of_step: eqx.nn.Linear | None
    answer_token: Float[Array, " d"]
    positions: Positions | None
    blocks: tuple[Block, ...]
    norm: Float[Array, " d"]
    readout: eqx.nn.Linear
    targets: Targets = eqx.field(static=True)
    num_steps: int = eqx.field(static=True)
    is_choice: bool = eqx.field(static=True)

    def __call__(
        self, x: Float[Array, "n I"], code: Shaped[Array, " code"]
    ) -> tuple[Float[Array, "n *nodes O"], dict[str, Array]]:
        """Predict every point, and return the activations.

        Activations are the residual stream at the answer's token after each block (`block0`, …),
        the units of its feed-forward network (`feedforward0`, …), the residual stream at the words
        (`nodes0`, …, of shape (n, L, d)) and the prediction (`output`). With a scratchpad, steps
        are generated one after the other, each from those before it.
        """
        if self.targets != "scratchpad":
            return self.read(x, code, None)
        steps = jnp.zeros((len(x), self.num_steps + 1, len(self.readout.weight)))

        def write(i, steps):
            outputs, _ = self.read(x, code, steps[:, : self.num_steps])
            return steps.at[:, i].set(self.state(outputs[:, i]))

        steps = jax.lax.fori_loop(0, self.num_steps, write, steps)
        return self.read(x, code, steps[:, : self.num_steps])

    def state(self, outputs: Float[Array, "n O"]) -> Float[Array, "n O"]:
        """A step as it is written: the likeliest value, one-hot, or the output itself."""
        if not self.is_choice:
            return outputs
        return jax.nn.one_hot(outputs.argmax(axis=-1), outputs.shape[-1])

    def read(
        self,
        x: Float[Array, "n I"],
        code: Shaped[Array, " code"],
        steps: Float[Array, "n steps O"] | None,
        offset: Int[Array, ""] | int = 0,
    ) -> tuple[Float[Array, "n *nodes O"], dict[str, Array]]:
        """Predict from given steps, with all absolute positions moved by `offset`."""
        words, is_word = self._words(code)
        n = len(x)
        num_words = len(words)
        parts = [
            _apply(self.of_point, x)[:, None],
            jnp.broadcast_to(words, (n, *words.shape)),
            jnp.broadcast_to(self.answer_token, (n, 1, len(self.answer_token))),
        ]
        if steps is not None and self.of_step is not None:
            parts.append(_apply(self.of_step, steps))
        h = jnp.concatenate(parts, axis=1)
        position = self._position(is_word, h.shape[1])
        mask = self._mask(is_word, h.shape[1])
        rotation = None
        if self.positions is None:
            head_size = h.shape[2] // self.blocks[0].num_heads
            rotation = _rotation(position, head_size)
        else:
            vectors = self.positions.embedding.weight.astype(jnp.float32)
            h = h + vectors[position + offset]
        mask = jnp.broadcast_to(mask, (n, *mask.shape))
        activations = {}
        for i, block in enumerate(self.blocks):
            h, units = block(h, mask, rotation)
            activations[f"block{i}"] = h[:, 1 + num_words]
            activations[f"feedforward{i}"] = units[:, 1 + num_words]
            if self.embedding is not None:
                activations[f"nodes{i}"] = h[:, 1 : 1 + num_words]
        normed = _norm(h, self.norm)
        if self.targets == "answer":
            output = _apply(self.readout, normed[:, 1 + num_words])
        elif self.targets == "parallel":
            output = _apply(self.readout, normed[:, 1 : 1 + num_words])
        else:
            output = _apply(self.readout, normed[:, 1 + num_words :])
        activations["output"] = output
        return output, activations

    def _words(self, code: Array) -> tuple[Float[Array, "words d"], Bool[Array, " words"]]:
        """The vectors of the words, and which of them are not padding."""
        if self.embedding is not None:
            # The table is cast, not its rows: the gradient of a word is a sum over all its uses.
            return self.embedding.weight.astype(jnp.float32)[code], code > 0
        assert self.of_code is not None
        return _apply(self.of_code, code[None]), jnp.ones(1, bool)

    def _position(self, is_word: Bool[Array, " words"], num_tokens: int) -> Int[Array, " tokens"]:
        """Positions count the tokens that exist: the answer follows the last word directly."""
        num_words = len(is_word)
        after = is_word.sum() + 1 + jnp.arange(num_tokens - 1 - num_words)
        return jnp.concatenate([jnp.arange(num_words + 1), after])

    def _mask(self, is_word: Bool[Array, " words"], length: int) -> Bool[Array, "tokens tokens"]:
        """Which tokens (columns) each token (row) sees."""
        first_step = 1 + len(is_word)
        index = jnp.arange(length)
        exists = jnp.concatenate([jnp.ones(1, bool), is_word, jnp.ones(length - first_step, bool)])
        is_before = (index < first_step) | (index <= index[:, None])
        return (is_before & exists) | jnp.eye(length, dtype=bool)


def _norm(h: Array, gain: Array) -> Array:
    scale = jax.lax.rsqrt(jnp.square(h).mean(axis=-1, keepdims=True) + EPSILON)
    return h * scale * gain


def _head_norm(h: Array) -> Array:
    return h * jax.lax.rsqrt(jnp.square(h).mean(axis=-1, keepdims=True) + EPSILON)


def _apply(layer: eqx.nn.Linear, h: Array) -> Array:
    # In the type of the weights, which may be lower than the type of other arrays.
    rows = h.reshape(-1, h.shape[-1]).astype(layer.weight.dtype)
    product = (rows @ layer.weight.T).astype(jnp.float32).reshape(*h.shape[:-1], -1)
    return product if layer.bias is None else product + layer.bias


def _rotation(position: Int[Array, " tokens"], head_size: int) -> tuple[Array, Array]:
    half = head_size // 2
    angle = position[:, None] * BASE ** (-jnp.arange(half) / half)
    return jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]


def _rotate(h: Float[Array, "points tokens heads size"], cos: Array, sin: Array) -> Array:
    first, second = jnp.split(h, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


@dataclass(frozen=True)
class SequenceTransformer:
    """A transformer whose tokens are the parts of one point; points are independent.

    - `num_layers`, `d_model`, `num_heads`, `d_ff`: blocks, their width, heads and hidden units.
    - `positions`: `"absolute"` are learned vectors; `"random_offset"` moves them in training by a
      random number up to `max_offset`, so that later positions are trained too; `"rotary"` are
      relative.
    - `targets`: `"answer"` reads the answer at one token. `"parallel"` reads the value of node t at
      word t (on chains, intermediates are then auxiliary targets). `"scratchpad"` writes the values
      one by one: training shows the true ones, evaluation those that the model wrote.

    A flat code of floats is one token; a code of words, such as `Language`, is one token per word.
    """

    num_layers: int = 2
    d_model: int = 128
    num_heads: int = 4
    d_ff: int = 512
    positions: PositionKind = "rotary"
    targets: Targets = "answer"
    max_offset: int = 16
    random_loss: ClassVar[bool] = True

    @property
    def needs_nodes(self) -> bool:
        """Whether it learns the values of single steps."""
        return self.targets != "answer"

    def __post_init__(self):
        check(self, num_layers=1, d_model=1, num_heads=1, d_ff=1, max_offset=1)
        check_layers(self, self.num_layers)
        require(
            self.d_model % (2 * self.num_heads) == 0,
            f"SequenceTransformer.num_heads={self.num_heads} must divide "
            f"d_model={self.d_model} into heads of even size: choose a multiple of "
            f"{2 * self.num_heads} as d_model",
        )

    def init(
        self,
        key: PRNGKeyArray,
        example: Batch,
        num_outputs: int,
        num_tokens: int = 0,
        world: PyTree[Array] | None = None,
    ) -> Sequencer:
        """Draw a network for points and codes with the shapes of the example."""
        self._check_shapes(example, num_tokens)
        d = self.d_model
        code = example.code
        embedding = None
        of_code = None
        if num_tokens:
            embedding = eqx.nn.Embedding(num_tokens, d, key=stream(key, "embedding"))
        else:
            of_code = linear(stream(key, "code"), code.shape[0], d, use_bias=False)
        is_choice, num_nodes, num_answers = _shape_of_nodes(example.y)
        d_out = num_outputs if self.targets == "answer" else num_outputs // num_answers
        num_steps = num_nodes - 1 if self.targets == "scratchpad" else 0
        num_positions = 2 + code.shape[0] + num_steps
        of_step = linear(stream(key, "step"), d_out, d) if num_steps else None
        block_keys = jax.random.split(stream(key, "blocks"), self.num_layers)
        return Sequencer(
            embedding=embedding,
            of_code=of_code,
            of_point=linear(stream(key, "point"), example.x.shape[1], d),
            of_step=of_step,
            answer_token=jax.random.normal(stream(key, "answer"), (d,)),
            positions=self._draw_positions(stream(key, "positions"), num_positions),
            blocks=tuple(self._draw_block(block_key) for block_key in block_keys),
            norm=jnp.ones(d),
            readout=linear(stream(key, "readout"), d, d_out),
            targets=self.targets,
            num_steps=num_steps,
            is_choice=is_choice,
        )

    def loss(self, net: Sequencer, batch: Batch, score: Any, key: PRNGKeyArray) -> Array:
        """The family's loss, of predictions that see the true values of earlier steps."""
        offset = 0
        if self.positions == "random_offset":
            bits = jax.random.bits(key, ())
            offset = (bits % jnp.uint32(self.max_offset + 1)).astype(jnp.int32)
        steps = None
        if net.num_steps:
            values = batch.y.values[:, : net.num_steps]
            steps = jax.nn.one_hot(values, len(net.readout.weight)) if net.is_choice else values
        prediction, _ = net.read(batch.x, batch.code, steps, offset)
        return score(prediction, batch.y)["loss"]

    def _check_shapes(self, example: Batch, num_tokens: int) -> None:
        """Raise an `InputError` for points, codes or targets that the network does not accept."""
        x = example.x
        code = example.code
        require(
            getattr(x, "ndim", 0) == 2 and jnp.issubdtype(x.dtype, jnp.floating),
            "SequenceTransformer needs points (n, d) of floats: choose a family with such points, "
            "or another model",
        )
        has_words = jnp.issubdtype(code.dtype, jnp.integer)
        require(
            has_words == bool(num_tokens) and code.ndim == 1,
            "SequenceTransformer needs a flat code of floats, or words: choose such an encoding, "
            "for example Language",
        )
        require(
            not has_words or len(code) <= MAX_TOKENS,
            f"SequenceTransformer would have {len(code)} words in a point, more than "
            f"{MAX_TOKENS}: choose a shorter encoding",
        )
        if self.targets == "answer":
            return
        require(
            isinstance(example.y, Nodes) and has_words,
            f"SequenceTransformer.targets={self.targets!r} needs a family with steps and a code of "
            "words: choose Chain with encoding=Language(), or targets='answer'",
        )
        num_nodes = _shape_of_nodes(example.y)[1]
        require(
            self.targets == "scratchpad" or num_nodes == len(code),
            f"SequenceTransformer.targets='parallel' reads one value at each of {len(code)} words, "
            f"but tasks have {num_nodes} steps: choose targets='scratchpad'",
        )

    def _draw_positions(self, key: PRNGKeyArray, num_positions: int) -> Positions | None:
        if self.positions == "rotary":
            return None
        if self.positions == "random_offset":
            num_positions += self.max_offset
        return Positions(eqx.nn.Embedding(num_positions, self.d_model, key=key))

    def _draw_block(self, key: PRNGKeyArray) -> Block:
        d = self.d_model
        keys = jax.random.split(key, 6)
        return Block(
            norm_attention=jnp.ones(d),
            queries=linear(keys[0], d, d, use_bias=False),
            keys=linear(keys[1], d, d, use_bias=False),
            values=linear(keys[2], d, d, use_bias=False),
            attended=linear(keys[3], d, d, use_bias=False),
            norm_feedforward=jnp.ones(d),
            widen=linear(keys[4], d, self.d_ff, use_bias=False),
            narrow=linear(keys[5], self.d_ff, d, use_bias=False),
            num_heads=self.num_heads,
        )


def _shape_of_nodes(y: Any) -> tuple[bool, int, int]:
    """Whether nodes have integer values, and the numbers of nodes and of answers."""
    if not isinstance(y, Nodes):
        return False, 0, 1
    is_choice = jnp.issubdtype(y.values.dtype, jnp.integer)
    return is_choice, y.values.shape[1], y.answer.shape[1]
