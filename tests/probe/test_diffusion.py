"""What is recorded while tiny pipelines draw: the right step, the right half and the right image, in all four kinds."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="these tests need the extra torch")
pytest.importorskip("diffusers", reason="these tests need the extra torch")
pytest.importorskip("transformers", reason="these tests need the extra torch")

from recombine.basics.errors import InputError  # noqa: E402
from recombine.probe import Diffusion, Prompts, tiny  # noqa: E402
from recombine.probe.denoising import Pass  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword"
)
KINDS = ("sd15", "sdxl", "sd3", "flux")
TEXTS = ["a cat and a dog", "an owl"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # threads of a tiny network wait for each other longer than they work
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def pipelines():
    return {kind: tiny.pipeline(kind) for kind in KINDS}


def small(kind):
    """A short way to a small image."""
    length = {"max_sequence_length": 24} if kind in ("sd3", "flux") else {}
    return {"num_inference_steps": 4, "height": 32, "width": 32} | length


def calls(pipeline, module, **call):
    """Every output of a module while the pipeline draws, by a hook of the test's own."""
    found = []
    handle = module.register_forward_hook(lambda module, args, output: found.append(output))
    try:
        generator = [torch.Generator().manual_seed(0) for _ in call["prompt"]]
        pipeline(generator=generator, **call)
    finally:
        handle.remove()
    return found


def block(pipeline):
    """A layer, its name, and how its output becomes rows."""
    if hasattr(pipeline, "unet"):
        return "mid_block", pipeline.unet.mid_block, lambda output: output.mean(dim=(2, 3))
    return (
        "transformer_blocks.0",
        pipeline.transformer.transformer_blocks[0],
        lambda output: output[1].mean(dim=1),
    )


def hooks(pipeline):
    modules = [
        m
        for part in pipeline.components.values()
        if isinstance(part, torch.nn.Module)
        for m in part.modules()
    ]
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)


def test_steps_halves_and_images(pipelines, kind):
    pipeline, options = pipelines[kind], small(kind)
    name, module, rows = block(pipeline)
    halves = ("conditional",) if kind == "flux" else ("conditional", "unconditional")
    diffusion = Diffusion(pipeline, layers=name, fractions=(0, 0.5, 1), halves=halves)
    with torch.no_grad():
        truth = [rows(output) for output in calls(pipeline, module, prompt=TEXTS, **options)]
    before = hooks(pipeline)  # transformers has some of its own
    found = diffusion.record(TEXTS, seeds=(0,), batch_size=2, **options)
    steps = len(truth)
    assert steps == (5 if kind == "sd15" else 4)  # that scheduler takes one more
    for fraction, step in {0: 0, 0.5: 2, 1: steps - 1}.items():
        expected = truth[step][-2:]  # the conditional half comes last
        np.testing.assert_allclose(found.activations[f"{name}@{fraction}"], expected, atol=1e-4)
        if kind != "flux":
            other = found.activations[f"{name}@{fraction}/unconditional"]
            np.testing.assert_allclose(other, truth[step][:2], atol=1e-4)
    assert hooks(pipeline) == before
    assert [image.size for image in found.images] == [(32, 32)] * 2


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


def test_text_encoders_read_the_prompt_and_no_padding(pipelines, kind):
    pipeline = pipelines[kind]
    found = (
        Diffusion(pipeline, fractions=(0.5,)).record(TEXTS, batch_size=2, **small(kind)).activations
    )
    num = {"sd15": 1, "sdxl": 2, "sd3": 3, "flux": 2}[kind]
    for end in ("", "_2", "_3")[:num]:
        encoder, tokenizer = (
            getattr(pipeline, f"text_encoder{end}"),
            getattr(pipeline, f"tokenizer{end}"),
        )
        for row, text in zip(found[f"text_encoder{end}"], TEXTS, strict=True):
            length = 77 if type(tokenizer).__name__.startswith("CLIP") else 24
            padded = tokenizer(text, padding="max_length", max_length=length)
            with torch.no_grad():  # as the pipelines call it, without a mask
                state = encoder(torch.tensor([padded.input_ids])).last_hidden_state[0]
            real = len(tokenizer(text).input_ids)
            np.testing.assert_allclose(row, state[:real].mean(dim=0), atol=1e-4)
    assert (
        "text_encoder"
        not in Diffusion(pipeline, text=False, fractions=(0.5,)).record(TEXTS, **small(kind))[0]
    )


