"""Recordings of tiny pipelines have the right step, half and image, for all four kinds."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="these tests need the extra torch")
pytest.importorskip("diffusers", reason="these tests need the extra torch")
pytest.importorskip("transformers", reason="these tests need the extra torch")

from recombine.basics.errors import InputError  # noqa: E402
from recombine.probe import Diffusion, Prompts, tiny  # noqa: E402
from recombine.probe.denoising import PipelineCall  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword"
)
KINDS = ("sd15", "sdxl", "sd3", "flux")
TEXTS = ["a cat and a dog", "an owl"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a tiny network, threads mostly wait for each other
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def pipelines():
    return {kind: tiny.pipeline(kind) for kind in KINDS}


def small(kind):
    """Options for few steps and small images."""
    length = {"max_sequence_length": 24} if kind in ("sd3", "flux") else {}
    return {"num_inference_steps": 4, "height": 32, "width": 32} | length


def outputs_of(pipeline, module, **call):
    """Every output of a module while the pipeline draws, by an independent hook."""
    outputs = []
    handle = module.register_forward_hook(lambda module, args, output: outputs.append(output))
    try:
        generator = [torch.Generator().manual_seed(0) for _ in call["prompt"]]
        pipeline(generator=generator, **call)
    finally:
        handle.remove()
    return outputs


def layer_of(pipeline):
    """A layer: its name, its module, and a function that pools its output."""
    if hasattr(pipeline, "unet"):
        return "mid_block", pipeline.unet.mid_block, lambda output: output.mean(dim=(2, 3))
    return (
        "transformer_blocks.0",
        pipeline.transformer.transformer_blocks[0],
        lambda output: output[1].mean(dim=1),
    )


def num_hooks(pipeline):
    total = 0
    for component in pipeline.components.values():
        if isinstance(component, torch.nn.Module):
            for module in component.modules():
                total += len(module._forward_hooks) + len(module._forward_pre_hooks)
    return total


def test_steps_halves_and_images(pipelines, kind):
    pipeline, options = pipelines[kind], small(kind)
    name, module, pool = layer_of(pipeline)
    halves = ("conditional",) if kind == "flux" else ("conditional", "unconditional")
    diffusion = Diffusion(pipeline, layers=name, fractions=(0, 0.5, 1), halves=halves)
    with torch.no_grad():
        truth = [pool(output) for output in outputs_of(pipeline, module, prompt=TEXTS, **options)]
    before = num_hooks(pipeline)  # transformers registers some itself
    recording = diffusion.record(TEXTS, seeds=(0,), batch_size=2, **options)
    steps = len(truth)
    assert steps == (5 if kind == "sd15" else 4)  # its scheduler takes one more
    for fraction, step in {0: 0, 0.5: 2, 1: steps - 1}.items():
        expected = truth[step][-2:]  # the conditional half is second
        np.testing.assert_allclose(recording.activations[f"{name}@{fraction}"], expected, atol=1e-4)
        if kind != "flux":
            other = recording.activations[f"{name}@{fraction}/unconditional"]
            np.testing.assert_allclose(other, truth[step][:2], atol=1e-4)
    assert num_hooks(pipeline) == before
    assert [image.size for image in recording.images] == [(32, 32)] * 2


def test_an_image_does_not_depend_on_those_before_or_beside_it(pipelines, kind):
    diffusion = Diffusion(pipelines[kind], fractions=(0.5,))
    together = diffusion.record(TEXTS, seeds=(3, 5), batch_size=4, **small(kind))
    assert together.prompts.tolist() == [0, 0, 1, 1]
    assert together.seeds.tolist() == [3, 5, 3, 5]
    in_turn = diffusion.record(TEXTS, seeds=(3, 5), batch_size=1, **small(kind))
    alone = diffusion.record(TEXTS[1:], seeds=(5,), **small(kind))
    for name, rows in together.activations.items():
        np.testing.assert_allclose(in_turn.activations[name], rows, atol=1e-3)
        np.testing.assert_array_equal(in_turn.activations[name][-1:], alone.activations[name])
    assert len(together.activations) > 3


def test_text_encoders_are_recorded_without_padding(pipelines, kind):
    pipeline = pipelines[kind]
    recording = Diffusion(pipeline, fractions=(0.5,)).record(TEXTS, batch_size=2, **small(kind))
    num_encoders = {"sd15": 1, "sdxl": 2, "sd3": 3, "flux": 2}[kind]
    for suffix in ("", "_2", "_3")[:num_encoders]:
        encoder = getattr(pipeline, f"text_encoder{suffix}")
        tokenizer = getattr(pipeline, f"tokenizer{suffix}")
        rows = recording.activations[f"text_encoder{suffix}"]
        for row, text in zip(rows, TEXTS, strict=True):
            length = 77 if type(tokenizer).__name__.startswith("CLIP") else 24
            padded = tokenizer(text, padding="max_length", max_length=length)
            with torch.no_grad():  # as the pipelines call it, without a mask
                state = encoder(torch.tensor([padded.input_ids])).last_hidden_state[0]
            real = len(tokenizer(text).input_ids)
            np.testing.assert_allclose(row, state[:real].mean(dim=0), atol=1e-4)
    without_text = Diffusion(pipeline, text=False, fractions=(0.5,)).record(TEXTS, **small(kind))
    assert "text_encoder" not in without_text.activations


def test_flux_with_a_negative_prompt_runs_twice_per_step(pipelines):
    pipeline = pipelines["flux"]
    name, module, pool = layer_of(pipeline)
    options = small("flux") | {"true_cfg_scale": 2.0}
    diffusion = Diffusion(
        pipeline, layers=name, fractions=(0, 1), halves=("conditional", "unconditional")
    )
    recording = diffusion.record(TEXTS, batch_size=2, negative_prompt="a blur", **options)
    negative = ["a blur"] * 2
    with torch.no_grad():
        truth = [
            pool(output)
            for output in outputs_of(
                pipeline, module, prompt=TEXTS, negative_prompt=negative, **options
            )
        ]
    assert len(truth) == 8
    np.testing.assert_allclose(recording.activations[f"{name}@1"], truth[6], atol=1e-4)
    np.testing.assert_allclose(
        recording.activations[f"{name}@1/unconditional"], truth[7], atol=1e-4
    )


def test_blocks_of_two_streams_record_the_image(pipelines):
    network = pipelines["flux"].transformer
    diffusion = Diffusion(
        pipelines["flux"], layers=["transformer_blocks.1", "single_transformer_blocks.1"]
    )
    shapes = {}
    for name, module in diffusion.modules.items():
        module.register_forward_hook(
            lambda module, args, output, name=name: shapes.update(
                {name: [stream.shape[1] for stream in output]}
            )
        )
    diffusion.pool = lambda state: state.new_full((len(state), 1), state.shape[1])
    activations = diffusion.record(TEXTS[:1], **small("flux")).activations
    for module in network.modules():
        module._forward_hooks.clear()
    for name, (text, image) in shapes.items():
        assert (text, image) == (24, 64)  # tokens of the prompt; patches of an image of 8 x 8
        assert activations[f"{name}@0.5"] == image


def test_steps_are_joined_by_mean_or_concatenation(pipelines):
    options = small("sdxl")

    def make(join):
        return Diffusion(
            pipelines["sdxl"], layers="mid_block", fractions=(0, 0.5, 1), join=join, text=False
        )

    each = make("each").record(TEXTS, **options).activations
    rows = list(each.values())
    mean = make("mean").record(TEXTS, **options).activations["mid_block"]
    np.testing.assert_allclose(mean, np.mean(rows, axis=0), atol=1e-5)
    joined = make("concatenate").record(TEXTS, **options).activations["mid_block"]
    np.testing.assert_allclose(joined, np.concatenate(rows, axis=1), atol=1e-5)
    every = Diffusion(pipelines["sdxl"], layers="mid_block", fractions="all", text=False).record(
        TEXTS, **options
    )
    assert list(every.activations) == [f"mid_block@{step}/4" for step in (1, 2, 3, 4)]


def test_the_papers_mode(pipelines):
    """Steps are off by one, later images start with the last step, and halves are averaged."""
    pipeline, options = pipelines["sdxl"], small("sdxl")
    paper = Diffusion(pipeline, layers="mid_block", paper=True, join="concatenate")
    concatenated = paper.record(TEXTS, **options).activations
    states = []  # images x steps x features, with both halves averaged
    for text in TEXTS:
        outputs = outputs_of(pipeline, pipeline.unet.mid_block, prompt=[text], **options)
        states.append([output.mean(dim=(0, 2, 3)).detach().numpy() for output in outputs])
    states = np.array(states)
    width = states.shape[-1]
    for image, steps in enumerate([(1, 2, 3, 3), (1, 2, 3, 0)]):
        for slot, step in enumerate(steps):
            recorded = concatenated["mid_block"][image, slot * width : (slot + 1) * width]
            np.testing.assert_allclose(recorded, states[image, step], atol=1e-4)
    paper = Diffusion(pipeline, layers="mid_block", paper=True)
    mean = paper.record(TEXTS, **options).activations["mid_block"]
    np.testing.assert_allclose(mean[0], states[0, 1:].mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(mean[1], states[1].mean(axis=0), atol=1e-4)
    corrected = Diffusion(pipeline, layers="mid_block", fractions="all", join="mean")
    ours = corrected.record(TEXTS, **options).activations
    assert np.abs(ours["mid_block"] - mean).max() > 1e-3
    # The paper's text features include padding.
    assert np.abs(ours["text_encoder"] - concatenated["text_encoder"]).max() > 1e-3


def test_layers_of_the_paper(pipelines):
    names = set(Diffusion(pipelines["sd15"], paper=True).modules)
    assert "mid_block" in names
    for ending in ("resnets.0", "attn1", "attn2", "ff"):
        assert any(name.endswith(ending) for name in names), ending
    assert set(Diffusion(pipelines["sd3"], paper=True).modules) == {
        "transformer_blocks.0",
        "transformer_blocks.1",
    }


def test_prompts_add_factors_and_a_judge_adds_verdicts(pipelines, tmp_path):
    prompts = Prompts({"animal": ["cat", "dog", "owl", "fox"]}, "{a animal}", num_hot=2)
    diffusion = Diffusion(pipelines["sd15"], layers="mid_block", fractions=(0.5,))
    judging = lambda image: ["cat", "dog"] if image.size == (32, 32) else []  # noqa: E731
    recording = diffusion.record(
        prompts, seeds=range(2), batch_size=5, judging=judging, keep=tmp_path, **small("sd15")
    )
    assert len(recording.activations["mid_block@0.5"]) == 12
    assert len(recording.factors) == len(recording.held_out) == 12
    assert (recording.factors.iloc[3] == prompts.factors.iloc[1]).all()
    assert recording.verdicts["failed"].tolist() == [False, False] + [True] * 10
    assert sorted(tmp_path.iterdir()) == recording.images
    assert diffusion.record(TEXTS, keep=False, **small("sd15")).images == []


def test_many_images_go_to_disk(pipelines):
    diffusion = Diffusion(pipelines["sd15"], layers="mid_block", fractions=(0.5,), max_memory=0)
    rows = diffusion.record(TEXTS, seeds=(0, 1), **small("sd15")).activations["mid_block@0.5"]
    assert isinstance(rows, np.memmap)
    assert rows.shape == (4, 16)


def test_pipelines_are_loaded_from_a_folder(pipelines, tmp_path):
    pipelines["sd15"].save_pretrained(tmp_path)
    expected = Diffusion(pipelines["sd15"], layers="mid_block").record(TEXTS, **small("sd15"))
    loaded = Diffusion(tmp_path, layers="mid_block").record(TEXTS, **small("sd15"))
    # A loaded pipeline runs on a GPU if there is one, with convolutions of lower precision.
    atol = 1e-2 if torch.cuda.is_available() else 1e-5
    for name, rows in expected.activations.items():
        np.testing.assert_allclose(loaded.activations[name], rows, atol=atol)


def test_hooks_are_removed_and_the_progress_bar_is_restored(pipelines):
    pipeline = pipelines["sd15"]
    progress_bar, before = dict(pipeline._progress_bar_config), num_hooks(pipeline)

    def interrupt(state):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Diffusion(pipeline, pool=interrupt).record(TEXTS, **small("sd15"))
    assert num_hooks(pipeline) == before
    assert pipeline._progress_bar_config == progress_bar


def test_wrong_options_are_refused(pipelines, tmp_path):
    sd15 = pipelines["sd15"]
    before = num_hooks(sd15)
    for message, make in {
        r"no layer is called 'mid_blok': did you mean mid_block": lambda: Diffusion(
            sd15, layers="mid_blok"
        ),
        "this pipeline has no 'prior'": lambda: Diffusion(sd15, "prior"),
        "object has neither a unet nor a transformer": lambda: Diffusion(object()),
        "fractions must be numbers from 0 to 1, or 'all', got \\(30,\\)": lambda: Diffusion(
            sd15, fractions=(30,)
        ),
        "fractions must be numbers from 0 to 1, or 'all', got 0.5": lambda: Diffusion(
            sd15, fractions=0.5
        ),
        "fractions must be numbers from 0 to 1, or 'all', got 'al'": lambda: Diffusion(
            sd15, fractions="al"
        ),
        "join must be 'each', 'mean' or 'concatenate'": lambda: Diffusion(sd15, join="sum"),
        "halves must be 'conditional', 'unconditional' or both, got": lambda: Diffusion(
            sd15, halves=("both",)
        ),
        r"cannot load a pipeline from .*: provide a folder with a model_index.json": lambda: (
            Diffusion(tmp_path)
        ),
        "there is no tiny pipeline 'sd2': choose one of sd15, sdxl, sd3, flux": lambda: (
            tiny.pipeline("sd2")
        ),
    }.items():
        with pytest.raises(InputError, match=message):
            make()
    assert num_hooks(sd15) == before


def test_wrong_recordings_are_refused(pipelines, tmp_path):
    sd15, options = pipelines["sd15"], small("sd15")
    before = num_hooks(sd15)
    unconditional = Diffusion(sd15, layers="mid_block", halves=("unconditional",))
    not_denoising = Diffusion(sd15, "text_encoder", "encoder.layers.0", (0,))
    latent = {"keep": tmp_path, "output_type": "latent"} | options
    for message, record in {
        "there is nothing to draw: provide at least one prompt": lambda: Diffusion(sd15).record([]),
        "there is nothing to draw: provide at least one seed": lambda: Diffusion(sd15).record(
            TEXTS, seeds=[]
        ),
        "record sets num_images_per_prompt itself": lambda: Diffusion(sd15).record(
            TEXTS, num_images_per_prompt=2
        ),
        "a judge needs the concepts of each prompt": lambda: Diffusion(sd15).record(
            TEXTS, judging=lambda image: []
        ),
        "there is no unconditional half without guidance": lambda: unconditional.record(
            TEXTS, guidance_scale=1.0, **options
        ),
        "seeds must be a list of whole numbers": lambda: Diffusion(sd15).record(TEXTS, seeds=3),
        "has no option 'num_steps': did you mean": lambda: Diffusion(sd15).record(
            TEXTS, num_steps=3
        ),
        "only images can be saved in a folder": lambda: Diffusion(sd15).record(TEXTS, **latent),
        "it is not the denoising network": lambda: not_denoising.record(TEXTS, **options),
    }.items():
        with pytest.raises(InputError, match=message):
            record()
    assert num_hooks(sd15) == before


def test_a_compiled_network_is_refused(pipelines, monkeypatch):
    sd15 = pipelines["sd15"]
    compiled = torch.nn.Module()
    compiled._orig_mod = sd15.unet  # as torch.compile has it
    monkeypatch.setattr(sd15, "unet", compiled)
    with pytest.raises(
        InputError, match=r"the unet is compiled, .*: undo that with pipeline.unet ="
    ):
        Diffusion(sd15)


def test_without_guidance_there_is_one_half(pipelines):
    pipeline, options = pipelines["sd15"], small("sd15") | {"guidance_scale": 1.0}
    truth = outputs_of(pipeline, pipeline.unet.mid_block, prompt=TEXTS, **options)
    recording = Diffusion(pipeline, layers="mid_block", fractions=(1,)).record(
        TEXTS, batch_size=2, **options
    )
    np.testing.assert_allclose(
        recording.activations["mid_block@1"], truth[-1].mean(dim=(2, 3)), atol=1e-5
    )


def test_schedulers_that_call_twice_per_step_are_counted_by_calls():
    diffusers = pytest.importorskip("diffusers")
    pipeline, options = tiny.pipeline("sd15"), small("sd15")
    pipeline.scheduler = diffusers.HeunDiscreteScheduler(beta_schedule="scaled_linear")
    truth = outputs_of(pipeline, pipeline.unet.mid_block, prompt=TEXTS, **options)
    assert len(truth) == 7  # of four steps, all but the last are of second order
    recording = Diffusion(pipeline, layers="mid_block", fractions=(0, 0.5, 1)).record(
        TEXTS, batch_size=2, **options
    )
    for fraction, call in {0: 0, 0.5: 3, 1: 6}.items():
        expected = truth[call][2:].mean(dim=(2, 3))
        np.testing.assert_allclose(
            recording.activations[f"mid_block@{fraction}"], expected, atol=1e-5
        )


def test_fractions_refer_to_the_steps_of_a_call_that_ends_early(pipelines):
    pipeline = pipelines["sdxl"]
    options = small("sdxl") | {"denoising_end": 0.5, "output_type": "latent"}
    truth = outputs_of(pipeline, pipeline.unet.mid_block, prompt=TEXTS, **options)
    assert len(truth) == 2
    recording = Diffusion(pipeline, layers="mid_block", fractions=(1,)).record(
        TEXTS, iter([0]), batch_size=2, **options
    )
    np.testing.assert_allclose(
        recording.activations["mid_block@1"], truth[1][2:].mean(dim=(2, 3)), atol=1e-5
    )


def test_a_pipeline_in_training_mode_is_recorded_without_dropout_and_keeps_its_mode():
    pipeline, options = tiny.pipeline("sd15"), small("sd15")
    for module in pipeline.unet.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    diffusion = Diffusion(pipeline, layers="mid_block", fractions=(1,))
    expected = diffusion.record(TEXTS, **options).activations["mid_block@1"]
    pipeline.unet.train()
    pipeline.unet.mid_block.eval()
    recorded = diffusion.record(TEXTS, **options).activations["mid_block@1"]
    np.testing.assert_array_equal(recorded, expected)
    assert pipeline.unet.training
    assert not pipeline.unet.mid_block.training


def test_a_single_text_option_applies_to_all_images(pipelines):
    diffusion = Diffusion(pipelines["sd3"], layers="transformer_blocks.1", fractions=(0,))
    options = small("sd3")
    together = diffusion.record(TEXTS, batch_size=2, prompt_2="a blur", **options).activations
    alone = diffusion.record(TEXTS[1:], prompt_2="a blur", **options).activations
    np.testing.assert_allclose(
        together["transformer_blocks.1@0"][1:], alone["transformer_blocks.1@0"], atol=1e-3
    )


def test_extra_calls_are_refused(pipelines):
    options = small("sd3") | {
        "num_inference_steps": 6,
        "skip_guidance_layers": [0],
        "skip_layer_guidance_stop": 0.9,
    }
    diffusion = Diffusion(pipelines["sd3"], layers="transformer_blocks.1", fractions=(0,))
    message = r"the transformer was called \d+ times in 6 steps of the scheduler: turn off"
    with pytest.raises(InputError, match=message):
        diffusion.record(TEXTS[:1], **options)


def test_out_of_memory_is_explained(pipelines):
    def run_out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    handle = pipelines["sd15"].unet.mid_block.register_forward_pre_hook(run_out_of_memory)
    with pytest.raises(
        InputError, match="a batch of 2 samples does not fit into memory: use smaller batches"
    ):
        Diffusion(pipelines["sd15"]).record(TEXTS, batch_size=2, **small("sd15"))
    handle.remove()


def test_fractions_become_steps_of_the_scheduler():
    call = PipelineCall(None, 1, (0, 0.1, 0.5, 0.9, 1))
    call.num_steps = 30
    assert call.recorded_steps == [0, 3, 14, 26, 29]
