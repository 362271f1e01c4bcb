"""Recording on a GPU gives the CPU's numbers, and explains errors of memory and devices."""

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
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, width // 32, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        state = self.norm(x)
        x = x + self.attention(state, state, state, need_weights=False)[0]
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
def full_precision():
    """Matrix products in full precision, as on a CPU."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
    torch.cuda.empty_cache()


@pytest.mark.parametrize(
    ("kind", "atol"), [("float32", 1e-4), ("bfloat16", 5e-2), ("float16", 1e-2)]
)
@pytest.mark.parametrize("pool", ["mean", "last", "flat"])
def test_numbers_equal_those_of_a_cpu(network, kind, atol, pool):
    x = torch.randn(50, 7, 64)
    layers = ["blocks.*", "blocks.1.mlp"]
    on_cpu = Recorder(network, layers, pool=pool).record(x, batch_size=16)
    network.to("cuda", getattr(torch, kind))
    on_gpu = Recorder(network, layers, pool=pool).record(x, batch_size=16)
    assert list(on_cpu) == list(on_gpu)
    for name, rows in on_gpu.items():
        assert rows.dtype == np.float32
        scale = max(1, np.abs(on_cpu[name]).max())
        np.testing.assert_allclose(rows, on_cpu[name], atol=atol * scale)


def test_masks_files_and_your_own_loop(network, tmp_path):
    x, mask = torch.randn(20, 7, 64), torch.ones(20, 7, dtype=torch.long)
    mask[::2, 4:] = 0
    data = {"x": x, "attention_mask": mask}
    on_cpu = Recorder(network, "blocks.2").record(data, batch_size=6)["blocks.2"]
    recorder = Recorder(network.to("cuda"), "blocks.2", max_memory=0, folder=tmp_path)
    on_gpu = recorder.record(data, batch_size=6)["blocks.2"]
    assert isinstance(on_gpu, np.memmap)
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-4)
    with Recorder(network, "blocks.2") as own_loop, torch.no_grad():
        # The mask may be on another device than the data.
        for batch, batch_mask in zip(x.cuda().split(6), mask.split(6), strict=True):
            network(batch, attention_mask=batch_mask)
    np.testing.assert_allclose(own_loop.activations["blocks.2"], on_cpu, atol=1e-4)


def test_layers_on_several_devices():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).cuda()), torch.randn(30, 8)
    run = lambda model, batch: model[1](model[0](batch).cuda())  # noqa: E731
    recorded = Recorder(model, "*", forward=run).record(x, batch_size=5)
    with torch.no_grad():
        np.testing.assert_allclose(recorded["0"], model[0](x), atol=1e-5)
        np.testing.assert_allclose(recorded["1"], model[1](model[0](x).cuda()).cpu(), atol=1e-5)


def test_torchs_default_type_and_device_do_not_matter(network, tmp_path):
    x = torch.randn(24, 7, 64)
    expected = Recorder(network, "blocks.*", progress=False).record(list(x.split(8)))
    network.cuda()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("cuda"):
            recorder = Recorder(network, "blocks.*", progress=False, max_memory=0, folder=tmp_path)
            recorded = recorder.record([batch.cuda() for batch in x.split(8)])
    finally:
        torch.set_default_dtype(before)
    for name, rows in expected.items():
        np.testing.assert_allclose(recorded[name], rows, atol=1e-4)


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
    on_cpu = Pretrained(model, letters).record(texts)
    on_gpu = Pretrained(model.cuda(), letters).record(texts, batch_size=2)
    for name, rows in on_gpu.items():
        np.testing.assert_allclose(rows, on_cpu[name], atol=1e-4)


def test_mixed_devices_are_explained(network):
    network.blocks[1].cuda()
    message = r"the model is on cpu and cuda:0 .*: move everything to one device, .*to\('cuda"
    with pytest.raises(InputError, match=message):
        Recorder(network, "blocks.0").record(torch.randn(4, 7, 64))
    network.cuda()
    message = "the model is on cuda:0 and its inputs are on cpu: move everything to one device"
    with pytest.raises(InputError, match=message), Recorder(network, "blocks.0"):
        network(torch.randn(4, 7, 64))


def test_out_of_memory_is_explained_and_a_smaller_batch_fits(network):
    network.cuda()
    recorder = Recorder(network, "blocks.*", progress=False)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_reserved() + (256 << 20)
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    try:
        # Of 256 MB, one state takes 313 MB, so it cannot even be moved, or 156 MB.
        for num in (20_000, 10_000):
            message = f"a batch of {num} samples does not fit into memory: use smaller batches"
            with pytest.raises(InputError, match=message):
                recorder.record([torch.randn(num, 64, 64)])
        assert not any(module._forward_hooks for module in network.modules())
        assert len(recorder.record([torch.randn(20, 64, 64)])["blocks.0"]) == 20
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_device_memory_does_not_grow_with_the_number_of_batches(network):
    network.cuda()
    recorder = Recorder(network, "blocks.*", pool="flat", progress=False)
    x = torch.randn(64, 32, 64)
    recorder.record([x] * 2)
    torch.cuda.reset_peak_memory_stats()
    recorder.record([x] * 2)
    memory_of_two = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    recorder.record([x] * 40)
    assert torch.cuda.max_memory_allocated() <= 1.05 * memory_of_two


def test_recording_takes_less_than_a_third_of_a_forward_pass():
    torch.manual_seed(0)
    model = Network(num=6, width=1024).eval().cuda()
    x = torch.randn(64, 128, 1024, device="cuda")
    recorder = Recorder(model, "blocks.*", progress=False)
    plain, recorded = [], []

    def seconds(work):
        torch.cuda.synchronize()
        clock = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - clock

    with torch.no_grad():
        for _ in range(15):
            plain.append(seconds(lambda: [model(x) for _ in range(4)]))
            recorded.append(seconds(lambda: recorder.record([x] * 4)))
    ratio = np.median(np.array(recorded[3:]) / np.array(plain[3:]))
    assert ratio < 1.3, ratio


@pytest.mark.parametrize("known_length", [True, False])
def test_rows_of_every_batch_arrive_once_and_in_order(network, known_length):
    """Copies continue while the next batch runs: none is lost, doubled or overwritten."""
    x = torch.randn(96, 7, 64)
    batches = [x[start : start + 8] for start in range(0, 96, 8)]
    expected = Recorder(network, "blocks.*", progress=False).record(batches)
    network.cuda()
    recorder = Recorder(network, "blocks.*", progress=False)
    recorded = recorder.record(batches if known_length else (batch for batch in batches))
    for name, rows in expected.items():
        np.testing.assert_allclose(recorded[name], rows, atol=1e-4)


def test_activations_may_be_read_while_recording(network):
    x = torch.randn(24, 7, 64)
    expected = Recorder(network, "blocks.*", progress=False).record([x])
    network.cuda()
    with Recorder(network, "blocks.*", progress=False) as recorder, torch.no_grad():
        for start in range(0, 24, 8):
            network(x[start : start + 8].cuda())
            shapes = {rows.shape for rows in recorder.activations.values()}
            assert shapes == {(start + 8, 64)}
    for name, rows in expected.items():
        np.testing.assert_allclose(recorder.activations[name], rows, atol=1e-4)