def test_flux_with_a_negative_prompt_runs_twice_a_step(pipelines):
    pipeline = pipelines["flux"]
    name, module, rows = block(pipeline)
    options = small("flux") | {"true_cfg_scale": 2.0}
    diffusion = Diffusion(
        pipeline, layers=name, fractions=(0, 1), halves=("conditional", "unconditional")
    )
    found = diffusion.record(TEXTS, batch_size=2, negative_prompt="a blur", **options)
    negative = ["a blur"] * 2
    with torch.no_grad():
        truth = [
            rows(out)
            for out in calls(pipeline, module, prompt=TEXTS, negative_prompt=negative, **options)
        ]
    assert len(truth) == 8
    np.testing.assert_allclose(found.activations[f"{name}@1"], truth[6], atol=1e-4)
    np.testing.assert_allclose(found.activations[f"{name}@1/unconditional"], truth[7], atol=1e-4)


def test_blocks_of_two_streams_give_the_image(pipelines):
    network = pipelines["flux"].transformer
    diffusion = Diffusion(
        pipelines["flux"], layers=["transformer_blocks.1", "single_transformer_blocks.1"]
    )
    shapes = {}
    for name, module in diffusion.modules.items():
        module.register_forward_hook(
            lambda m, a, output, name=name: shapes.update({name: [o.shape[1] for o in output]})
        )
    diffusion.pool = lambda state: state.new_full((len(state), 1), state.shape[1])
    found = diffusion.record(TEXTS[:1], **small("flux")).activations
    for module in network.modules():
        module._forward_hooks.clear()
    for name, (text, image) in shapes.items():
        assert (text, image) == (24, 64)  # tokens of the prompt; patches of an image of 8 x 8
        assert found[f"{name}@0.5"] == image


def test_steps_joined(pipelines):
    options = small("sdxl")

    def make(join):
        options = {"layers": "mid_block", "fractions": (0, 0.5, 1), "text": False}
        return Diffusion(pipelines["sdxl"], join=join, **options)

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


