import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.parts.models.transformer import EPSILON, Transformer
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch
from tests.tiny import TINY

SMALL = Transformer(num_layers=2, d_model=8, num_heads=2, d_ff=12)
LEAST = Transformer(num_layers=1, d_model=8, num_heads=2, d_ff=16)
PROBES = tuple(
    rc.LinearDecodability(num_fit=32, num_seen=32, num_test=32, paper=paper)
    for paper in (False, True)
)
TRUNCATED = 0.87962566  # standard deviation of a standard normal that is cut at -2 and 2
WORDS = 17

RNG = np.random.default_rng(1)
X = RNG.normal(size=(3, 5, 3)).astype(np.float32)  # three tasks of five points
CODES = {
    "flat": RNG.normal(size=(3, 4)).astype(np.float32),
    "sequence": RNG.normal(size=(3, 6, 4)).astype(np.float32),
    "words": RNG.integers(0, WORDS, (3, 6)),
}
KINDS = pytest.mark.parametrize("kind", CODES)


def drawn(model, x, code, num_outputs=2):
    num_tokens = WORDS if np.issubdtype(code.dtype, np.integer) else 0
    return model.init(
        new_key(0), Batch(x, np.zeros((len(x), num_outputs)), code, code), num_outputs, num_tokens
    )


