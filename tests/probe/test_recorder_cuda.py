"""Recording on a GPU: the numbers of the CPU, whatever the type, and what is told when memory or devices do not fit."""

import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the recorder's tests need the extra torch")
if not torch.cuda.is_available():
    pytest.skip(
        "NOT RUN: recording on a GPU needs one that PyTorch sees, and there is none",
        allow_module_level=True,
    )

from recombine.basics.errors import InputError  # noqa: E402
from recombine.probe import Pretrained, Recorder  # noqa: E402

nn = torch.nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mix = (
            nn.LayerNorm(width),
            nn.MultiheadAttention(width, width // 32, batch_first=True),
        )
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        state = self.norm(x)
        x = x + self.mix(state, state, state, need_weights=False)[0]
        return x + self.mlp(x)


class Network(nn.Module):
    def __init__(self, num=3, width=64):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(num))

    def forward(self, x, attention_mask=None):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Network().eval()


@pytest.fixture(autouse=True)
def exact():
    """Products in full precision, as on a CPU."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
    torch.cuda.empty_cache()


@pytest.mark.parametrize(
    ("kind", "atol"), [("float32", 1e-4), ("bfloat16", 5e-2), ("float16", 1e-2)]
)
@pytest.mark.parametrize("pool", ["mean", "last", "flat"])
def test_the_same_as_on_a_cpu(network, kind, atol, pool):
    x = torch.randn(50, 7, 64)
    layers = ["blocks.*", "blocks.1.mlp"]
    here = Recorder(network, layers, pool=pool).record(x, batch_size=16)
    there = Recorder(network.to("cuda", getattr(torch, kind)), layers, pool=pool).record(
        x, batch_size=16
    )
    assert list(here) == list(there)
    for name, rows in there.items():
        assert rows.dtype == np.float32
        np.testing.assert_allclose(rows, here[name], atol=atol * max(1, np.abs(here[name]).max()))


def test_masks_spills_and_your_own_loop(network, tmp_path):
    x, mask = torch.randn(20, 7, 64), torch.ones(20, 7, dtype=torch.long)
    mask[::2, 4:] = 0
    given = {"x": x, "attention_mask": mask}
    here = Recorder(network, "blocks.2").record(given, batch_size=6)["blocks.2"]
    recorder = Recorder(network.to("cuda"), "blocks.2", max_memory=0, folder=tmp_path)
    there = recorder.record(given, batch_size=6)["blocks.2"]
    assert isinstance(there, np.memmap)
    np.testing.assert_allclose(there, here, atol=1e-4)
    with Recorder(network, "blocks.2") as own, torch.no_grad():
        for some, real in zip(
            x.cuda().split(6), mask.split(6), strict=True
        ):  # the mask may be elsewhere
            network(some, attention_mask=real)
    np.testing.assert_allclose(own.activations["blocks.2"], here, atol=1e-4)


def test_layers_on_several_devices():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).cuda()), torch.randn(30, 8)
    run = lambda model, batch: model[1](model[0](batch).cuda())  # noqa: E731
    found = Recorder(model, "*", forward=run).record(x, batch_size=5)
    with torch.no_grad():
        np.testing.assert_allclose(found["0"], model[0](x), atol=1e-5)
        np.testing.assert_allclose(found["1"], model[1](model[0](x).cuda()).cpu(), atol=1e-5)


def test_defaults_of_torch_do_not_matter(network, tmp_path):
    x = torch.randn(24, 7, 64)
    wanted = Recorder(network, "blocks.*", progress=False).record(list(x.split(8)))
    network.cuda()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("cuda"):
            recorder = Recorder(network, "blocks.*", progress=False, max_memory=0, folder=tmp_path)
            found = recorder.record([one.cuda() for one in x.split(8)])
    finally:
        torch.set_default_dtype(before)
    for name, rows in wanted.items():
        np.testing.assert_allclose(found[name], rows, atol=1e-4)


def test_a_model_of_transformers():
    transformers = pytest.importorskip("transformers", reason="this test needs the extra torch")
    small = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**small, vocab_size=128)).eval()
    letters = lambda texts: {"input_ids": [[ord(letter) for letter in text] for text in texts]}  # noqa: E731
    texts = ["a cat", "a dog and an owl", "x"]
    here = Pretrained(model, letters).record(texts)
    there = Pretrained(model.cuda(), letters).record(texts, batch_size=2)
    for name, rows in there.items():
        np.testing.assert_allclose(rows, here[name], atol=1e-4)


def test_mixed_devices_are_named(network):
    network.blocks[1].cuda()
    with pytest.raises(
        InputError,
        match=r"the model is on cpu and cuda:0 .*: move all to one device, model.to\('cuda",
    ):
        Recorder(network, "blocks.0").record(torch.randn(4, 7, 64))
    network.cuda()
    with (
        pytest.raises(
            InputError,
            match=r"the model is on cuda:0 and its inputs are on cpu: move all to one device",
        ),
        Recorder(network, "blocks.0"),
    ):
        network(torch.randn(4, 7, 64))


def test_out_of_memory_is_told_and_the_next_batch_fits(network):
    network.cuda()
    recorder = Recorder(network, "blocks.*", progress=False)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(
        min(1.0, (torch.cuda.memory_reserved() + (256 << 20)) / total)
    )
    try:
        for num in (
            20_000,
            10_000,
        ):  # a state has 313 MB, which cannot even be moved, and 156 MB, of 256 MB
            told = f"a batch of {num} samples does not fit into memory: give smaller batches"
            with pytest.raises(InputError, match=told):
                recorder.record([torch.randn(num, 64, 64)])
        assert not any(module._forward_hooks for module in network.modules())
        assert len(recorder.record([torch.randn(20, 64, 64)])["blocks.0"]) == 20
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_memory_on_the_device_does_not_grow_with_batches(network):
    network.cuda()
    recorder, x = (
        Recorder(network, "blocks.*", pool="flat", progress=False),
        torch.randn(64, 32, 64),
    )
    recorder.record([x] * 2)
    torch.cuda.reset_peak_memory_stats()
    recorder.record([x] * 2)
    few = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    recorder.record([x] * 40)
    assert torch.cuda.max_memory_allocated() <= 1.05 * few


def test_recording_takes_less_than_a_third_of_a_forward_pass():
    torch.manual_seed(0)
    model, x = Network(num=6, width=1024).eval().cuda(), torch.randn(64, 128, 1024, device="cuda")
    recorder, plain, recorded = Recorder(model, "blocks.*", progress=False), [], []

    def timed(work):
        torch.cuda.synchronize()
        clock = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - clock

    with torch.no_grad():
        for _ in range(15):
            plain.append(timed(lambda: [model(x) for _ in range(4)]))
            recorded.append(timed(lambda: recorder.record([x] * 4)))
    ratio = np.median(np.array(recorded[3:]) / np.array(plain[3:]))
    assert ratio < 1.3, ratio


@pytest.mark.parametrize("known", [True, False])
def test_rows_of_every_batch_arrive_once_and_in_their_order(network, known):
    """Copies go on while the next batch runs: none is lost, doubled or overwritten, however many there are."""
    x = torch.randn(96, 7, 64)
    batches = [x[start : start + 8] for start in range(0, 96, 8)]
    wanted = Recorder(network, "blocks.*", progress=False).record(batches)
    network.cuda()
    found = Recorder(network, "blocks.*", progress=False).record(
        batches if known else (batch for batch in batches)
    )
    for name, rows in wanted.items():
        np.testing.assert_allclose(found[name], rows, atol=1e-4)


def test_activations_may_be_read_within_a_loop(network):
    x = torch.randn(24, 7, 64)
    wanted = Recorder(network, "blocks.*", progress=False).record([x])
    network.cuda()
    with Recorder(network, "blocks.*", progress=False) as recorder, torch.no_grad():
        for start in range(0, 24, 8):
            network(x[start : start + 8].cuda())
            read = recorder.activations
            assert {rows.shape for rows in read.values()} == {(start + 8, 64)}
    for name, rows in wanted.items():
        np.testing.assert_allclose(recorder.activations[name], rows, atol=1e-4)
