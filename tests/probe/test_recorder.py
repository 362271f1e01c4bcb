"""Recordings equal what the network computes, for all shapes and types, and leave no hooks."""

import gc
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the recorder's tests need the extra torch")

from recombine.basics import console  # noqa: E402
from recombine.basics.errors import InputError  # noqa: E402
from recombine.probe import Recorder  # noqa: E402

nn = torch.nn


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.mlp, self.attn = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.attn(x) + self.mlp(x)


class Network(nn.Module):
    """Tokens through blocks; optionally a mask, which it ignores."""

    def __init__(self, num=3, width=8):
        super().__init__()
        self.blocks, self.drop = nn.ModuleList(Block(width) for _ in range(num)), nn.Dropout(0.5)

    def forward(self, x, attention_mask=None):
        for block in self.blocks:
            x = self.drop(block(x))
        return {"sample": x}


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Network()


def num_hooks(model):
    modules = list(model.modules())
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)


def test_layers_by_pattern_equal_what_the_network_computes(network):
    x = torch.randn(10, 5, 8)
    recorded = Recorder(network, layers="blocks.*.mlp").record([x[:4], x[4:]])
    assert list(recorded) == ["blocks.0.mlp", "blocks.1.mlp", "blocks.2.mlp"]
    state = x
    for number, block in enumerate(network.blocks):
        expected = block.mlp(state).mean(dim=1).detach().numpy()
        np.testing.assert_allclose(recorded[f"blocks.{number}.mlp"], expected, atol=1e-6)
        state = block(state)  # without dropout: evaluation mode
    assert all(layer.dtype == np.float32 for layer in recorded.values())
    assert list(Recorder(network, ["blocks.2", "**.attn"]).modules) == [
        "blocks.0.attn",
        "blocks.1.attn",
        "blocks.2",
        "blocks.2.attn",
    ]


def test_modes_and_gradients_are_restored(network):
    network.train()
    network.blocks[1].eval()
    Recorder(network, "blocks.*").record(torch.randn(3, 5, 8))
    assert [block.training for block in network.blocks] == [True, False, True]
    assert num_hooks(network) == 0
    assert network(torch.randn(1, 5, 8))["sample"].requires_grad


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_half_precision_is_summed_in_float32(kind):
    layer = nn.Identity()
    x = torch.full((2, 4000, 3), 300.0, dtype=getattr(torch, kind))  # the sum is beyond float16
    x[1, 0] = 0
    recorded = Recorder(nn.Sequential(layer), "0").record([x])["0"]
    np.testing.assert_allclose(recorded, [[300] * 3, [300 * 3999 / 4000] * 3], rtol=1e-6)
    network = Network().to(getattr(torch, kind))
    recorded = Recorder(network, "blocks.0").record(np.ones((2, 5, 8)))  # inputs are cast
    assert recorded["blocks.0"].dtype == np.float32


def test_images_are_pooled_over_space():
    x = torch.randn(4, 6, 5, 5)
    model = nn.Sequential(nn.Identity())
    np.testing.assert_allclose(Recorder(model, "0").record([x])["0"], x.mean(dim=(2, 3)), atol=1e-6)
    last = Recorder(model, "0", channels="last").record([x])["0"]
    np.testing.assert_allclose(last, x.mean(dim=(1, 2)), atol=1e-6)
    first = Recorder(model, "0", channels="first").record([x[:, :, 0]])["0"]
    np.testing.assert_allclose(first, x[:, :, 0].mean(dim=2), atol=1e-6)
    assert Recorder(model, "0", pool="flat").record([x])["0"].shape == (4, 150)
    largest = Recorder(model, "0", pool=lambda state: state.amax(dim=(1, 2, 3))).record([x])["0"]
    np.testing.assert_allclose(largest[:, 0], x.amax(dim=(1, 2, 3)))
    with pytest.raises(InputError, match="has 4 axes and no last token: use pool='mean'"):
        Recorder(model, "0", pool="last").record([x])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_left_out(network, side):
    x, lengths = torch.randn(3, 6, 8), [6, 4, 1]
    mask = torch.tensor([[1] * n + [0] * (6 - n) for n in lengths])
    mask = mask.flip(1) if side == "left" else mask
    x[mask == 0] = torch.nan
    outputs = [network.blocks[0](x[i][mask[i] == 1]) for i in range(3)]
    for pool, expected in {
        "mean": [output.mean(dim=0) for output in outputs],
        "last": [output[-1] for output in outputs],
    }.items():
        by_name = Recorder(network, "blocks.0", pool=pool).record({"x": x, "attention_mask": mask})
        in_order = Recorder(network, "blocks.0", pool=pool).record([(x, mask)])
        for recorded in (by_name, in_order):
            np.testing.assert_allclose(
                recorded["blocks.0"], torch.stack(expected).detach(), atol=1e-6
            )