def filled(kind):
    """The network with random numbers in all arrays, also in gains and biases, not compiled."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: drawn(SMALL, X[0], CODES[kind][0]))
    return jax.tree.map(lambda a: np.float32(rng.normal(0, 0.5, a.shape)), shapes)


@jax.jit
def many(net, x, code):
    return net.many(x, code)


def norm_by_hand(norm, h):
    return np.stack([(v - v.mean()) / np.sqrt(v.var() + EPSILON) * norm.weight for v in h])


def head_by_hand(q, k, v):
    """Attention of one head. Rotary positions are rotations of complex numbers by t - s."""
    half = q.shape[1] // 2
    frequencies = 10_000.0 ** (-np.arange(half) / half)
    q, k = q[:, :half] + 1j * q[:, half:], k[:, :half] + 1j * k[:, half:]
    out = np.zeros_like(v)
    for t in range(len(q)):
        logits = [
            (q[t] * k[s].conj() * np.exp(1j * (t - s) * frequencies)).real.sum() / np.sqrt(2 * half)
            for s in range(t + 1)
        ]
        weights = np.exp(logits) / np.exp(logits).sum()
        out[t] = weights @ v[: t + 1]
    return out


def by_hand(net, x, code):
    """The network in float64, one head and one token at a time: residual streams and prediction."""
    net = jax.tree.map(lambda a: np.asarray(a, np.float64), net)
    x = np.asarray(x, np.float64)
    tokens = (
        net.embedding.weight[code]
        if net.of_code is None
        else np.atleast_2d(code) @ net.of_code.weight.T
    )
    h = np.concatenate([tokens, x @ net.of_point.weight.T + net.of_point.bias])
    streams = []
    for block in net.blocks:
        normed = norm_by_hand(block.norm_attention, h)
        heads = []
        q, k, v = (normed @ layer.weight.T for layer in (block.queries, block.keys, block.values))
        for head in (slice(0, 4), slice(4, 8)):
            head_q = norm_by_hand(block.norm_queries, q[:, head])
            head_k = norm_by_hand(block.norm_keys, k[:, head])
            heads.append(head_by_hand(head_q, head_k, v[:, head]))
        h = h + np.concatenate(heads, axis=1) @ block.attended.weight.T
        wide = norm_by_hand(block.norm_feedforward, h) @ block.widen.weight.T
        gelu = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
        h = h + gelu @ block.narrow.weight.T
        streams.append(h[-len(x) :])
    return streams, norm_by_hand(net.norm, streams[-1]) @ net.readout.weight.T + net.readout.bias


@KINDS
def test_it_is_the_published_network_and_positions_are_relative(kind):
    net, codes = filled(kind), CODES[kind]
    prediction, activations = many(net, X, codes)
    assert activations.keys() == {"block0", "block1", "feedforward0", "feedforward1", "output"}
    np.testing.assert_array_equal(activations["output"], prediction)
    for task, (x, code) in enumerate(zip(X, codes, strict=True)):
        streams, expected = by_hand(net, x, code)
        np.testing.assert_allclose(prediction[task], expected, atol=1e-4)
        for i, stream in enumerate(streams):
            np.testing.assert_allclose(activations[f"block{i}"][task], stream, atol=1e-4)
    for axis in (0, 1):
        assert np.ptp(prediction, axis=axis).min() > 1e-3, "tasks and points differ"


def test_a_point_attends_to_the_code_and_earlier_points():
    net, codes = filled("flat"), CODES["flat"]
    before, _ = many(net, X, codes)
    moved = X.copy()
    moved[:, 2] += 1
    after, _ = many(net, moved, codes)
    np.testing.assert_array_equal(after[:, :2], before[:, :2])
    assert np.abs(after - before)[:, 2:].max(axis=2).min() > 1e-3
    assert np.abs(many(net, X, codes + 1)[0] - before).max(axis=2).min() > 1e-3
    # Later points have no effect.
    np.testing.assert_allclose(many(net, X[:, :3], codes)[0], before[:, :3], atol=1e-5)


@pytest.mark.parametrize("kind", ["sequence", "words"])
def test_the_order_of_a_sequence_matters(kind):
    net, codes = filled(kind), CODES[kind]
    changed = np.abs(many(net, X, codes[:, [1, 0, 2, 3, 4, 5]])[0] - many(net, X, codes)[0])
    assert changed.max(axis=2).min() > 1e-3


def test_the_published_student_has_its_size():
    x, code = np.zeros((16, 16), np.float32), np.zeros(16, np.float32)
    net = jax.eval_shape(lambda: drawn(Transformer(), x, code, num_outputs=16))
    # Projections, feed-forward network, two norms, two norms of heads.
    block = 4 * 256**2 + 2 * 256 * 1024 + 2 * 256 + 2 * 64
    tokens = 16 * 256 + (16 * 256 + 256)
    readout = 256 + (256 * 16 + 16)
    assert sum(leaf.size for leaf in jax.tree.leaves(net)) == 4 * block + tokens + readout


def test_kernels_are_lecun_truncated_normal_biases_zero_and_gains_one():
    model = Transformer(num_layers=2, d_model=64, num_heads=2, d_ff=160)
    x, code = np.zeros((5, 40), np.float32), np.zeros(90, np.float32)
    net = jax.jit(lambda: drawn(model, x, code, num_outputs=80))()
    assert all(
        isinstance(leaf, jax.Array) and leaf.dtype == np.float32 for leaf in jax.tree.leaves(net)
    )
    kernels = [leaf for leaf in jax.tree.leaves(net) if leaf.ndim == 2]
    assert len(kernels) == 2 * 6 + 3
    for kernel in map(np.asarray, kernels):
        fan_in = kernel.shape[1]
        assert kernel.std() == pytest.approx(fan_in**-0.5, rel=0.06)
        assert 0.95 < np.abs(kernel).max() / (2 * fan_in**-0.5 / TRUNCATED) <= 1.0001
    square = np.stack([kernel for kernel in kernels if kernel.shape == (64, 64)]).reshape(8, -1)
    assert np.abs(np.corrcoef(square) - np.eye(8)).max() < 0.08, (
        "layers must not share their random numbers"
    )
    for path, leaf in jax.tree_util.tree_leaves_with_path(net):
        if leaf.ndim == 1:
            np.testing.assert_array_equal(leaf, 0 if "bias" in jax.tree_util.keystr(path) else 1)


def test_only_words_are_embedded_and_embeddings_use_adam():
    """`Fast` trains leaves named `embedding` with Adam and other matrices with Muon."""
    for kind, expected in {"flat": [], "sequence": [], "words": [".embedding.weight"]}.items():
        paths = [
            jax.tree_util.keystr(path)
            for path, _ in jax.tree_util.tree_leaves_with_path(filled(kind))
        ]
        assert [path for path in paths if "embedding" in path] == expected
    assert filled("words").embedding.weight.shape == (WORDS, 8)


def lowered(net):
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.bfloat16 if leaf.ndim == 2 else jnp.float32), net
    )


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            if hasattr(value, "jaxpr"):
                yield from equations(value.jaxpr)


@KINDS
def test_products_are_in_the_type_of_the_weights_and_the_rest_in_float32(kind):
    kinds = {}
    for equation in equations(jax.make_jaxpr(many)(lowered(filled(kind)), X, CODES[kind]).jaxpr):
        kinds.setdefault(equation.primitive.name, []).extend(
            leaf.aval.dtype.name for leaf in equation.invars
        )
    assert set(kinds["dot_general"]) == {"bfloat16"}
    assert len(kinds["dot_general"]) / 2 == 2 * (6 + 2) + (2 if kind == "words" else 3)
    # Softmax, norms and gelu.
    assert {*kinds["exp"], *kinds["rsqrt"], *kinds["tanh"]} == {"float32"}


def test_bfloat16_is_close():
    net, codes = filled("words"), CODES["words"]
    low = many(lowered(net), X, codes)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(low)} == {"float32"}
    expected = many(net, X, codes)[0]
    np.testing.assert_allclose(low[0], expected, atol=0.03 * np.abs(expected).max())


def test_the_gradient_of_a_word_is_summed_in_float32():
    # In bfloat16, a sum of equal numbers stops growing after 256 terms, and a word may occur in
    # every task.
    gradient = jax.make_jaxpr(jax.grad(lambda net, x, code: many(net, x, code)[0].sum()))
    traced = equations(gradient(lowered(filled("words")), X, CODES["words"]).jaxpr)
    sums = [
        equation.outvars[0].aval for equation in traced if equation.primitive.name == "scatter-add"
    ]
    assert [(total.shape, total.dtype.name) for total in sums] == [((WORDS, 8), "float32")]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_heads": 3}, r"num_heads=3 must divide d_model=256 .*or a multiple of 6 as d_model"),
        (
            {"d_model": 12},
            r"num_heads=4 must divide d_model=12 into heads of even size.*a multiple of 8",
        ),
        ({"num_layers": 0}, r"Transformer\.num_layers must be at least 1, got 0"),
        ({"d_model": 0}, r"Transformer\.d_model must be at least 1, got 0"),
        ({"num_heads": 0}, r"Transformer\.num_heads must be at least 1, got 0"),
        ({"d_ff": 0}, r"Transformer\.d_ff must be at least 1, got 0"),
        ({"d_ff": 2.5}, r"Transformer\.d_ff must be a whole number, got 2\.5"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(InputError, match=message):
        Transformer(**fields)


@pytest.mark.parametrize(
    "x", [np.zeros((5, 3, 2)), np.zeros(5), np.zeros((5, 3), int), {"board": np.zeros((5, 3))}]
)
def test_points_that_are_no_vectors_are_refused(x):
    example = Batch(x, np.zeros((5, 2)), np.zeros(4), np.zeros(4))
    with pytest.raises(InputError, match=r"points \(n, d\) of floats"):
        LEAST.init(new_key(0), example, 2)


@pytest.mark.parametrize(
    ("code", "num_tokens"),
    [
        (np.zeros(()), 0),
        (np.zeros((4, 2, 2)), 0),
        (np.zeros(4, int), 0),
        (np.zeros(4), 9),
        (np.zeros((4, 2), int), 9),
    ],
)
def test_codes_that_are_no_sequence_are_refused(code, num_tokens):
    example = Batch(np.zeros((5, 3)), np.zeros((5, 2)), code, np.zeros(4))
    with pytest.raises(
        InputError, match=r"a flat code, a sequence \(l, d\) of vectors or \(l,\) of words"
    ):
        LEAST.init(new_key(0), example, 2, num_tokens)


@pytest.mark.parametrize(
    ("encoding", "changes"),
    [
        (rc.Identity(), {"diagnostics": PROBES[:1]}),
        (
            rc.FewShot(num_pairs=4, sequence=True),
            {"recipe": rc.Paper(learning_rate=0.01), "diagnostics": PROBES[1:]},
        ),
        (rc.Language(), {"recipe": rc.Fast(precision="bfloat16")}),
    ],
    ids=["identity", "few-shot", "language"],
)
def test_it_trains(encoding, changes):
    rows = rc.train(dataclasses.replace(TINY, model=LEAST, encoding=encoding, **changes))
    assert (rows["diverged_at"] == -1).all()
    assert rows["train/loss"].iloc[-1] < rows["train/loss"].iloc[0]
    for probe in changes.get("diagnostics", ()):
        for name in ("block0", "output", "code"):
            assert np.isfinite(rows[f"{probe.label}/{name}/test/r2"]).all()
        deepest, last = (
            rows[f"{probe.label}/deepest/test/r2"],
            rows[f"{probe.label}/block0/test/r2"],
        )
        np.testing.assert_array_equal(deepest, last)


def test_with_apart_points_do_not_attend_to_each_other():
    assert Transformer().together
    assert not Transformer(apart=True).together
    rng = np.random.default_rng(0)
    x, code = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((5, 3), (4,)))
    sizes = {"num_layers": 2, "d_model": 8, "num_heads": 2, "d_ff": 16}
    together, apart = (drawn(Transformer(**sizes, apart=a), x, code) for a in (False, True))
    other = x.at[1].add(1.0)
    moved = [
        np.abs(net(other, code)[0] - net(x, code)[0]).max(axis=1) > 1e-4
        for net in (together, apart)
    ]
    assert moved[0].tolist() == [False, True, True, True, True]
    assert moved[1].tolist() == [False, True, False, False, False]
    assert (np.abs(apart(x, code + 1)[0] - apart(x, code)[0]).max(axis=1) > 1e-4).all(), (
        "every point attends to the code"
    )
    np.testing.assert_allclose(apart(x, code)[0][0], together(x, code)[0][0], atol=1e-5)