def test_as_the_paper_did_it(pipelines):
    """The step is late by one, and for all images but the first begins with the last one; halves are averaged."""
    pipeline, options = pipelines["sdxl"], small("sdxl")
    paper = Diffusion(pipeline, layers="mid_block", paper=True, join="concatenate")
    found = paper.record(TEXTS, **options).activations
    each = [
        [
            output.mean(dim=(2, 3))
            for output in calls(pipeline, pipeline.unet.mid_block, prompt=[text], **options)
        ]
        for text in TEXTS
    ]
    states = np.array(
        [[row.mean(dim=0).detach().numpy() for row in rows] for rows in each]
    )  # halves together
    width = states.shape[-1]
    for image, order in enumerate([(1, 2, 3, 3), (1, 2, 3, 0)]):
        for slot, step in enumerate(order):
            got = found["mid_block"][image, slot * width : (slot + 1) * width]
            np.testing.assert_allclose(got, states[image, step], atol=1e-4)
    mean = (
        Diffusion(pipeline, layers="mid_block", paper=True)
        .record(TEXTS, **options)
        .activations["mid_block"]
    )
    np.testing.assert_allclose(mean[0], states[0, 1:].mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(mean[1], states[1].mean(axis=0), atol=1e-4)
    ours = (
        Diffusion(pipeline, layers="mid_block", fractions="all", join="mean")
        .record(TEXTS, **options)
        .activations
    )
    assert np.abs(ours["mid_block"] - mean).max() > 1e-3
    assert np.abs(ours["text_encoder"] - found["text_encoder"]).max() > 1e-3  # padding is in it


def test_layers_of_the_paper(pipelines):
    names = set(Diffusion(pipelines["sd15"], paper=True).modules)
    assert "mid_block" in names
    for part in ("resnets.0", "attn1", "attn2", "ff"):
        assert any(name.endswith(part) for name in names), part
    assert set(Diffusion(pipelines["sd3"], paper=True).modules) == {
        "transformer_blocks.0",
        "transformer_blocks.1",
    }


def test_prompts_bring_their_factors_and_a_judge_its_verdict(pipelines, tmp_path):
    prompts = Prompts({"animal": ["cat", "dog", "owl", "fox"]}, "{a animal}", num_hot=2)
    diffusion = Diffusion(pipelines["sd15"], layers="mid_block", fractions=(0.5,))
    judging = lambda image: ["cat", "dog"] if image.size == (32, 32) else []  # noqa: E731
    found = diffusion.record(
        prompts, seeds=range(2), batch_size=5, judging=judging, keep=tmp_path, **small("sd15")
    )
    assert (
        len(found.activations["mid_block@0.5"]) == len(found.factors) == len(found.held_out) == 12
    )
    assert (found.factors.iloc[3] == prompts.factors.iloc[1]).all()
    assert found.verdicts["failed"].tolist() == [False, False] + [True] * 10
    assert sorted(tmp_path.iterdir()) == found.images
    assert diffusion.record(TEXTS, keep=False, **small("sd15")).images == []


def test_many_images_go_to_disk(pipelines):
    diffusion = Diffusion(pipelines["sd15"], layers="mid_block", fractions=(0.5,), max_memory=0)
    rows = diffusion.record(TEXTS, seeds=(0, 1), **small("sd15")).activations["mid_block@0.5"]
    assert isinstance(rows, np.memmap)
    assert rows.shape == (4, 16)


def test_by_folder(pipelines, tmp_path):
    pipelines["sd15"].save_pretrained(tmp_path)
    given = (
        Diffusion(pipelines["sd15"], layers="mid_block").record(TEXTS, **small("sd15")).activations
    )
    loaded = Diffusion(tmp_path, layers="mid_block").record(TEXTS, **small("sd15")).activations
    for name, rows in given.items():
        # From a folder it goes to a GPU where there is one, whose convolutions are of lower precision.
        np.testing.assert_allclose(
            loaded[name], rows, atol=1e-2 if torch.cuda.is_available() else 1e-5
        )


def test_hooks_go_and_progress_bars_come_back(pipelines):
    pipeline = pipelines["sd15"]
    shown, before = dict(pipeline._progress_bar_config), hooks(pipeline)
    with pytest.raises(KeyboardInterrupt):
        Diffusion(pipeline, pool=lambda state: (_ for _ in ()).throw(KeyboardInterrupt)).record(
            TEXTS, **small("sd15")
        )
    assert hooks(pipeline) == before
    assert pipeline._progress_bar_config == shown


def test_wrong_inputs_are_told_in_one_line(pipelines, tmp_path):
    sd15, options = pipelines["sd15"], small("sd15")
    before = hooks(sd15)
    for told, wrong in {
        r"no layer is called 'mid_blok': did you mean mid_block": lambda: Diffusion(
            sd15, layers="mid_blok"
        ),
        "this pipeline has no 'prior'": lambda: Diffusion(sd15, "prior"),
        "object has neither a unet nor a transformer": lambda: Diffusion(object()),
        "fractions must be numbers from 0 to 1, or 'all'": lambda: Diffusion(sd15, fractions=(30,)),
        "join must be 'each', 'mean' or 'concatenate'": lambda: Diffusion(sd15, join="sum"),
        r"halves must be of \('conditional', 'unconditional'\)": lambda: Diffusion(
            sd15, halves=("both",)
        ),
        r"no pipeline can be loaded from .*: give a folder with a model_index.json": lambda: (
            Diffusion(tmp_path)
        ),
        "there is nothing to draw": lambda: Diffusion(sd15).record([]),
        "num_images_per_prompt is set by record itself": lambda: Diffusion(sd15).record(
            TEXTS, num_images_per_prompt=2
        ),
        "a judge needs to know what was asked": lambda: Diffusion(sd15).record(
            TEXTS, judging=lambda image: []
        ),
        "there is no unconditional half without guidance": lambda: Diffusion(
            sd15, layers="mid_block", halves=("unconditional",)
        ).record(TEXTS, guidance_scale=1.0, **options),
    }.items():
        with pytest.raises(InputError, match=told):
            wrong()
    assert hooks(sd15) == before


def test_more_wrong_inputs_are_told_in_one_line(pipelines, tmp_path, monkeypatch):
    sd15, options = pipelines["sd15"], small("sd15")
    other = Diffusion(sd15, "text_encoder", "encoder.layers.0", (0,))
    latent = {"keep": tmp_path, "output_type": "latent"} | options
    for told, wrong in {
        "seeds must be a list of whole numbers": lambda: Diffusion(sd15).record(TEXTS, seeds=3),
        "fractions must be numbers from 0 to 1, or 'all', got 0.5": lambda: Diffusion(
            sd15, fractions=0.5
        ),
        "fractions must be numbers from 0 to 1, or 'all', got 'al'": lambda: Diffusion(
            sd15, fractions="al"
        ),
        "has no option 'num_steps': did you mean": lambda: Diffusion(sd15).record(
            TEXTS, num_steps=3
        ),
        "only images can be kept in a folder": lambda: Diffusion(sd15).record(TEXTS, **latent),
        "it is not what denoises": lambda: other.record(TEXTS, **options),
        "there is no tiny pipeline 'sd2': there are sd15, sdxl, sd3, flux": lambda: tiny.pipeline(
            "sd2"
        ),
    }.items():
        with pytest.raises(InputError) as raised:
            wrong()
        assert told in str(raised.value)
    compiled = torch.nn.Module()
    compiled._orig_mod = sd15.unet  # as torch.compile has it
    monkeypatch.setattr(sd15, "unet", compiled)
    with pytest.raises(
        InputError,
        match=r"the unet is compiled, .*: record the pipeline as it was, pipeline.unet =",
    ):
        Diffusion(sd15)


def test_without_guidance_there_is_one_half(pipelines):
    pipeline, options = pipelines["sd15"], small("sd15") | {"guidance_scale": 1.0}
    truth = calls(pipeline, pipeline.unet.mid_block, prompt=TEXTS, **options)
    found = Diffusion(pipeline, layers="mid_block", fractions=(1,)).record(
        TEXTS, batch_size=2, **options
    )
    np.testing.assert_allclose(
        found.activations["mid_block@1"], truth[-1].mean(dim=(2, 3)), atol=1e-5
    )


def test_schedulers_that_call_twice_a_step_are_counted_call_by_call():
    diffusers = pytest.importorskip("diffusers")
    pipeline, options = tiny.pipeline("sd15"), small("sd15")
    pipeline.scheduler = diffusers.HeunDiscreteScheduler(beta_schedule="scaled_linear")
    truth = calls(pipeline, pipeline.unet.mid_block, prompt=TEXTS, **options)
    assert len(truth) == 7  # of four steps, all but the last are of second order
    found = Diffusion(pipeline, layers="mid_block", fractions=(0, 0.5, 1)).record(
        TEXTS, batch_size=2, **options
    )
    for fraction, call in {0: 0, 0.5: 3, 1: 6}.items():
        expected = truth[call][2:].mean(dim=(2, 3))
        np.testing.assert_allclose(found.activations[f"mid_block@{fraction}"], expected, atol=1e-5)


def test_a_way_that_is_cut_short_has_as_many_steps_as_are_taken(pipelines):
    pipeline, options = (
        pipelines["sdxl"],
        small("sdxl") | {"denoising_end": 0.5, "output_type": "latent"},
    )
    truth = calls(pipeline, pipeline.unet.mid_block, prompt=TEXTS, **options)
    assert len(truth) == 2
    found = Diffusion(pipeline, layers="mid_block", fractions=(1,)).record(
        TEXTS, iter([0]), batch_size=2, **options
    )
    np.testing.assert_allclose(
        found.activations["mid_block@1"], truth[1][2:].mean(dim=(2, 3)), atol=1e-5
    )


def test_a_pipeline_in_training_is_read_without_dropout_and_trains_on():
    pipeline, options = tiny.pipeline("sd15"), small("sd15")
    for module in pipeline.unet.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    diffusion = Diffusion(pipeline, layers="mid_block", fractions=(1,))
    still = diffusion.record(TEXTS, **options).activations["mid_block@1"]
    pipeline.unet.train()
    pipeline.unet.mid_block.eval()
    np.testing.assert_array_equal(
        diffusion.record(TEXTS, **options).activations["mid_block@1"], still
    )
    assert pipeline.unet.training
    assert not pipeline.unet.mid_block.training


def test_a_text_for_all_images_is_given_to_each(pipelines):
    diffusion, options = (
        Diffusion(pipelines["sd3"], layers="transformer_blocks.1", fractions=(0,)),
        small("sd3"),
    )
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
    told = r"the transformer was called \d+ times in 6 steps of the scheduler: turn off"
    with pytest.raises(InputError, match=told):
        Diffusion(pipelines["sd3"], layers="transformer_blocks.1", fractions=(0,)).record(
            TEXTS[:1], **options
        )


def test_out_of_memory_says_what_to_lower(pipelines):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    handle = pipelines["sd15"].unet.mid_block.register_forward_pre_hook(full)
    with pytest.raises(
        InputError, match="a batch of 2 samples does not fit into memory: give smaller batches"
    ):
        Diffusion(pipelines["sd15"]).record(TEXTS, batch_size=2, **small("sd15"))
    handle.remove()


def test_fractions_are_of_the_steps_that_the_scheduler_takes():
    done = Pass(None, 1, (0, 0.1, 0.5, 0.9, 1), twice=False)
    done.num_steps = 30
    assert done.wanted == [0, 3, 14, 26, 29]
