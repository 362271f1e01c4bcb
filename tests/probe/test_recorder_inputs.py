"""Masks of every convention, compiled networks, dataclasses, threads and positions of tokens."""

import dataclasses
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the recorder's tests need the extra torch")

from recombine.basics.errors import InputError  # noqa: E402
from recombine.probe import Recorder  # noqa: E402

nn = torch.nn
LENGTHS = (6, 4, 1)


def padded(side="right"):
    """Tokens of three samples, and whether each is a token."""
    torch.manual_seed(0)
    x = torch.randn(3, 6, 8)
    is_token = torch.arange(6)[None] < torch.tensor(LENGTHS)[:, None]
    return x, is_token.flip(1) if side == "left" else is_token


class Masked(nn.Module):
    """A block of tokens that takes an attention mask and ignores it."""

    def __init__(self):
        super().__init__()
        self.block = nn.Linear(8, 5)

    def forward(self, x, attention_mask=None):
        return self.block(x)


@pytest.mark.parametrize("kind", ["bool", "added", "one layer", "attention"])
def test_padding_of_pytorchs_own_modules_is_left_out(kind):
    x, is_token = padded()
    mask = ~is_token if kind != "added" else torch.where(is_token, 0.0, -torch.inf)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
    model, name, call = (
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        "layers.1",
        None,
    )
    if kind == "one layer":
        model, name = layer, "linear2"
    if kind == "attention":
        model, name = (
            nn.ModuleDict({"inner": nn.MultiheadAttention(8, 2, batch_first=True)}),
            "inner",
        )

        def call(model, batch):
            return model["inner"](batch[0], batch[0], batch[0], key_padding_mask=batch[1])

    if call is None:

        def call(model, batch):
            return model(batch[0], src_key_padding_mask=batch[1])

    recorded = Recorder(model, name, forward=call).record([(x, mask)])[name]
    every = Recorder(model, name, forward=call, pool="flat").record([(x, mask)])[name]
    tokens = every.reshape(3, 6, -1)
    expected = np.stack([tokens[i, :n].mean(axis=0) for i, n in enumerate(LENGTHS)])
    np.testing.assert_allclose(recorded, expected, atol=1e-6)


def test_masks_of_keys_do_not_count_for_the_queries():
    x, is_token = padded()
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    model = nn.ModuleDict({"cross": attention})

    def call(model, batch):
        return model["cross"](batch[0], batch[0] * 2, batch[0], key_padding_mask=batch[1])

    mean = Recorder(model, "cross", forward=call).record([(x, ~is_token)])["cross"]
    every = Recorder(model, "cross", forward=call, pool="flat").record([(x, ~is_token)])["cross"]
    np.testing.assert_allclose(mean, every.reshape(3, 6, 8).mean(axis=1), atol=1e-6)


@pytest.mark.parametrize("lowest", [-torch.inf, -10_000.0, torch.finfo(torch.float32).min])
def test_masks_that_are_added_to_scores_are_not_inverted(lowest):
    x, is_token = padded()
    model = Masked()
    expected = Recorder(model, "block").record([(x, is_token)])["block"]
    added = torch.where(is_token, 0.0, lowest)
    recorded = Recorder(model, "block").record([(x, added)])["block"]
    np.testing.assert_allclose(recorded, expected)
    nothing_padded = Recorder(model, "block").record([(x, torch.zeros(3, 6))])["block"]
    np.testing.assert_allclose(nothing_padded, Recorder(model, "block").record([x])["block"])
    as_floats = Recorder(model, "block").record([(x, is_token.float())])["block"]
    np.testing.assert_allclose(as_floats, expected)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pool", ["first", "last", 0, -1, (0, 1), (-1, 0)])
def test_positions_count_tokens_without_padding(side, pool):
    x, is_token = padded(side)
    model = Masked()
    states = model.block(x).detach()
    rows = []
    for i in range(3):
        own = states[i][is_token[i]]
        is_first = pool in ("first", 0, (0, 1))
        rows.append(own[0] if is_first else own[-1])
    recorded = Recorder(model, "block", pool=pool).record([(x, is_token)])["block"]
    np.testing.assert_allclose(recorded, torch.stack(rows), atol=1e-6)


