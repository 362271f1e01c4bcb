"""A decoder-only transformer on the tokens (code, x_1, …, x_n), the second student of the paper.

    h <- h + Attention(LN(h)),   h <- h + W_2 gelu(W_1 LN(h))
    prediction_i = W LN(h_i) + b   at the token of x_i

Attention is causal: a point attends to the code, itself and the points before it. Positions are
rotary, queries and keys are normalized in every head, blocks have no biases, and weights are LeCun
truncated-normal. Source: arXiv 2507.07207, section 3 and appendix.
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

MAX_TOKEN_NUMBERS = 2**28  # numbers in the tokens of one task: a gigabyte
EPSILON = 1e-6  # of the layer norms, as in the public code; the default of equinox is 1e-5


class Block(eqx.Module):
    """Attention and a feed-forward network, each with a layer norm and a residual connection."""

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

    @functools.partial(jax.jit, static_argnums=2)  # all blocks are traced once
    def __call__(
        self, h: Float[Array, "tokens d"], tasks: int, mask: Bool[Array, "1 1 length length"] | None
    ) -> tuple[Float[Array, "tokens d"], Float[Array, "tokens f"]]:
        """Apply the block; also return the units of the feed-forward network.

        Every token attends to itself and to earlier tokens of its task, as far as the mask allows.
        """
        normed = _apply_norm(self.norm_attention, h)
        shape = (tasks, len(h) // tasks, -1, self.rotary.embedding_size)
        queries = _apply_linear(self.queries, normed).reshape(shape)
        keys = _apply_linear(self.keys, normed).reshape(shape)
        values = _apply_linear(self.values, normed).reshape(shape)
        rotate = jax.vmap(jax.vmap(self.rotary, in_axes=1, out_axes=1))
        queries = rotate(_apply_norm(self.norm_queries, queries))
        keys = rotate(_apply_norm(self.norm_keys, keys))
        # Both products are in the type of the weights; the softmax between them is in float32.
        dtype = self.values.weight.dtype
        attention = jax.nn.dot_product_attention(
            queries.astype(dtype),
            keys.astype(dtype),
            values.astype(dtype),
            mask=mask,
            is_causal=True,
        )
        h = h + _apply_linear(self.attended, attention.reshape(h.shape))
        units = jax.nn.gelu(_apply_linear(self.widen, _apply_norm(self.norm_feedforward, h)))
        return h + _apply_linear(self.narrow, units), units


class Decoder(eqx.Module):
    """The network. It is called with the points (n, I) and the code of one task.

    A code becomes tokens through `embedding` (words) or `of_code` (vectors), a point through
    `of_point`.
    """

    mixed_precision: ClassVar[bool] = True  # products have the type of the weights

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
        """Predict every point, and return the activations at the points.

        Activations are the residual stream after each block (`block0`, …), the units of its
        feed-forward network (`feedforward0`, …) and the prediction (`output`).
        """
        return jax.tree.map(lambda leaf: leaf[0], self.many(x[None], code[None]))

    def many(
        self, x: Float[Array, "tasks n I"], code: Shaped[Array, "tasks *code"]
    ) -> tuple[Float[Array, "tasks n O"], dict[str, Array]]:
        """The same for several tasks at once, which is faster than a `vmap` over tasks."""
        tasks, n, _ = x.shape
        tokens = jnp.concatenate([self._code_tokens(code), _apply_linear(self.of_point, x)], axis=1)
        _, length, d_model = tokens.shape
        mask = None
        if self.apart:  # a token may attend to the code and to itself
            is_code = jnp.arange(length) < length - n
            mask = (is_code | jnp.eye(length, dtype=bool))[None, None]
        # The tokens of all tasks are the rows of one matrix: XLA copies it half as often as an
        # array with an axis for tasks.
        h = tokens.reshape(-1, d_model)
        activations = {}
        for i, block in enumerate(self.blocks):
            h, units = block(h, tasks, mask)
            activations[f"block{i}"] = h.reshape(tokens.shape)[:, -n:]
            activations[f"feedforward{i}"] = units.reshape(tasks, length, -1)[:, -n:]
        normed = _apply_norm(self.norm, h.reshape(tokens.shape)[:, -n:])
        activations["output"] = _apply_linear(self.readout, normed)
        return activations["output"], activations

    def _code_tokens(self, code: Shaped[Array, "tasks *code"]) -> Float[Array, "tasks tokens d"]:
        if self.embedding is not None:
            # The table is cast, not its rows: the gradient of a word is a sum over all its uses,
            # which then stays float32.
            return self.embedding.weight.astype(jnp.float32)[code]
        assert self.of_code is not None
        return _apply_linear(self.of_code, code.reshape(len(code), -1, code.shape[-1]))


def _apply_norm(norm: eqx.nn.LayerNorm, h: Array) -> Array:
    return jax.vmap(norm)(h.reshape(-1, h.shape[-1])).reshape(h.shape)


def _apply_linear(layer: eqx.nn.Linear, h: Array) -> Array:
    # In the type of the weights, which may be lower than the type of other arrays.
    rows = h.reshape(-1, h.shape[-1]).astype(layer.weight.dtype)
    product = (rows @ layer.weight.T).astype(jnp.float32).reshape(*h.shape[:-1], -1)
    return product if layer.bias is None else product + layer.bias


@dataclass(frozen=True)
class Transformer:
    """A transformer for points (n, d) of floats and for any code.

    A flat code is one token. In a sequence, every vector or word is a token; words are embedded.

    - `num_layers`, `d_model`, `num_heads`: the number of blocks, their width and attention heads.
    - `d_ff`: the hidden width of the feed-forward networks.
    - `apart`: points attend to the code and to themselves only, so predictions at different points
      are independent, as in an MLP.
    """

    num_layers: int = 4
    d_model: int = 256
    num_heads: int = 4
    d_ff: int = 1024
    apart: bool = False

    @property
    def together(self) -> bool:
        """Whether the prediction at a point depends on the points before it."""
        return not self.apart

    def __post_init__(self):
        check(self, num_layers=1, d_model=1, num_heads=1, d_ff=1)
        check_layers(self, self.num_layers)
        require(
            self.d_model % (2 * self.num_heads) == 0,
            f"Transformer.num_heads={self.num_heads} must divide d_model={self.d_model} into heads "
            "of even size, for rotary positions: choose another number of heads, or a multiple of "
            f"{2 * self.num_heads} as d_model",
        )

    def init(
        self,
        key: PRNGKeyArray,
        example: Batch,
        num_outputs: int,
        num_tokens: int = 0,
        world: PyTree[Array] | None = None,
    ) -> Decoder:
        """Draw a network for points and codes with the shapes of the example."""
        code = example.code
        has_words = jnp.issubdtype(code.dtype, jnp.integer)
        self._check_shapes(example, has_words, num_tokens)
        embedding = None
        of_code = None
        if has_words:
            embedding = eqx.nn.Embedding(num_tokens, self.d_model, key=stream(key, "embedding"))
        else:
            of_code = linear(stream(key, "code"), code.shape[-1], self.d_model, use_bias=False)
        block_keys = jax.random.split(stream(key, "blocks"), self.num_layers)
        return Decoder(
            embedding=embedding,
            of_code=of_code,
            of_point=linear(stream(key, "point"), example.x.shape[1], self.d_model),
            blocks=tuple(self._draw_block(block_key) for block_key in block_keys),
            norm=_layer_norm(self.d_model),
            readout=linear(stream(key, "readout"), self.d_model, num_outputs),
            apart=self.apart,
        )

    def _check_shapes(self, example: Batch, has_words: bool, num_tokens: int) -> None:
        """Raise an `InputError` for points or codes that the network does not accept."""
        x = example.x
        code = example.code
        require(
            getattr(x, "ndim", 0) == 2 and jnp.issubdtype(x.dtype, jnp.floating),
            "Transformer needs points (n, d) of floats: choose a family with such points, or "
            "another model",
        )
        require(
            has_words == bool(num_tokens)
            and (code.ndim == 1 or (code.ndim == 2 and not has_words)),
            "Transformer needs a flat code, a sequence (l, d) of vectors or (l,) of words: choose "
            "such an encoding",
        )
        is_sequence = has_words or code.ndim == 2
        length = len(x) + (len(code) if is_sequence else 1)
        # Checked here because rotary positions are computed even while shapes are traced.
        require(
            length * self.d_model <= MAX_TOKEN_NUMBERS,
            f"Transformer would have {length} tokens of {self.d_model} numbers per task, which is "
            "too many: lower num_points, d_model, or num_pairs of FewShot",
        )

    def _draw_block(self, key: PRNGKeyArray) -> Block:
        d = self.d_model
        d_head = self.d_model // self.num_heads
        keys = jax.random.split(key, 6)
        return Block(
            norm_attention=_layer_norm(d),
            queries=linear(keys[0], d, d, use_bias=False),
            keys=linear(keys[1], d, d, use_bias=False),
            values=linear(keys[2], d, d, use_bias=False),
            norm_queries=_layer_norm(d_head),
            norm_keys=_layer_norm(d_head),
            rotary=eqx.nn.RotaryPositionalEmbedding(d_head),
            attended=linear(keys[3], d, d, use_bias=False),
            norm_feedforward=_layer_norm(d),
            widen=linear(keys[4], d, self.d_ff, use_bias=False),
            narrow=linear(keys[5], self.d_ff, d, use_bias=False),
        )


def _layer_norm(size: int) -> eqx.nn.LayerNorm:
    return eqx.nn.LayerNorm(size, eps=EPSILON, use_bias=False)
