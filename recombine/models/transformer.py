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
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from recombine.core import Batch, check, require, stream

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
    def __call__(self, h: Float[Array, "tokens d"], tasks: int) -> Float[Array, "tokens d"]:
        """Let every token look at itself and at those before it in its task."""
        normed = _normed(self.norm_attention, h)
        shape = tasks, len(h) // tasks, -1, self.rotary.embedding_size
        queries, keys, values = (_mapped(to, normed).reshape(shape) for to in (self.queries, self.keys, self.values))
        turn = jax.vmap(jax.vmap(self.rotary, in_axes=1, out_axes=1))
        heads = turn(_normed(self.norm_queries, queries)), turn(_normed(self.norm_keys, keys)), values
        # Two more products, in the type of the weights; the softmax between them is float32.
        low = (head.astype(self.values.weight.dtype) for head in heads)
        h = h + _mapped(self.attended, jax.nn.dot_product_attention(*low, is_causal=True).reshape(h.shape))
        return h + _mapped(self.narrow, jax.nn.gelu(_mapped(self.widen, _normed(self.norm_feedforward, h))))


class Decoder(eqx.Module):
    """The network. Called with the points and the code of one task; `embedding` or `of_code` makes tokens of a code."""

    mixed_precision: ClassVar[bool] = True  # products are in the type of the weights

    embedding: eqx.nn.Embedding | None
    of_code: eqx.nn.Linear | None
    of_point: eqx.nn.Linear
    blocks: tuple[Block, ...]
    norm: eqx.nn.LayerNorm
    readout: eqx.nn.Linear

    def __call__(
        self, x: Float[Array, "n I"], code: Shaped[Array, "*code"]
    ) -> tuple[Float[Array, "n O"], dict[str, Array]]:
        """Predict every point; also give the stream at the points after each block (`block0`, …)."""
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
        shape, activations = h.shape, {}
        # Tokens of all tasks are the rows of one matrix: with an axis for tasks XLA copies twice as often.
        h = h.reshape(-1, shape[-1])
        for i, block in enumerate(self.blocks):
            h = block(h, tasks)
            activations[f"block{i}"] = h.reshape(shape)[:, -n:]
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
    """A flat code is one token; of a sequence, every vector or word is one. Words are embedded."""

    together: ClassVar[bool] = True  # a point looks at those before it

    num_layers: int = 4
    d_model: int = 256
    num_heads: int = 4
    d_ff: int = 1024

    def __post_init__(self):
        check(self, num_layers=1, d_model=1, num_heads=1, d_ff=1)
        require(
            self.d_model % (2 * self.num_heads) == 0,
            f"Transformer.num_heads={self.num_heads} must divide d_model={self.d_model} into heads of even size, for "
            f"rotary positions: choose a multiple of {2 * self.num_heads} as d_model",
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
        embedding = of_code = None
        if words:
            embedding = eqx.nn.Embedding(num_tokens, self.d_model, key=stream(key, "embedding"))
        else:
            of_code = _dense(stream(key, "code"), code.shape[-1], self.d_model)
        return Decoder(
            embedding,
            of_code,
            _dense(stream(key, "point"), x.shape[1], self.d_model, use_bias=True),
            tuple(self._block(k) for k in jax.random.split(stream(key, "blocks"), self.num_layers)),
            _norm(self.d_model),
            _dense(stream(key, "readout"), self.d_model, num_outputs, use_bias=True),
        )

    def _block(self, key: PRNGKeyArray) -> Block:
        d, d_head = self.d_model, self.d_model // self.num_heads
        *keys, key_widen, key_narrow = jax.random.split(key, 6)
        queries, keys, values, attended = (_dense(k, d, d) for k in keys)
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
            widen=_dense(key_widen, d, self.d_ff),
            narrow=_dense(key_narrow, self.d_ff, d),
        )


def _norm(size: int) -> eqx.nn.LayerNorm:
    return eqx.nn.LayerNorm(size, eps=EPSILON, use_bias=False)


def _dense(key: PRNGKeyArray, d_in: int, d_out: int, use_bias: bool = False) -> eqx.nn.Linear:
    # Equinox draws uniform kernels and biases; these are truncated normal and zero.
    layer = eqx.nn.Linear(d_in, d_out, use_bias, key=key)
    weight = jax.nn.initializers.lecun_normal(in_axis=1, out_axis=0)(key, (d_out, d_in))
    bias = jnp.zeros(d_out) if use_bias else None
    return eqx.tree_at(lambda ls: (ls.weight, ls.bias), layer, (weight, bias), is_leaf=lambda leaf: leaf is None)