def test_positions_without_a_mask_and_those_that_do_not_exist():
    x, is_token = padded()
    model = Masked()
    states = model.block(x).detach()
    for pool, expected in {
        3: states[:, 3],
        -2: states[:, -2],
        (1, 4): states[:, 1:4].mean(dim=1),
        (-3, -1): states[:, -3:-1].mean(dim=1),
    }.items():
        recorded = Recorder(model, "block", pool=pool).record([x])["block"]
        np.testing.assert_allclose(recorded, expected, atol=1e-6)
    with pytest.raises(InputError, match="has 1 tokens in sample 2 of a batch, and pool=3"):
        Recorder(model, "block", pool=3).record([(x, is_token)])
    for wrong in (True, (1, 2, 3), 1.5, "middle"):
        with pytest.raises(InputError, match=r"pool must be 'mean', .* 'flat', 'every'"):
            Recorder(model, "block", pool=wrong)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
def test_a_compiled_network_that_ran_before_is_recorded():
    x, _ = padded()
    model = Masked()
    expected = model.block(x).detach().mean(dim=1)
    compiled = torch.compile(model, backend="eager")
    compiled(x)  # without hooks: the compiled code does not look for them
    with Recorder(compiled, "block") as recorder:
        compiled(x)
    np.testing.assert_allclose(recorder.activations["block"], expected, atol=1e-6)
    model.compile(backend="eager")
    model(x)
    with Recorder(model, "block") as recorder:
        model(x)
    np.testing.assert_allclose(recorder.activations["block"], expected, atol=1e-6)


def test_outputs_may_be_dataclasses():
    @dataclasses.dataclass
    class Output:
        loss: object
        last_hidden_state: object
        logits: object

    class Wrapping(nn.Module):
        def forward(self, x):
            return Output(None, x * 2, x * 3)

    model = nn.Sequential(Wrapping())
    x = torch.randn(4, 5)
    np.testing.assert_allclose(
        Recorder(model, "0", forward=lambda model, batch: model(batch)).record([x])["0"], x * 2
    )


def test_two_threads_at_a_time_are_refused_and_one_after_the_other_is_not():
    x = torch.randn(4, 8)
    inside, leave = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, x):
            if not inside.is_set():
                inside.set()
                leave.wait(20)
            return x * 2

    model = nn.Sequential(Waiting())
    with Recorder(model, "0") as recorder:
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        assert inside.wait(20)
        with pytest.raises(InputError, match="two threads run the model at the same time"):
            model(x)
        leave.set()
        thread.join()
        model(x + 1)
    expected = torch.cat([x * 2, (x + 1) * 2])
    np.testing.assert_allclose(recorder.activations["0"], expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_every_token_is_a_row_and_groups_name_its_sample(side):
    x, is_token = padded(side)
    model = Masked()
    states = model.block(x).detach()
    expected = torch.cat([states[i][is_token[i]] for i in range(3)])
    recorder = Recorder(model, ["block", "**"], pool="every")
    batches = [(x, is_token), (x[:2], is_token[:2])]
    recorded = recorder.record(batches)["block"]
    np.testing.assert_allclose(recorded[: len(expected)], expected, atol=1e-6)
    assert recorder.groups.tolist() == [0] * 6 + [1] * 4 + [2] + [3] * 6 + [4] * 4
    assert len(recorded) == len(recorder.groups)
    recorder.record([(x[2:], is_token[2:])])  # groups begin anew
    assert recorder.groups.tolist() == [0]
    with recorder:  # your own loop
        model(x)
    assert recorder.groups.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert len(recorder.activations["block"]) == 18
    mean = Recorder(model, "block")
    mean.record([x])
    assert mean.groups.tolist() == [0, 1, 2]


def test_every_token_needs_the_same_tokens_in_all_layers():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.whole = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x):
            return self.tokens(x).sum() + self.whole(x[:, 0]).sum()

    with pytest.raises(InputError, match="'tokens' and 'whole' have different numbers of tokens"):
        Recorder(Two(), ["tokens", "whole"], pool="every").record([torch.randn(3, 6, 8)])
    images = nn.Sequential(nn.Identity())
    with pytest.raises(InputError, match="has 4 axes and no tokens: use pool='mean'"):
        Recorder(images, "0", pool="every").record([torch.randn(3, 6, 4, 4)])
    with pytest.raises(InputError, match="returned 6 rows for a batch of 3 samples"):
        Recorder(
            nn.Sequential(nn.Identity()), "0", pool="every", pick=lambda state: state.flatten(0, 1)
        ).record([torch.randn(3, 2, 8)])
