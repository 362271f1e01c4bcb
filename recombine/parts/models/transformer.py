"""A decoder-only transformer on the tokens (code, x_1, …, x_n): the paper's other student.

    h <- h + Attention(LN(h)),   h <- h + W_2 gelu(W_1 LN(h)),   prediction_i = W LN(h_i) + b at the token of x_i

Causal: a point sees the code, itself and the points before it. Rotary positions, queries and keys normalised in every
head, no biases inside the blocks, LeCun truncated-normal kernels.
"""

import functools
from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree, Shaped

from recombine.basics.errors import require
from recombine.parts.field_checks import check, check_layers
from recombine.parts.linear_layer import linear
from recombine.parts.prng import stream
from recombine.parts.protocols import Batch

MAX_READ = 2**28  # numbers in the tokens of a task: a gigabyte
EPSILON = 1e-6  # of the layer norms: the published code's, where equinox has 1e-5


class Block(eqx.Module):
    """Attention and a feed-forward network, each added to the stream that it reads through a layer norm."""

    norm_attention: eqx.nn.LayerNorm
    queries: eqx.nn.Linear
    keys: eqx.nn.Linear
    values: eqx.nn.Linear
    norm_queries: eqx.nn.LayerNorm
    norm_keys: eqx.nn.LayerNorm
    rotary: eqx.nn.RotaryPositionalEmbedding
    attended: eqx.nn.Linear
    norm_feedforward: eqx.nn.LayerNorm
    widen: eqx.nn.Linear
    narrow: eqx.nn.Linear

    @functools.partial(jax.jit, static_argnums=2)  # so that all blocks are traced once
    def __call__(
        self, h: Float[Array, "tokens d"], tasks: int, mask: Bool[Array, "1 1 length length"] | None
    ) -> tuple[Float[Array, "tokens d"], Float[Array, "tokens f"]]:
        """Let every token look at itself and at those before it in its task that the mask allows; also give the units
        of the feed-forward network."""
        normed = _normed(self.norm_attention, h)
        shape = tasks, len(h) // tasks, -1, self.rotary.embedding_size
        queries, keys, values = (
            _mapped(to, normed).reshape(shape) for to in (self.queries, self.keys, self.values)
        )
        turn = jax.vmap(jax.vmap(self.rotary, in_axes=1, out_axes=1))
        heads = (
            turn(_normed(self.norm_queries, queries)),
            turn(_normed(self.norm_keys, keys)),
            values,
        )
        # Two more products, in the type of the weights; the softmax between them is float32.
        low = (head.astype(self.values.weight.dtype) for head in heads)
        h = h + _mapped(
            self.attended,
            jax.nn.dot_product_attention(*low, mask=mask, is_causal=True).reshape(h.shape),
        )
        units = jax.nn.gelu(_mapped(self.widen, _normed(self.norm_feedforward, h)))
        return h + _mapped(self.narrow, units), units


class Decoder(eqx.Module):
    """The network. Called with the points and the code of one task; `embedding` or `of_code` makes tokens of a code."""

    mixed_precision: ClassVar[bool] = True  # products are in the type of the weights

    embedding: eqx.nn.Embedding | None
    of_code: eqx.nn.Linear | None
    of_point: eqx.nn.Linear
    blocks: tuple[Block, ...]
    norm: eqx.nn.LayerNorm
    readout: eqx.nn.Linear
    apart: bool = eqx.field(static=True, default=False)

    def __call__(
        self, x: Float[Array, "n I"], code: Shaped[Array, "*code"]
    ) -> tuple[Float[Array, "n O"], dict[str, Array]]:
        """Predict every point; also give the stream at the points after each block (`block0`, …), and the units of
        its feed-forward network (`feedforward0`, …)."""
        return jax.tree.map(lambda leaf: leaf[0], self.many(x[None], code[None]))

    def many(
        self, x: Float[Array, "tasks n I"], code: Shaped[Array, "tasks *code"]
    ) -> tuple[Float[Array, "tasks n O"], dict[str, Array]]:
        """The same for many tasks at once, faster than one by one under `vmap`."""
        tasks, n, _ = x.shape
        if self.embedding is not None:
            # The table is cast, not the rows: the gradient of a word is a sum over all its uses, kept in float32.
            first = self.embedding.weight.astype(jnp.float32)[code]
        else:
            first = _mapped(self.of_code, code.reshape(tasks, -1, code.shape[-1]))  # pyright: ignore
        h = jnp.concatenate([first, _mapped(self.of_point, x)], axis=1)
        shape, activations, mask = h.shape, {}, None
        if self.apart:  # what is looked at is part of the code, or the token itself
            mask = ((jnp.arange(shape[1]) < shape[1] - n) | jnp.eye(shape[1], dtype=bool))[
                None, None
            ]
        # Tokens of all tasks are the rows of one matrix: with an axis for tasks XLA copies twice as often.
        h = h.reshape(-1, shape[-1])
        for i, block in enumerate(self.blocks):
            h, units = block(h, tasks, mask)
            activations[f"block{i}"] = h.reshape(shape)[:, -n:]
            activations[f"feedforward{i}"] = units.reshape(*shape[:2], -1)[:, -n:]
        activations["output"] = _mapped(self.readout, _normed(self.norm, h.reshape(shape)[:, -n:]))
        return activations["output"], activations


