"""A small network that is applied again and again to its own state.

    z <- f(z + y + x)   n times, then   y <- f(y + z):   one cycle; T cycles are a supervision step

x is the embedded question, y the state of the answer, z a latent state. Every point is a row of
tokens. After each supervision step the answer is read from y and trained, with one optimizer step;
the gradient passes through the last cycle only. The states go on to the next supervision step
without a gradient, up to S times for one sample. A halting head predicts whether the answer is
right; training goes on to a new sample when it says so. Evaluation always takes S steps.

Source: TRM (arXiv 2510.04871); options give its ablations. The kind `"plain"` is a control: an
ordinary network with the same carry and supervision, y <- f(y + x) once per supervision step.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped

from recombine.basics.errors import require
from recombine.parts.field_checks import check, check_layers
from recombine.parts.linear_layer import linear
from recombine.parts.prng import stream
from recombine.parts.protocols import Batch

EPSILON = 1e-6  # of the norms
BASE = 10_000.0  # of the wavelengths of rotary positions
FIRST_HALTING_LOGIT = -5.0  # an untrained network does not halt
BRANCH_SCALE = 0.1  # of the last weights of a residual branch, before training
HALTING_WEIGHT = 0.5  # of the loss of the halting head
NUM_EXTRA_TOKENS = 2  # the point before the words, and the answer after them

Mixing = Literal["mlp", "attention"]
Kind = Literal["recursive", "plain"]
State = tuple[Float[Array, "n tokens d"], Float[Array, "n tokens d"]]  # y and z


class Tokens(NamedTuple):
    """The embedded question: vectors, the tokens that exist, and their positions."""

    vectors: Float[Array, "n tokens d"]
    exists: Bool[Array, " tokens"]
    position: Int[Array, " tokens"]


class GatedUnits(eqx.Module):
    """SwiGLU: W_3 (silu(W_1 h) * W_2 h), on the last axis."""

    gate: eqx.nn.Linear
    value: eqx.nn.Linear
    out: eqx.nn.Linear

    def __call__(self, h: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """Apply the units."""
        return _apply(self.out, jax.nn.silu(_apply(self.gate, h)) * _apply(self.value, h))


class Attention(eqx.Module):
    """Attention between all tokens of a point that exist, with rotary positions."""

    queries: eqx.nn.Linear
    keys: eqx.nn.Linear
    values: eqx.nn.Linear
    attended: eqx.nn.Linear
    num_heads: int = eqx.field(static=True)

    def __call__(self, h: Float[Array, "n tokens d"], tokens: Tokens) -> Float[Array, "n tokens d"]:
        """Apply the layer."""
        shape = (*h.shape[:2], self.num_heads, -1)
        queries = _rotate(_norm(_apply(self.queries, h).reshape(shape)), tokens.position)
        keys = _rotate(_norm(_apply(self.keys, h).reshape(shape)), tokens.position)
        values = _apply(self.values, h).reshape(shape)
        length = h.shape[1]
        mask = tokens.exists | jnp.eye(length, dtype=bool)
        mask = jnp.broadcast_to(mask, (len(h), 1, length, length))
        attended = jax.nn.dot_product_attention(queries, keys, values, mask=mask)
        return _apply(self.attended, attended.reshape(h.shape))


class Layer(eqx.Module):
    """A layer that mixes tokens, then units; each with a residual connection and a norm after it.

    `between` mixes tokens: attention, or gated units over the axis of tokens.
    """

    between: Attention | GatedUnits
    within: GatedUnits

    def __call__(self, h: Float[Array, "n tokens d"], tokens: Tokens) -> Float[Array, "n tokens d"]:
        """Apply the layer."""
        if isinstance(self.between, Attention):
            mixed = self.between(h, tokens)
        else:
            mixed = self.between(h.swapaxes(1, 2)).swapaxes(1, 2)
        h = _norm(h + mixed)
        return _norm(h + self.within(h))


class Recursion(eqx.Module):
    """The network. It is called with the points (n, I) and the code of one task.

    `of_latent` are the layers of f for z, `of_answer` those for y; if `of_answer` is empty, both
    have one network.
    """

    embedding: eqx.nn.Embedding | None
    of_code: eqx.nn.Linear | None
    of_point: eqx.nn.Linear
    answer_token: Float[Array, " d"]
    of_latent: tuple[Layer, ...]
    of_answer: tuple[Layer, ...]
    readout: eqx.nn.Linear
    halting: eqx.nn.Linear
    model: "Recursive" = eqx.field(static=True)

    def __call__(
        self, x: Float[Array, "n I"], code: Shaped[Array, "*code"]
    ) -> tuple[Float[Array, "n O"], dict[str, Array]]:
        """Predict every point after all supervision steps.

        Activations are the states at the answer's token (`answer` and `latent`, of shape (n, d))
        and the prediction (`output`).
        """
        state, predictions = self.unroll(x, code, self.model.num_steps)
        y, z = state
        output = predictions[-1]
        return output, {"answer": y[:, -1], "latent": z[:, -1], "output": output}

    def unroll(
        self, x: Float[Array, "n I"], code: Shaped[Array, "*code"], num_steps: int
    ) -> tuple[State, Float[Array, "steps n O"]]:
        """The last state, and the prediction after every one of `num_steps` supervision steps."""

        def step(state, _):
            state, prediction, _ = self.think(x, code, state)
            return state, prediction

        return jax.lax.scan(step, self.first_state(x, code), length=num_steps)

    def first_state(self, x: Float[Array, "n I"], code: Shaped[Array, "*code"]) -> State:
        """The state of a new sample: zeros."""
        return _zero_state(len(x), code, len(self.answer_token))

    def think(
        self, x: Float[Array, "n I"], code: Shaped[Array, "*code"], state: State
    ) -> tuple[State, Float[Array, "n O"], Float[Array, " n"]]:
        """One supervision step: the next state, the prediction and the logit of the halting head.

        The gradient passes through the last cycle, or through all.
        """
        tokens = self.tokens(x, code)
        if self.model.kind == "plain":
            y, z = state
            state = (self.apply(self.of_latent, y + tokens.vectors, tokens), z)
        else:
            state = self._cycles(state, tokens)
        y, _ = state
        if self.model.targets == "words":
            outputs = _apply(self.readout, y[:, 1:-1])
            prediction = outputs.reshape(len(x), -1)
        else:
            prediction = _apply(self.readout, y[:, -1])
        return state, prediction, _apply(self.halting, y[:, -1])[:, 0]

    def _cycles(self, state: State, tokens: Tokens) -> State:
        """All cycles of one supervision step."""

        def cycle(state, _):
            return self.cycle(state, tokens), None

        num_before = self.model.num_cycles - 1
        if self.model.gradient == "all":
            return jax.lax.scan(cycle, state, length=num_before + 1)[0]
        if num_before:
            state, _ = jax.lax.scan(cycle, state, length=num_before)
        return self.cycle(jax.lax.stop_gradient(state), tokens)

    def cycle(self, state: State, tokens: Tokens) -> State:
        """n updates of the latent state, and one of the answer."""
        y, z = state

        def update(z, _):
            return self.apply(self.of_latent, z + y + tokens.vectors, tokens), None

        z, _ = jax.lax.scan(update, z, length=self.model.num_updates)
        return self.apply(self.of_answer or self.of_latent, y + z, tokens), z

    def apply(
        self, layers: tuple[Layer, ...], h: Float[Array, "n tokens d"], tokens: Tokens
    ) -> Float[Array, "n tokens d"]:
        """The small network f."""
        for layer in layers:
            h = layer(h, tokens)
        return h

    def tokens(self, x: Float[Array, "n I"], code: Shaped[Array, "*code"]) -> Tokens:
        """The point, the words of the code and the answer as tokens."""
        if self.embedding is not None:
            words = self.embedding.weight[code]
            is_word = code > 0
        else:
            assert self.of_code is not None
            words = _apply(self.of_code, jnp.atleast_2d(code))
            is_word = jnp.ones(len(words), bool)
        n = len(x)
        parts = [
            _apply(self.of_point, x)[:, None],
            jnp.broadcast_to(words, (n, *words.shape)),
            jnp.broadcast_to(self.answer_token, (n, 1, len(self.answer_token))),
        ]
        always = jnp.ones(1, bool)
        exists = jnp.concatenate([always, is_word, always])
        # The answer follows the last word that exists.
        position = jnp.append(jnp.arange(len(words) + 1), is_word.sum() + 1)
        return Tokens(jnp.concatenate(parts, axis=1), exists, position)


class Memory(NamedTuple):
    """An unfinished sample, its state, and how many supervision steps it had."""

    x: Array
    y: PyTree[Array]
    code: Array
    state: State
    num_steps: Int[Array, ""]
    is_finished: Bool[Array, ""]


@dataclass(frozen=True)
class Recursive:
    """A small network that is applied again and again, with a supervision step after T cycles.

    - `d_model`, `d_ff`, `num_layers`: the width, the hidden units and the layers of the network f.
    - `mixing`: tokens are mixed by gated units over their axis (`"mlp"`, for a fixed number of
      words), or by attention of `num_heads` heads with rotary positions.
    - `num_updates`, `num_cycles`, `num_steps`: n, T, and S, the most supervision steps of a sample.
    - `targets`: `"words"` reads a part of the prediction at each word, `"answer"` all of it at one
      token.
    - `kind`: `"plain"` applies f once per supervision step (n and T are not used).
    - `gradient`: through the last cycle of a supervision step, or through all.
    - `networks`: one network for both states, or two.
    - `halting`: a new sample is taken when the halting head predicts that the answer is right.
      Without it, every sample has S steps. The family must have a score `accuracy`.
    - `exploration`: how often a sample that halts must go on up to a random number of steps.

    A flat code of floats is one token; a code of words, such as `Language`, is one token per word.
    """

    d_model: int = 64
    d_ff: int = 128
    num_layers: int = 2
    mixing: Mixing = "mlp"
    num_heads: int = 4
    num_updates: int = 6
    num_cycles: int = 3
    num_steps: int = 16
    targets: Literal["words", "answer"] = "answer"
    kind: Kind = "recursive"
    gradient: Literal["last", "all"] = "last"
    networks: Literal["one", "two"] = "one"
    halting: bool = True
    exploration: float = 0.1

    def __post_init__(self):
        check(
            self,
            d_model=1,
            d_ff=1,
            num_layers=1,
            num_heads=1,
            num_updates=1,
            num_cycles=1,
            num_steps=1,
            exploration=0,
        )
        check_layers(self, self.num_layers)
        require(
            self.exploration <= 1,
            f"Recursive.exploration is a probability, so it must be at most 1, got "
            f"{self.exploration}",
        )
        require(
            self.mixing == "mlp" or self.d_model % (2 * self.num_heads) == 0,
            f"Recursive.d_model={self.d_model} must be a multiple of 2 * num_heads="
            f"{2 * self.num_heads} for attention with rotary positions",
        )

    def init(
        self,
        key: PRNGKeyArray,
        example: Batch,
        num_outputs: int,
        num_tokens: int = 0,
        world: PyTree[Array] | None = None,
    ) -> Recursion:
        """Draw a network for points and codes with the shapes of the example."""
        code = example.code
        require(
            getattr(example.x, "ndim", 0) == 2 and code.ndim <= 2,
            "Recursive needs points (n, d) and a code of words, or a vector: choose another model",
        )
        num_words = _num_words(code)
        num_read = num_words if self.targets == "words" else 1
        require(
            num_outputs % num_read == 0,
            f"Recursive reads {num_outputs} outputs at {num_words} words, which does not divide: "
            "set targets='answer'",
        )
        embedding = of_code = None
        if num_tokens:
            embedding = eqx.nn.Embedding(num_tokens, self.d_model, key=stream(key, "embedding"))
        else:
            of_code = linear(stream(key, "code"), code.shape[-1], self.d_model)
        length = num_words + NUM_EXTRA_TOKENS
        has_two = self.networks == "two" and self.kind == "recursive"
        halting = linear(stream(key, "halting"), self.d_model, 1)
        halting = eqx.tree_at(
            lambda layer: (layer.weight, layer.bias),
            halting,
            (jnp.zeros((1, self.d_model)), jnp.full(1, FIRST_HALTING_LOGIT)),
        )
        return Recursion(
            embedding,
            of_code,
            linear(stream(key, "point"), example.x.shape[1], self.d_model),
            jax.random.normal(stream(key, "answer"), (self.d_model,)),
            self._layers(stream(key, "layers"), length),
            self._layers(stream(key, "answer layers"), length) if has_two else (),
            linear(stream(key, "readout"), self.d_model, num_outputs // num_read),
            halting,
            self,
        )

    def _layers(self, key: PRNGKeyArray, length: int) -> tuple[Layer, ...]:
        """The layers of a network f for this number of tokens."""

        def layer(key):
            key_between, key_within = jax.random.split(key)
            return Layer(
                self._between(key_between, length), _gated(key_within, self.d_model, self.d_ff)
            )

        return tuple(layer(k) for k in jax.random.split(key, self.num_layers))

    def _between(self, key: PRNGKeyArray, length: int) -> Attention | GatedUnits:
        if self.mixing == "mlp":
            return _gated(key, length, length)
        queries, keys, values, attended = (
            linear(k, self.d_model, self.d_model, use_bias=False) for k in jax.random.split(key, 4)
        )
        return Attention(queries, keys, values, _scaled(attended), self.num_heads)

    def memory(self, batch: Batch) -> Memory:
        """The memory before training: a finished sample."""
        x, y, code = batch.x, batch.y, batch.code
        state = _zero_state(len(x), code, self.d_model)
        return Memory(x, y, code, state, jnp.int32(0), jnp.ones((), bool))

    def loss(
        self, net: Recursion, batch: Batch, score: Any, key: PRNGKeyArray, memory: Memory
    ) -> tuple[Array, Memory]:
        """The loss of one supervision step, and what remains of the sample after it."""
        fresh = self.memory(batch)
        # A finished sample is replaced; its state and its number of steps begin anew.
        current = jax.tree.map(
            lambda new, old: jnp.where(memory.is_finished, new, old), fresh, memory
        )
        state, prediction, halting_logits = net.think(current.x, current.code, current.state)
        scores = score(prediction, current.y)
        loss = scores["loss"]
        num_steps = current.num_steps + 1
        is_finished = num_steps >= self.num_steps
        if self.halting:
            require(
                "accuracy" in scores,
                "Recursive learns when to halt from the score `accuracy`, which this family does "
                "not have: set halting=False",
            )
            logit = halting_logits.mean()
            is_right = scores["accuracy"] >= 1
            loss = loss + HALTING_WEIGHT * _binary_cross_entropy(logit, is_right)
            is_finished |= (logit > 0) & (num_steps >= self._fewest_steps(key))
        return loss, current._replace(state=state, num_steps=num_steps, is_finished=is_finished)

    def _fewest_steps(self, key: PRNGKeyArray) -> Int[Array, ""]:
        """The steps that a sample must have: 0, or to explore a random number from 2 to S."""
        key_explore, key_steps = jax.random.split(key)
        is_exploring = jax.random.uniform(key_explore) < self.exploration
        fewest = jax.random.randint(key_steps, (), 2, max(self.num_steps, 2) + 1)
        return jnp.where(is_exploring, fewest, 0)


def _num_words(code: Array) -> int:
    """The number of tokens of a code: its words, or its rows; a vector of floats is one."""
    is_vector = code.ndim == 1 and not jnp.issubdtype(code.dtype, jnp.integer)
    return 1 if is_vector else len(code)


def _zero_state(n: int, code: Array, d_model: int) -> State:
    zeros = jnp.zeros((n, _num_words(code) + NUM_EXTRA_TOKENS, d_model))
    return zeros, zeros


def _gated(key: PRNGKeyArray, d: int, d_hidden: int) -> GatedUnits:
    gate, value, out = jax.random.split(key, 3)
    last = _scaled(linear(out, d_hidden, d))
    return GatedUnits(linear(gate, d, d_hidden), linear(value, d, d_hidden), last)


def _scaled(layer: eqx.nn.Linear) -> eqx.nn.Linear:
    """The last layer of a residual branch, with small weights.

    With full weights an untrained network scrambles its state when it is applied many times, and
    the gradient of its last cycle is noise.
    """
    return eqx.tree_at(lambda layer: layer.weight, layer, BRANCH_SCALE * layer.weight)


def _binary_cross_entropy(logit: Array, target: Array) -> Array:
    return jax.nn.softplus(jnp.where(target, -logit, logit))


def _norm(h: Array) -> Array:
    return h * jax.lax.rsqrt(jnp.square(h).mean(axis=-1, keepdims=True) + EPSILON)


def _apply(layer: eqx.nn.Linear, h: Array) -> Array:
    product = h @ layer.weight.T
    return product if layer.bias is None else product + layer.bias


def _rotate(
    h: Float[Array, "n tokens heads size"], position: Int[Array, " tokens"]
) -> Float[Array, "n tokens heads size"]:
    half = h.shape[-1] // 2
    angle = position[:, None, None] * BASE ** (-jnp.arange(half) / half)
    cos = jnp.cos(angle)
    sin = jnp.sin(angle)
    first, second = jnp.split(h, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