def test_tensors_are_found_in_tuples_and_dicts():
    class Wrapping(nn.Module):
        def __init__(self, wrap):
            super().__init__()
            self.wrap = wrap

        def forward(self, x):
            return self.wrap(x)

    x = torch.randn(4, 3)
    wraps = [
        lambda x: (None, x, x + 1),
        lambda x: {"other": x + 1, "last_hidden_state": x},
        lambda x: [{"loss": None, "logits": x}],
    ]
    for wrap in wraps:
        model = nn.Sequential(Wrapping(wrap))
        np.testing.assert_array_equal(Recorder(model, "0").record([x])["0"], x)
    model = nn.Sequential(Wrapping(wraps[0]))
    picked = Recorder(model, "0", pick=lambda output: output[2]).record([x])["0"]
    np.testing.assert_array_equal(picked, x + 1)
    message = "layer '0' returned NoneType without a tensor: choose a layer inside it"
    with pytest.raises(InputError, match=message):
        Recorder(nn.Sequential(Wrapping(lambda x: None)), "0").record([x])


def test_all_kinds_of_input_give_the_same_result(network):
    x = torch.randn(10, 5, 8)
    data = torch.utils.data.TensorDataset(x)
    expected = Recorder(network, "blocks.2").record(x, batch_size=4)["blocks.2"]
    inputs = [
        x.numpy(),
        {"x": x},
        [x[:3], x[3:]],
        (x[i : i + 1] for i in range(10)),
        torch.utils.data.DataLoader(data, batch_size=4),
    ]
    for batches in inputs:
        recorded = Recorder(network, "blocks.2").record(batches, batch_size=4)
        np.testing.assert_allclose(recorded["blocks.2"], expected, atol=1e-6)
    recorder = Recorder(network, "blocks.2", forward=lambda model, batch: model(batch["image"]))
    recorded = recorder.record([{"image": x}])
    np.testing.assert_allclose(recorded["blocks.2"], expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
def test_a_compiled_network_is_recorded_like_the_original(network):
    x = torch.randn(4, 5, 8)
    recorded = Recorder(torch.compile(network), "blocks.*").record(x)
    for name, rows in Recorder(network, "blocks.*").record(x).items():
        np.testing.assert_array_equal(recorded[name], rows)


def test_recording_in_your_own_loop(network):
    x = torch.randn(10, 5, 8)
    network.eval()
    with Recorder(network, "blocks.*") as recorder:
        for batch in x.split(4):
            network(batch)["sample"].sum().backward()  # recorded rows keep no graph
    expected = Recorder(network, "blocks.*").record(x)
    for name, layer in recorder.activations.items():
        np.testing.assert_allclose(layer, expected[name], atol=1e-6)
    assert num_hooks(network) == 0
    with (
        pytest.raises(
            InputError,
            match=r"layer 'blocks.0' ran outside a forward pass of the model: call the model",
        ),
        Recorder(network, "blocks.0"),
    ):
        network.blocks[0](x)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_after_an_error_hooks_are_removed_and_finished_batches_stay(network, error):
    def batches():
        yield torch.randn(4, 5, 8)
        raise error

    recorder = Recorder(network, "blocks.*")
    with pytest.raises(error):
        recorder.record(batches())
    assert num_hooks(network) == 0
    assert len(recorder.activations["blocks.0"]) == 4
    assert len(recorder.record(torch.randn(2, 5, 8))["blocks.0"]) == 2  # it starts again


def test_hooks_are_removed_after_an_interruption_inside_the_network(network):
    def interrupt(*_):
        raise KeyboardInterrupt

    network.blocks[1].mlp.register_forward_hook(interrupt)
    before = num_hooks(network)
    with pytest.raises(KeyboardInterrupt):
        Recorder(network, "blocks.*").record(torch.randn(4, 5, 8))
    assert num_hooks(network) == before


@pytest.mark.parametrize("pool", ["mean", "flat", lambda state: state[:, :2]])
def test_outputs_that_the_next_layer_overwrites_are_copied(pool):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)), torch.randn(5, 3)
    recorded = Recorder(model, "*", pool=pool).record(x)
    width = recorded["0"].shape[1]
    np.testing.assert_allclose(recorded["0"], model[0](x).detach()[:, :width], atol=1e-6)
    np.testing.assert_allclose(recorded["1"], np.maximum(recorded["0"], 0), atol=1e-6)