def _normed(norm: eqx.nn.LayerNorm, h: Array) -> Array:
    return jax.vmap(norm)(h.reshape(-1, h.shape[-1])).reshape(h.shape)


def _mapped(layer: eqx.nn.Linear, h: Array) -> Array:
    # In the type of the weights, which may be lower than that of everything else.
    rows = h.reshape(-1, h.shape[-1]).astype(layer.weight.dtype)
    product = (rows @ layer.weight.T).astype(jnp.float32).reshape(*h.shape[:-1], -1)
    return product if layer.bias is None else product + layer.bias


@dataclass(frozen=True)
class Transformer:
    """A flat code is one token; of a sequence, every vector or word is one. Words are embedded.

    With `apart` points do not see each other: a point sees the code and itself, as the points of an MLP do.
    """

    num_layers: int = 4
    d_model: int = 256
    num_heads: int = 4
    d_ff: int = 1024
    apart: bool = False

    @property
    def together(self) -> bool:
        """Whether a point looks at those before it."""
        return not self.apart

    def __post_init__(self):
        check(self, num_layers=1, d_model=1, num_heads=1, d_ff=1)
        check_layers(self, self.num_layers)
        require(
            self.d_model % (2 * self.num_heads) == 0,
            f"Transformer.num_heads={self.num_heads} must divide d_model={self.d_model} into heads of even size, for "
            f"rotary positions: choose another number of heads, or a multiple of {2 * self.num_heads} as d_model",
        )

    def init(
        self,
        key: PRNGKeyArray,
        example: Batch,
        num_outputs: int,
        num_tokens: int = 0,
        world: PyTree[Array] | None = None,
    ) -> Decoder:
        """Draw a network for points and codes of the example's shape."""
        x, code = example.x, example.code
        require(
            getattr(x, "ndim", 0) == 2 and jnp.issubdtype(x.dtype, jnp.floating),
            "Transformer reads points (n, d) of floats: choose a family that gives such points, or another model",
        )
        words = jnp.issubdtype(code.dtype, jnp.integer)
        require(
            words == bool(num_tokens) and (code.ndim == 1 or (code.ndim == 2 and not words)),
            "Transformer reads a flat code, a sequence (l, d) of vectors or (l,) of words: choose such an encoding",
        )
        num_read = len(x) + (len(code) if words or code.ndim == 2 else 1)
        require(
            num_read * self.d_model
            <= MAX_READ,  # here, because rotary positions are numbers even while tracing
            f"Transformer would read {num_read} tokens of {self.d_model} numbers at once, which is too many: lower "
            "num_points, d_model, or num_pairs of FewShot",
        )
        embedding = of_code = None
        if words:
            embedding = eqx.nn.Embedding(num_tokens, self.d_model, key=stream(key, "embedding"))
        else:
            of_code = linear(stream(key, "code"), code.shape[-1], self.d_model, use_bias=False)
        return Decoder(
            embedding,
            of_code,
            linear(stream(key, "point"), x.shape[1], self.d_model),
            tuple(self._block(k) for k in jax.random.split(stream(key, "blocks"), self.num_layers)),
            _norm(self.d_model),
            linear(stream(key, "readout"), self.d_model, num_outputs),
            self.apart,
        )

    def _block(self, key: PRNGKeyArray) -> Block:
        d, d_head = self.d_model, self.d_model // self.num_heads
        *keys, key_widen, key_narrow = jax.random.split(key, 6)
        queries, keys, values, attended = (linear(k, d, d, use_bias=False) for k in keys)
        return Block(
            norm_attention=_norm(d),
            queries=queries,
            keys=keys,
            values=values,
            norm_queries=_norm(d_head),
            norm_keys=_norm(d_head),
            rotary=eqx.nn.RotaryPositionalEmbedding(d_head),
            attended=attended,
            norm_feedforward=_norm(d),
            widen=linear(key_widen, d, self.d_ff, use_bias=False),
            narrow=linear(key_narrow, self.d_ff, d, use_bias=False),
        )


def _norm(size: int) -> eqx.nn.LayerNorm:
    return eqx.nn.LayerNorm(size, eps=EPSILON, use_bias=False)
