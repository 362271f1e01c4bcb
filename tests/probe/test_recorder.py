"""What is recorded is what the network computed, whatever its shape, type and loop, and hooks never stay."""

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


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_layers_by_pattern_are_what_the_network_computes(network):
    x = torch.randn(10, 5, 8)
    found = Recorder(network, layers="blocks.*.mlp").record([x[:4], x[4:]])
    assert list(found) == ["blocks.0.mlp", "blocks.1.mlp", "blocks.2.mlp"]
    state = x
    for number, block in enumerate(network.blocks):
        expected = block.mlp(state).mean(dim=1).detach().numpy()
        np.testing.assert_allclose(found[f"blocks.{number}.mlp"], expected, atol=1e-6)
        state = block(state)  # without dropout: evaluation mode
    assert all(layer.dtype == np.float32 for layer in found.values())
    assert list(Recorder(network, ["blocks.2", "**.attn"]).modules) == [
        "blocks.0.attn",
        "blocks.1.attn",
        "blocks.2",
        "blocks.2.attn",
    ]


def test_modes_and_gradients_are_as_before(network):
    network.train()
    network.blocks[1].eval()
    Recorder(network, "blocks.*").record(torch.randn(3, 5, 8))
    assert [block.training for block in network.blocks] == [True, False, True]
    assert hooks(network) == 0
    assert network(torch.randn(1, 5, 8))["sample"].requires_grad


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_half_precision_is_summed_in_full(kind):
    layer = nn.Identity()
    x = torch.full((2, 4000, 3), 300.0, dtype=getattr(torch, kind))  # the sum is beyond float16
    x[1, 0] = 0
    found = Recorder(nn.Sequential(layer), "0").record([x])["0"]
    np.testing.assert_allclose(found, [[300] * 3, [300 * 3999 / 4000] * 3], rtol=1e-6)
    network = Network().to(getattr(torch, kind))
    assert (
        Recorder(network, "blocks.0").record(np.ones((2, 5, 8)))["blocks.0"].dtype == np.float32
    )  # inputs are cast


def test_images_are_pooled_over_space_and_tokens_over_time():
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
def test_padding_is_no_part_of_a_sample(network, side):
    x, lengths = torch.randn(3, 6, 8), [6, 4, 1]
    mask = torch.tensor([[1] * n + [0] * (6 - n) for n in lengths])
    mask = mask.flip(1) if side == "left" else mask
    x[mask == 0] = torch.nan
    real = [x[i][mask[i] == 1] for i in range(3)]
    block = network.blocks[0]
    for pool, expected in {
        "mean": [block(r).mean(dim=0) for r in real],
        "last": [block(r)[-1] for r in real],
    }.items():
        by_name = Recorder(network, "blocks.0", pool=pool).record({"x": x, "attention_mask": mask})
        in_order = Recorder(network, "blocks.0", pool=pool).record([(x, mask)])
        for found in (by_name, in_order):
            np.testing.assert_allclose(found["blocks.0"], torch.stack(expected).detach(), atol=1e-6)


def test_tuples_dicts_and_outputs_with_names():
    class Odd(nn.Module):
        def __init__(self, make):
            super().__init__()
            self.make = make

        def forward(self, x):
            return self.make(x)

    x = torch.randn(4, 3)
    makers = [
        lambda x: (None, x, x + 1),
        lambda x: {"other": x + 1, "last_hidden_state": x},
        lambda x: [{"loss": None, "logits": x}],
    ]
    for make in makers:
        np.testing.assert_array_equal(Recorder(nn.Sequential(Odd(make)), "0").record([x])["0"], x)
    second = Recorder(nn.Sequential(Odd(makers[0])), "0", pick=lambda output: output[2]).record(
        [x]
    )["0"]
    np.testing.assert_array_equal(second, x + 1)
    with pytest.raises(
        InputError, match="layer '0' returned no tensor but NoneType: choose a layer within it"
    ):
        Recorder(nn.Sequential(Odd(lambda x: None)), "0").record([x])


def test_every_kind_of_input_gives_the_same(network):
    x = torch.randn(10, 5, 8)
    data = torch.utils.data.TensorDataset(x)
    ways = [x, x.numpy(), {"x": x}, [x[:3], x[3:]], (x[i : i + 1] for i in range(10))]
    ways += [torch.utils.data.DataLoader(data, batch_size=4)]
    found = [Recorder(network, "blocks.2").record(way, batch_size=4)["blocks.2"] for way in ways]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-6)
    called = Recorder(
        network, "blocks.2", forward=lambda model, batch: model(batch["image"])
    ).record([{"image": x}])
    np.testing.assert_allclose(called["blocks.2"], found[0], atol=1e-6)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, while it imports its compiler