def test_repeated_layers_are_refused_or_chosen():
    shared = nn.Linear(3, 3)
    model, x = nn.Sequential(shared, shared), torch.randn(4, 3)
    with pytest.raises(
        InputError, match=r"layer '0' ran 2 times in one forward pass: set repeated='first'"
    ):
        Recorder(model, "0").record(x)
    once, twice = shared(x).detach().numpy(), model(x).detach().numpy()
    for which, expected in {"first": once, "last": twice, "mean": (once + twice) / 2}.items():
        np.testing.assert_allclose(
            Recorder(model, "0", repeated=which).record(x)["0"], expected, atol=1e-6
        )


def test_rows_beyond_the_limit_are_on_disk_and_deleted_with_the_arrays(
    network, monkeypatch, tmp_path
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    x = torch.randn(50, 5, 8)
    expected = Recorder(network, "blocks.*").record(x, batch_size=7)
    assert not list(tmp_path.iterdir())
    recorded = Recorder(network, "blocks.*", max_memory=1000).record(x, batch_size=7)
    for name, layer in recorded.items():
        assert isinstance(layer, np.memmap)
        np.testing.assert_array_equal(layer, expected[name])
    assert len(list(tmp_path.rglob("*.npy"))) == 3
    view = np.asarray(recorded.pop("blocks.1"))[3:5]
    del recorded, layer
    gc.collect()
    np.testing.assert_array_equal(view, expected["blocks.1"][3:5])
    assert list(tmp_path.iterdir())
    del view
    gc.collect()
    assert not list(tmp_path.iterdir())
    Recorder(network, "blocks.*", max_memory=0, folder=tmp_path / "kept").record(x, batch_size=7)
    files = sorted((tmp_path / "kept").glob("*.npy"))
    np.testing.assert_array_equal(np.load(files[2]), expected["blocks.2"])


def test_reading_activations_while_recording_changes_nothing(network):
    x = torch.randn(12, 5, 8)
    network.eval()
    for max_memory in (0, 1 << 30):
        with Recorder(network, "blocks.1", max_memory=max_memory) as recorder, torch.no_grad():
            for number, batch in enumerate(x.split(4)):
                network(batch)
                assert recorder.activations["blocks.1"].shape == (4 * (number + 1), 8)
        expected = Recorder(network, "blocks.1").record(x)["blocks.1"]
        np.testing.assert_allclose(recorder.activations["blocks.1"], expected)


def test_memory_does_not_grow_with_samples():
    code = """
import resource, torch
from recombine.probe import Recorder
model = torch.nn.Sequential(torch.nn.Identity())
batch = torch.ones(512, 4096)
record = lambda n: Recorder(model, "0", max_memory=16 << 20).record(batch for _ in range(n))["0"]
record(4)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
recorded = record(60)
assert recorded.shape == (60 * 512, 4096), recorded.shape
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert float(answer.stdout) < 150, "480 MB were recorded with 16 MB in memory"


def test_recordings_are_inputs_for_decodability():
    from recombine.probe import Decodability

    rng = np.random.default_rng(0)
    factors = {"a": rng.integers(4, size=400), "b": rng.integers(4, size=400)}
    x = np.stack([np.eye(4)[factors["a"]], np.eye(4)[factors["b"]]], axis=1).reshape(400, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    scores = Decodability().fit(Recorder(model).record(x), factors).scores_
    scores = scores[scores["split"] == "held out"].groupby("layer")["score"].mean()
    assert scores["0"] > 0.99
    assert scores["2"] < 0.9  # one number does not encode two factors


def test_progress_is_shown_after_two_seconds(network, monkeypatch, capsys):
    x = [torch.randn(2, 5, 8)] * 3
    Recorder(network, "blocks.0").record(x)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(console, "METER_DELAY", 0.0)
    Recorder(network, "blocks.0").record(x)
    assert "recording, batches: 1 of 3, about" in capsys.readouterr().err
    Recorder(network, "blocks.0", progress=False).record(x)
    assert capsys.readouterr().err == ""


def test_wrong_inputs_are_refused(network):
    x = torch.randn(4, 5, 8)
    with pytest.raises(
        InputError, match=r"no layer is called 'blocks.\*.mpl': did you mean blocks"
    ):
        Recorder(network, "blocks.*.mpl")
    with pytest.raises(InputError, match=r"must be a torch.nn.Module, got function"):
        Recorder(lambda x: x)
    with pytest.raises(
        InputError,
        match=r"pool must be 'mean', 'first', 'last', 'flat', 'every', the index of .* got 'max'",
    ):
        Recorder(network, pool="max")
    batches = iter([x])
    recorder = Recorder(network, "blocks.0")
    recorder.record(batches)
    with pytest.raises(
        InputError,
        match="a generator is empty after its first use, so make a new one or use a list",
    ):
        recorder.record(batches)
    with pytest.raises(InputError, match="there was no batch to record: provide at least one"):
        recorder.record([])
    with pytest.raises(
        InputError,
        match=r"cannot be called with a batch of 3 inputs .* forward=lambda model, batch",
    ):
        recorder.record([(x, x, x)])
    with pytest.raises(
        InputError, match="batches must be a tensor, a list, a generator or a DataLoader, got int"
    ):
        recorder.record(3)
    with pytest.raises(
        InputError, match=r"layer 'blocks.0' has 4 x 5 tokens and the attention mask 4 x 6"
    ):
        recorder.record({"x": x, "attention_mask": torch.ones(4, 6)})
    with pytest.raises(
        InputError, match="sample 1 of a batch has only padding tokens: leave it out"
    ):
        recorder.record({"x": x, "attention_mask": torch.tensor([[1], [0], [1], [1]]).expand(4, 5)})
    with pytest.raises(
        InputError, match=r"layer 'blocks.0' did not run in a forward pass of the model"
    ):
        Recorder(network, "blocks.0", forward=lambda model, batch: None).record([x])
    with pytest.raises(
        InputError, match=r"layer 'blocks.0' returned 5 rows for a batch of 4 samples"
    ):
        Recorder(network, "blocks.0", pool=lambda state: state.mean(dim=0)).record([x])
    with pytest.raises(
        InputError, match=r"layer 'blocks.0' has 40 features in one batch and 48 in another"
    ):
        Recorder(network, "blocks.0", pool="flat").record([x, torch.randn(4, 6, 8)])
    assert num_hooks(network) == 0


def test_out_of_memory_is_explained(network):
    def run_out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    network.blocks[1].register_forward_pre_hook(run_out_of_memory)
    message = "a batch of 4 samples does not fit into memory: use smaller batches"
    with pytest.raises(InputError, match=message):
        Recorder(network, "blocks.0").record([torch.randn(4, 5, 8)])
    with pytest.raises(InputError, match=message), Recorder(network, "blocks.0"):
        network(torch.randn(4, 5, 8))


def test_mixed_devices_are_explained(network):
    network.blocks[1].to("meta")  # a second device that every machine has
    message = r"the model is on cpu and meta .*: move everything to one device, .*to\('cpu'\)"
    with pytest.raises(InputError, match=message):
        Recorder(network, "blocks.0").record(torch.randn(4, 5, 8))
    with pytest.raises(
        InputError, match="the model is on the device meta and has no weights yet: load them first"
    ):
        Recorder(network.to("meta"), "blocks.0").record(torch.randn(4, 5, 8))
    with (
        pytest.raises(InputError, match="the model is on cpu and its inputs are on meta"),
        Recorder(Network(), "blocks.0") as recorder,
    ):
        recorder.model(torch.randn(4, 5, 8, device="meta"))


def test_disk_errors_are_explained(network, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        InputError, match=r"activations cannot be written to disk .*: set another folder"
    ):
        Recorder(network, "blocks.0", max_memory=0, folder=tmp_path / "file").record(
            torch.randn(4, 5, 8)
        )


def test_recording_takes_less_than_a_third_of_a_forward_pass():
    torch.manual_seed(0)
    model, x = Network(num=6, width=256).eval(), torch.randn(64, 32, 256)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            plain, recorded = [], []
            recorder = Recorder(model, "blocks.*", progress=False)
            for _ in range(12):
                clock = time.thread_time()  # what others do on the machine is not counted
                model(x)
                plain.append(time.thread_time() - clock)
                clock = time.thread_time()
                recorder.record([x])
                recorded.append(time.thread_time() - clock)
    finally:
        torch.set_num_threads(threads)
    assert min(recorded) < 1.3 * min(plain), (min(recorded), min(plain))


def test_without_torch_the_error_names_the_extra():
    code = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import recombine.probe
from recombine.basics.errors import InputError
for name in ("Recorder", "Pretrained", "Diffusion"):
    try:
        getattr(recombine.probe, name)
    except InputError as error:
        print(error)
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    message = "torch is not installed: run pip install 'recombine[torch]'"
    assert answer.stdout.splitlines() == [message] * 3


@pytest.mark.parametrize(
    ("library", "use"),
    [
        ("diffusers", "from recombine.probe import tiny"),
        ("diffusers", "from recombine.probe import Diffusion; Diffusion('folder')"),
        ("transformers", "from recombine.probe import Pretrained; Pretrained('folder')"),
        (
            "transformers",
            "from recombine.probe.judges import clip_scores; clip_scores('folder', [], [])",
        ),
    ],
)
def test_without_a_model_library_the_error_names_the_extra(library, use):
    code = f"""
import sys
sys.modules[{library!r}] = None  # as if it were not installed
from recombine.basics.errors import InputError
try:
    {use}
except InputError as error:
    print(error)
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert (
        answer.stdout.strip() == f"{library} is not installed: run pip install 'recombine[torch]'"
    )


def test_notices_about_torchvision_are_hidden():
    pytest.importorskip("diffusers", reason="pipelines need the extra torch")
    code = "from recombine.probe import tiny; tiny.pipeline()"
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert "torchvision" not in answer.stderr


class Pair(nn.Module):
    """An encoder and a decoder, each called with its own mask."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Network(num=1), Network(num=1)

    def forward(self, x, y, attention_mask=None, decoder_attention_mask=None):
        self.encoder(x, attention_mask=attention_mask)
        return self.decoder(y, attention_mask=decoder_attention_mask)


@pytest.mark.parametrize("masked", [True, False])
def test_an_encoder_and_a_decoder_have_separate_masks(masked):
    torch.manual_seed(0)
    pair, x, y = Pair().eval(), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    first = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    second = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]) if masked else None
    batch = {"x": x, "y": y, "attention_mask": first, "decoder_attention_mask": second}
    recorded = Recorder(pair, ["encoder.blocks.0", "decoder.blocks.0"]).record([batch])
    for name, module, state, mask in (
        ("encoder", pair.encoder, x, first),
        ("decoder", pair.decoder, y, second),
    ):
        is_real = torch.ones(2, 5) if mask is None else mask
        output = module.blocks[0](state).detach() * is_real[:, :, None]
        expected = output.sum(dim=1) / is_real.sum(dim=1)[:, None]
        np.testing.assert_allclose(recorded[f"{name}.blocks.0"], expected, atol=1e-6)


def test_the_mask_of_a_part_that_is_called_alone_is_used():
    pair, x = Pair().eval(), torch.randn(2, 5, 8)
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    run = lambda model, batch: model.encoder(batch["x"], attention_mask=batch["mask"])  # noqa: E731
    recorder = Recorder(pair, "encoder.blocks.0", forward=run)
    recorded = recorder.record([{"x": x, "mask": mask}])["encoder.blocks.0"]
    expected = pair.encoder.blocks[0](x[0, :2]).mean(dim=0).detach()
    np.testing.assert_allclose(recorded[0], expected, atol=1e-6)


def test_the_mask_of_a_wrapper_is_used(network):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Identity())

        def forward(self, **kwargs):
            return self.inner(kwargs["x"])

    x, mask = torch.randn(2, 3, 4), torch.tensor([[1, 0, 0], [1, 1, 1]])
    recorded = Recorder(Wrapper(), "inner.0").record([{"x": x, "attention_mask": mask}])["inner.0"]
    np.testing.assert_allclose(recorded[0], x[0, 0], atol=1e-6)


@pytest.mark.parametrize("num_tokens", [5, 4])
def test_layers_with_tokens_first_are_transposed(num_tokens):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    model = nn.Sequential(
        nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.LSTM(8, 6)
    ).eval()
    x = torch.randn(4, num_tokens, 8)
    run = lambda model, batch: model(batch.transpose(0, 1))  # noqa: E731
    recorded = Recorder(model, ["0.layers.0", "0.layers.0.linear2", "1"], forward=run).record(x)
    with torch.no_grad():
        states = model[0](x.transpose(0, 1))
        np.testing.assert_allclose(recorded["0.layers.0"], states.mean(dim=0), atol=1e-6)
        np.testing.assert_allclose(recorded["1"], model[1](states)[0].mean(dim=0), atol=1e-6)
        assert recorded["0.layers.0.linear2"].shape == (4, 8)
    message = "returned 7 rows for a batch of 4 samples: it expects tokens first, so set forward="
    with pytest.raises(InputError, match=message):
        Recorder(model, "1").record([torch.randn(4, 7, 8)])


def test_samples_of_different_lengths_without_padding():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False, False, True, True, True]])
    run = lambda model, batch: model(batch, src_key_padding_mask=padding)  # noqa: E731
    with pytest.warns(UserWarning, match="nested tensors is in prototype stage"):
        recorded = Recorder(model, "layers.1", forward=run).record([x])["layers.1"]
    with torch.no_grad():
        np.testing.assert_allclose(recorded[1], model(x[1:, :2])[0].mean(dim=0), atol=1e-5)
        every = Recorder(model, "layers.1", pool="every", forward=run)
        np.testing.assert_allclose(
            every.record([x])["layers.1"][5:], model(x[1:, :2])[0], atol=1e-5
        )
    assert every.groups.tolist() == [0] * 5 + [1] * 2
    with pytest.raises(
        InputError, match=r"layer 'layers.1' has samples of different lengths: pool over them"
    ):
        Recorder(model, "layers.1", pool="flat", forward=run).record([x])


def test_complex_numbers_need_a_pool_function():
    x = torch.randn(4, 3, dtype=torch.complex64)
    model = nn.Sequential(nn.Identity())
    recorded = Recorder(model, "0", pool=lambda state: state.abs()).record([x])["0"]
    np.testing.assert_allclose(recorded, x.abs())
    message = "layer '0' returned complex numbers: set pool to a function that makes them real"
    with pytest.raises(InputError, match=message):
        Recorder(model, "0").record([x])


def test_a_second_recording_keeps_the_files_of_the_first(tmp_path):
    recorder = Recorder(nn.Sequential(nn.Identity()), "0", max_memory=0, folder=tmp_path)
    first = recorder.record(torch.ones(1000, 50))["0"]
    recorder.record(torch.zeros(10, 50))
    assert first.shape == (1000, 50)
    assert (first == 1).all()
    assert np.load(next(iter(tmp_path.iterdir()))).shape == (10, 50)


@pytest.mark.parametrize("sizes", [[4, 4, 4], [4, 4, 2], [2, 4, 4], [4, 2, 4, 1]])
@pytest.mark.parametrize("repeated", ["first", "last"])
def test_rows_without_pooling_are_stored_correctly(sizes, repeated):
    """They go directly to reserved memory, for all batch sizes and also for repeated layers."""
    twice = nn.Linear(3, 3)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), twice, twice)
    x = torch.randn(sum(sizes), 3)
    recorded = Recorder(model, ["0", "2"], repeated=repeated).record(list(x.split(sizes)))
    with torch.no_grad():
        np.testing.assert_allclose(recorded["0"], model[0](x), atol=1e-6)
        num_modules = 3 if repeated == "first" else 4
        np.testing.assert_allclose(recorded["2"], model[:num_modules](x), atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_more_wrong_inputs_are_refused(network):
    x, shared = torch.randn(4, 5, 8), nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    uneven = {"x": x, "attention_mask": torch.ones(3, 5)}
    with Recorder(network, "blocks.0") as empty:
        pass
    for message, use in {
        "layer '2' is the same module as '0': use that name": lambda: Recorder(model, "2"),
        "layers must be names or patterns such as 'blocks.*', got NoneType": lambda: Recorder(
            model, None
        ),
        "a scripted model cannot be recorded": lambda: Recorder(
            torch.jit.script(nn.Sequential(nn.ReLU()))
        ),
        "nothing was recorded: call the model itself inside the `with` block": lambda: (
            empty.activations
        ),
        "a batch has no sample: leave it out": lambda: Recorder(model, "1").record(
            [torch.zeros(0, 3)]
        ),
        "one tensor has 4 rows and another 3": lambda: Recorder(network, "blocks.0").record(uneven),
    }.items():
        with pytest.raises(InputError) as raised:
            use()
        assert message in str(raised.value)


def test_single_numbers_in_a_batch_are_not_samples(network):
    x = torch.randn(4, 5, 8)
    recorder = Recorder(network, "blocks.0", forward=lambda model, batch: model(batch["x"]))
    assert recorder.record({"sum": x.sum(), "x": x})["blocks.0"].shape == (4, 8)


def test_a_pool_function_with_weights():
    """Its rows may be part of a graph, which is not kept."""
    head = nn.Parameter(torch.ones(3))
    model = nn.Sequential(nn.Identity())
    pool = lambda rows: head.expand(len(rows), 3)  # noqa: E731
    recorded = Recorder(model, "0", pool=pool, progress=False).record(torch.ones(4, 2))
    assert recorded["0"].tolist() == [[1, 1, 1]] * 4