def test_a_compiled_network_is_read_as_it_was(network):
    x = torch.randn(4, 5, 8)
    found = Recorder(torch.compile(network), "blocks.*").record(x)
    assert all(
        (found[name] == rows).all()
        for name, rows in Recorder(network, "blocks.*").record(x).items()
    )


def test_your_own_loop(network):
    x = torch.randn(10, 5, 8)
    network.eval()
    with Recorder(network, "blocks.*") as recorder:
        for batch in x.split(4):
            network(batch)["sample"].sum().backward()  # what is recorded holds on to no graph
    expected = Recorder(network, "blocks.*").record(x)
    for name, layer in recorder.activations.items():
        np.testing.assert_allclose(layer, expected[name], atol=1e-6)
    assert hooks(network) == 0
    with (
        pytest.raises(
            InputError,
            match=r"layer 'blocks.0' ran outside a forward pass of the model: call the model",
        ),
        Recorder(network, "blocks.0"),
    ):
        network.blocks[0](x)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_hooks_go_whatever_happens_and_what_is_done_stays(network, error):
    def batches():
        yield torch.randn(4, 5, 8)
        raise error

    recorder = Recorder(network, "blocks.*")
    with pytest.raises(error):
        recorder.record(batches())
    assert hooks(network) == 0
    assert len(recorder.activations["blocks.0"]) == 4
    assert len(recorder.record(torch.randn(2, 5, 8))["blocks.0"]) == 2  # and it begins anew


def test_interrupted_within_the_network(network):
    network.blocks[1].mlp.register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    before = hooks(network)
    with pytest.raises(KeyboardInterrupt):
        Recorder(network, "blocks.*").record(torch.randn(4, 5, 8))
    assert hooks(network) == before


@pytest.mark.parametrize("pool", ["mean", "flat", lambda state: state[:, :2]])
def test_what_the_next_layer_overwrites_is_kept(pool):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)), torch.randn(5, 3)
    found = Recorder(model, "*", pool=pool).record(x)
    width = found["0"].shape[1]
    np.testing.assert_allclose(found["0"], model[0](x).detach()[:, :width], atol=1e-6)
    np.testing.assert_allclose(found["1"], np.maximum(found["0"], 0), atol=1e-6)


def test_repeated_layers_are_refused_or_chosen():
    shared = nn.Linear(3, 3)
    model, x = nn.Sequential(shared, shared), torch.randn(4, 3)
    with pytest.raises(
        InputError, match=r"layer '0' ran 2 times in one forward pass: say with repeated='first'"
    ):
        Recorder(model, "0").record(x)
    once, twice = shared(x).detach().numpy(), model(x).detach().numpy()
    for which, expected in {"first": once, "last": twice, "mean": (once + twice) / 2}.items():
        np.testing.assert_allclose(
            Recorder(model, "0", repeated=which).record(x)["0"], expected, atol=1e-6
        )


def test_beyond_the_limit_rows_are_on_disk_and_go_with_the_arrays(network, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    x = torch.randn(50, 5, 8)
    plain = Recorder(network, "blocks.*").record(x, batch_size=7)
    assert not list(tmp_path.iterdir())
    found = Recorder(network, "blocks.*", max_memory=1000).record(x, batch_size=7)
    for name, layer in found.items():
        assert isinstance(layer, np.memmap)
        np.testing.assert_array_equal(layer, plain[name])
    assert len(list(tmp_path.rglob("*.npy"))) == 3
    view = np.asarray(found.pop("blocks.1"))[3:5]
    del found, layer
    gc.collect()
    np.testing.assert_array_equal(view, plain["blocks.1"][3:5])
    assert list(tmp_path.iterdir())
    del view
    gc.collect()
    assert not list(tmp_path.iterdir())
    Recorder(network, "blocks.*", max_memory=0, folder=tmp_path / "kept").record(x, batch_size=7)
    files = sorted((tmp_path / "kept").glob("*.npy"))
    np.testing.assert_array_equal(np.load(files[2]), plain["blocks.2"])


def test_a_look_in_between_disturbs_nothing(network):
    x = torch.randn(12, 5, 8)
    network.eval()
    for most in (0, 1 << 30):
        with Recorder(network, "blocks.1", max_memory=most) as recorder, torch.no_grad():
            for number, batch in enumerate(x.split(4)):
                network(batch)
                assert recorder.activations["blocks.1"].shape == (4 * (number + 1), 8)
        np.testing.assert_allclose(
            recorder.activations["blocks.1"], Recorder(network, "blocks.1").record(x)["blocks.1"]
        )


def test_memory_does_not_grow_with_samples():
    code = """
import resource, torch
from recombine.probe import Recorder
model = torch.nn.Sequential(torch.nn.Identity())
batch = torch.ones(512, 4096)
record = lambda n: Recorder(model, "0", max_memory=16 << 20).record(batch for _ in range(n))["0"]
record(4)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = record(60)
assert found.shape == (60 * 512, 4096), found.shape
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert float(answer.stdout) < 150, "480 MB were recorded with 16 MB in memory"


def test_it_goes_straight_into_decodability():
    from recombine.probe import Decodability

    rng = np.random.default_rng(0)
    factors = {"a": rng.integers(4, size=400), "b": rng.integers(4, size=400)}
    x = np.stack([np.eye(4)[factors["a"]], np.eye(4)[factors["b"]]], axis=1).reshape(400, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    found = Decodability().fit(Recorder(model).record(x), factors)
    scores = found.scores_[found.scores_["split"] == "held out"].groupby("layer")["score"].mean()
    assert scores["0"] > 0.99
    assert scores["2"] < 0.9  # one number does not tell two factors


def test_progress_is_told_from_two_seconds_on(network, monkeypatch, capsys):
    x = [torch.randn(2, 5, 8)] * 3
    Recorder(network, "blocks.0").record(x)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(console, "PATIENCE", 0.0)
    Recorder(network, "blocks.0").record(x)
    assert "recording, batches: 1 of 3, about" in capsys.readouterr().err
    Recorder(network, "blocks.0", progress=False).record(x)
    assert capsys.readouterr().err == ""


def test_wrong_inputs_are_told_in_one_line(network):
    x = torch.randn(4, 5, 8)
    with pytest.raises(
        InputError, match=r"no layer is called 'blocks.\*.mpl': did you mean blocks"
    ):
        Recorder(network, "blocks.*.mpl")
    with pytest.raises(InputError, match=r"must be a torch.nn.Module, got function"):
        Recorder(lambda x: x)
    with pytest.raises(
        InputError, match="pool must be 'mean', 'last', 'flat' or a function, got 'max'"
    ):
        Recorder(network, pool="max")
    batches = iter([x])
    recorder = Recorder(network, "blocks.0")
    recorder.record(batches)
    with pytest.raises(
        InputError, match="a generator can be read only once, make it anew or give a list"
    ):
        recorder.record(batches)
    with pytest.raises(InputError, match="there was no batch to record: give at least one"):
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
    with pytest.raises(InputError, match="sample 1 of a batch has no token that is not padding"):
        recorder.record({"x": x, "attention_mask": torch.tensor([[1], [0], [1], [1]]).expand(4, 5)})
    with pytest.raises(
        InputError, match=r"layer 'blocks.0' did not run in a forward pass of the model"
    ):
        Recorder(network, "blocks.0", forward=lambda model, batch: None).record([x])
    with pytest.raises(InputError, match=r"layer 'blocks.0' gave 5 rows for a batch of 4 samples"):
        Recorder(network, "blocks.0", pool=lambda state: state.mean(dim=0)).record([x])
    with pytest.raises(
        InputError, match=r"layer 'blocks.0' has 40 features in one batch and 48 in another"
    ):
        Recorder(network, "blocks.0", pool="flat").record([x, torch.randn(4, 6, 8)])
    assert hooks(network) == 0


def test_out_of_memory_says_what_to_lower(network):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    network.blocks[1].register_forward_pre_hook(full)
    told = "a batch of 4 samples does not fit into memory: give smaller batches"
    with pytest.raises(InputError, match=told):
        Recorder(network, "blocks.0").record([torch.randn(4, 5, 8)])
    with pytest.raises(InputError, match=told), Recorder(network, "blocks.0"):
        network(torch.randn(4, 5, 8))


def test_mixed_devices_are_named(network):
    network.blocks[1].to("meta")  # a device of its own, on every machine
    with pytest.raises(
        InputError,
        match=r"the model is on cpu and meta .*: move all to one device, model.to\('cpu'\)",
    ):
        Recorder(network, "blocks.0").record(torch.randn(4, 5, 8))
    with pytest.raises(
        InputError, match="the model has no weights yet, it is on the device meta: load them first"
    ):
        Recorder(network.to("meta"), "blocks.0").record(torch.randn(4, 5, 8))
    with (
        pytest.raises(InputError, match="the model is on cpu and its inputs are on meta"),
        Recorder(Network(), "blocks.0") as recorder,
    ):
        recorder.model(torch.randn(4, 5, 8, device="meta"))


def test_a_full_disk_is_told(network, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        InputError, match=r"activations cannot be kept on disk .*: name another folder"
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


def test_neither_the_package_nor_the_probe_imports_torch():
    code = "import sys, recombine, recombine.probe, recombine.probe.prompts; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["Recorder", "Pretrained", "Diffusion"])
def test_without_torch_it_says_what_to_install(name):
    code = f"""
import sys
sys.modules["torch"] = None  # as if it were not installed
from recombine.basics.errors import InputError
try:
    from recombine.probe import {name}
except InputError as error:
    print(error)
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "torch is not installed: pip install 'recombine[torch]'"


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
def test_without_a_library_of_models_it_says_what_to_install(library, use):
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
    assert answer.stdout.strip() == f"{library} is not installed: pip install 'recombine[torch]'"


def test_notices_of_what_is_not_needed_are_not_told():
    pytest.importorskip("diffusers", reason="pipelines need the extra torch")
    code = "from recombine.probe import tiny; tiny.pipeline()"
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert "torchvision" not in answer.stderr


class Pair(nn.Module):
    """An encoder and a decoder, each called with a mask of its own."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Network(num=1), Network(num=1)

    def forward(self, x, y, attention_mask=None, decoder_attention_mask=None):
        self.encoder(x, attention_mask=attention_mask)
        return self.decoder(y, attention_mask=decoder_attention_mask)


@pytest.mark.parametrize("masked", [True, False])
def test_a_decoder_has_its_own_mask(masked):
    torch.manual_seed(0)
    pair, x, y = Pair().eval(), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    first = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    second = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]) if masked else None
    given = {"x": x, "y": y, "attention_mask": first, "decoder_attention_mask": second}
    found = Recorder(pair, ["encoder.blocks.0", "decoder.blocks.0"]).record([given])
    for name, net, state, mask in (
        ("encoder", pair.encoder, x, first),
        ("decoder", pair.decoder, y, second),
    ):
        real = torch.ones(2, 5) if mask is None else mask
        out = net.blocks[0](state).detach() * real[:, :, None]
        np.testing.assert_allclose(
            found[f"{name}.blocks.0"], out.sum(dim=1) / real.sum(dim=1)[:, None], atol=1e-6
        )


def test_a_part_that_is_called_alone_tells_its_mask():
    pair, x = Pair().eval(), torch.randn(2, 5, 8)
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    run = lambda model, batch: model.encoder(batch["x"], attention_mask=batch["mask"])  # noqa: E731
    found = Recorder(pair, "encoder.blocks.0", forward=run).record([{"x": x, "mask": mask}])[
        "encoder.blocks.0"
    ]
    np.testing.assert_allclose(
        found[0], pair.encoder.blocks[0](x[0, :2]).mean(dim=0).detach(), atol=1e-6
    )


def test_a_wrapper_hands_the_mask_on(network):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Identity())

        def forward(self, **given):
            return self.inner(given["x"])

    x, mask = torch.randn(2, 3, 4), torch.tensor([[1, 0, 0], [1, 1, 1]])
    found = Recorder(Wrapper(), "inner.0").record([{"x": x, "attention_mask": mask}])["inner.0"]
    np.testing.assert_allclose(found[0], x[0, 0], atol=1e-6)


@pytest.mark.parametrize("num_tokens", [5, 4])
def test_layers_that_take_tokens_first_are_turned(num_tokens):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    model = nn.Sequential(
        nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.LSTM(8, 6)
    ).eval()
    x = torch.randn(4, num_tokens, 8)
    turned = lambda model, batch: model(batch.transpose(0, 1))  # noqa: E731
    found = Recorder(model, ["0.layers.0", "0.layers.0.linear2", "1"], forward=turned).record(x)
    with torch.no_grad():
        states = model[0](x.transpose(0, 1))
        np.testing.assert_allclose(found["0.layers.0"], states.mean(dim=0), atol=1e-6)
        np.testing.assert_allclose(found["1"], model[1](states)[0].mean(dim=0), atol=1e-6)
        assert found["0.layers.0.linear2"].shape == (4, 8)
    with pytest.raises(
        InputError,
        match=r"gave 7 rows for a batch of 4 samples: it takes tokens first, so say forward=",
    ):
        Recorder(model, "1").record([torch.randn(4, 7, 8)])


def test_samples_of_several_lengths_without_padding():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False, False, True, True, True]])
    run = lambda model, batch: model(batch, src_key_padding_mask=padding)  # noqa: E731
    with pytest.warns(UserWarning, match="nested tensors is in prototype stage"):
        found = Recorder(model, "layers.1", forward=run).record([x])["layers.1"]
    with torch.no_grad():
        np.testing.assert_allclose(found[1], model(x[1:, :2])[0].mean(dim=0), atol=1e-5)
    with pytest.raises(
        InputError, match=r"layer 'layers.1' has samples of several lengths: pool over them"
    ):
        Recorder(model, "layers.1", pool="flat", forward=run).record([x])


def test_complex_numbers_are_for_the_users_own_pool():
    x = torch.randn(4, 3, dtype=torch.complex64)
    found = Recorder(nn.Sequential(nn.Identity()), "0", pool=lambda state: state.abs()).record([x])[
        "0"
    ]
    np.testing.assert_allclose(found, x.abs())
    with pytest.raises(
        InputError,
        match="layer '0' gave complex numbers: give pool a function that makes them real",
    ):
        Recorder(nn.Sequential(nn.Identity()), "0").record([x])


def test_a_second_recording_leaves_the_files_of_the_first(tmp_path):
    recorder = Recorder(nn.Sequential(nn.Identity()), "0", max_memory=0, folder=tmp_path)
    first = recorder.record(torch.ones(1000, 50))["0"]
    recorder.record(torch.zeros(10, 50))
    assert first.shape == (1000, 50)
    assert (first == 1).all()
    assert np.load(next(iter(tmp_path.iterdir()))).shape == (10, 50)


@pytest.mark.parametrize("sizes", [[4, 4, 4], [4, 4, 2], [2, 4, 4], [4, 2, 4, 1]])
@pytest.mark.parametrize("repeated", ["first", "last"])
def test_rows_are_written_where_they_stay_and_nowhere_else(sizes, repeated):
    """Rows that need no pooling go straight to their place, whatever the batches and however often a layer runs."""
    twice = nn.Linear(3, 3)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), twice, twice)
    x = torch.randn(sum(sizes), 3)
    found = Recorder(model, ["0", "2"], repeated=repeated).record(list(x.split(sizes)))
    with torch.no_grad():
        np.testing.assert_allclose(found["0"], model[0](x), atol=1e-6)
        np.testing.assert_allclose(
            found["2"], model[: 3 if repeated == "first" else 4](x), atol=1e-6
        )


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_more_wrong_inputs_are_told_in_one_line(network):
    x, shared = torch.randn(4, 5, 8), nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    uneven = {"x": x, "attention_mask": torch.ones(3, 5)}
    with Recorder(network, "blocks.0") as empty:
        pass
    for told, wrong in {
        "layer '2' is '0' under another name: ask for that": lambda: Recorder(model, "2"),
        "layers must be names or patterns, 'blocks.*' say, got NoneType": lambda: Recorder(
            model, None
        ),
        "a scripted model cannot be recorded": lambda: Recorder(
            torch.jit.script(nn.Sequential(nn.ReLU()))
        ),
        "nothing was recorded: call the model itself while the recorder is on": lambda: (
            empty.activations
        ),
        "a batch has no sample: leave it out": lambda: Recorder(model, "1").record(
            [torch.zeros(0, 3)]
        ),
        "one has 4 rows and another 3": lambda: Recorder(network, "blocks.0").record(uneven),
    }.items():
        with pytest.raises(InputError) as raised:
            wrong()
        assert told in str(raised.value)
    number = Recorder(network, "blocks.0", forward=lambda model, batch: model(batch["x"])).record(
        {"s": x.sum(), "x": x}
    )
    assert number["blocks.0"].shape == (4, 8)


def test_a_pool_with_weights_of_its_own():
    """What it gives may be part of a graph; that is not kept."""
    head = nn.Parameter(torch.ones(3))
    model = nn.Sequential(nn.Identity())
    found = Recorder(
        model, "0", pool=lambda rows: head.expand(len(rows), 3), progress=False
    ).record(torch.ones(4, 2))
    assert found["0"].tolist() == [[1, 1, 1]] * 4
