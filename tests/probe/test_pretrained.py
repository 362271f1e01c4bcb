"""Models of transformers: samples of a padded batch have the same activations as alone."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="these tests need the extra torch")
transformers = pytest.importorskip("transformers", reason="these tests need the extra torch")
pytest.importorskip("diffusers", reason="the tiny models of these tests are made with it")

from recombine.basics.errors import InputError  # noqa: E402
from recombine.probe import Pretrained, tiny  # noqa: E402

TEXTS = ["a cat", "a dog and an owl", "x", "the fox and the hen in the wood"]
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.clip_tokenizer()


@pytest.fixture(scope="module")
def models(tokenizer):
    torch.manual_seed(0)
    size = {"vocab_size": len(tokenizer)}
    bert = transformers.BertModel(
        transformers.BertConfig(**SMALL, **size, max_position_embeddings=64)
    )
    gpt2 = transformers.GPT2Model(
        transformers.GPT2Config(**size, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    )
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, **size, num_key_value_heads=2)
    )
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**size, d_model=16, d_ff=32, d_kv=8, num_heads=2, num_layers=2)
    )
    return {"bert": bert.eval(), "gpt2": gpt2.eval(), "llama": llama.eval(), "t5": t5.eval()}


@pytest.mark.parametrize("pool", ["mean", "last"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_padding_changes_nothing(models, tokenizer, name, pool):
    recorder = Pretrained(models[name], tokenizer, pool=pool)
    together = recorder.record(TEXTS)
    alone = [recorder.record([text]) for text in TEXTS]
    assert len(together) == 2
    for layer, rows in together.items():
        assert rows.shape == (4, 16)
        rows_alone = np.concatenate([of_text[layer] for of_text in alone])
        np.testing.assert_allclose(rows, rows_alone, atol=1e-5)
    network = models[name].get_encoder() if name == "t5" else models[name]
    network = network.model if name == "llama" else network
    ids = torch.tensor([tokenizer(TEXTS[1]).input_ids])
    states = network(ids, output_hidden_states=True).hidden_states
    first = states[1][0].detach()  # after the first block
    expected = first.mean(dim=0) if pool == "mean" else first[-1]
    np.testing.assert_allclose(next(iter(together.values()))[1], expected, atol=1e-5)


def test_a_tokenizer_that_pads_left_changes_nothing(models, tokenizer):
    pads_left = tiny.clip_tokenizer()
    pads_left.padding_side = "left"
    expected = Pretrained(models["gpt2"], tokenizer, pool="last").record(TEXTS)
    recorded = Pretrained(models["gpt2"], pads_left, pool="last").record(TEXTS)
    assert all((recorded[name] == rows).all() for name, rows in expected.items())


def test_models_are_loaded_from_a_folder(models, tokenizer, tmp_path):
    models["bert"].save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    expected = Pretrained(models["bert"], tokenizer, layers="encoder.layer.1").record(TEXTS)
    loaded = Pretrained(tmp_path, layers="encoder.layer.1").record(TEXTS)
    np.testing.assert_allclose(loaded["encoder.layer.1"], expected["encoder.layer.1"], atol=1e-6)


def test_vision_models_take_images():
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8)
    model = transformers.ViTModel(config).eval()
    images = [
        np.random.default_rng(seed).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        for seed in range(5)
    ]

    def processor(images, return_tensors):
        assert return_tensors == "pt"
        return {
            "pixel_values": torch.tensor(np.stack(images)[:, :32, :32]).permute(0, 3, 1, 2) / 255
        }

    recorded = Pretrained(model, processor).record(images, batch_size=2)
    pixels = processor(images, "pt")["pixel_values"]
    expected = model(pixels, output_hidden_states=True).hidden_states[1].mean(dim=1).detach()
    assert [layer.shape for layer in recorded.values()] == [(5, 16)] * 2
    np.testing.assert_allclose(next(iter(recorded.values())), expected, atol=1e-5)


def test_wrong_inputs_are_refused(models, tokenizer, tmp_path):
    recorder = Pretrained(models["bert"], tokenizer)
    with pytest.raises(
        InputError, match="samples must be a list of texts or images, got str: put it into a list"
    ):
        recorder.record("a cat")
    with pytest.raises(InputError, match="there is no sample to record"):
        recorder.record([])
    with pytest.raises(
        InputError, match="text 1 has 102 tokens and the model takes 64: shorten it"
    ):
        recorder.record(["a cat", "a" * 100])
    with pytest.raises(InputError, match="the model has no tokenizer or image processor"):
        Pretrained(models["bert"])
    with pytest.raises(
        InputError, match=r"cannot load a model from .*: provide a folder with a config.json"
    ):
        Pretrained(tmp_path / "nothing")
    with pytest.raises(
        InputError, match=r"no layer is called 'encoder.layers.0': did you mean encoder.layer.0"
    ):
        Pretrained(models["bert"], tokenizer, layers="encoder.layers.0")
    models["bert"].save_pretrained(tmp_path)
    with pytest.raises(InputError, match="there is neither a tokenizer nor an image processor in"):
        Pretrained(tmp_path)
    assert len(Pretrained(tmp_path, tokenizer).record(TEXTS)) == 2
    with pytest.raises(InputError, match="this model has no list of blocks: name its layers"):
        Pretrained(torch.nn.Sequential(torch.nn.Linear(2, 2)), tokenizer)


def test_a_model_of_texts_and_images_is_recorded_by_part(tokenizer, tmp_path):
    torch.manual_seed(0)
    text = SMALL | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    config = transformers.CLIPConfig(
        text_config=text, vision_config=SMALL | {"image_size": 32, "patch_size": 8}
    )
    model = transformers.CLIPModel(config).eval()
    message = "CLIPModel has separate modules for texts and images: set part='text_model' or part="
    with pytest.raises(InputError, match=message):
        Pretrained(model, tokenizer)
    with pytest.raises(InputError, match="the model has no part 'text': did you mean text_model"):
        Pretrained(model, tokenizer, part="text")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    size = {"height": 32, "width": 32}
    image_processor = transformers.CLIPImageProcessorPil(size=size, crop_size=size)
    image_processor.save_pretrained(tmp_path)
    texts = Pretrained(tmp_path, part="text_model").record(TEXTS)
    ids = torch.tensor([tokenizer(TEXTS[1]).input_ids])
    states = model.text_model(ids, output_hidden_states=True).hidden_states
    expected = states[1][0].mean(dim=0).detach()
    np.testing.assert_allclose(texts["encoder.layers.0"][1], expected, atol=1e-5)
    images = [
        np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        for seed in range(3)
    ]
    recorded = Pretrained(tmp_path, part="vision_model").record(images, batch_size=2)
    pixels = image_processor(images=images, return_tensors="pt")
    states = model.vision_model(**pixels, output_hidden_states=True).hidden_states
    expected = states[1].mean(dim=1).detach()
    np.testing.assert_allclose(recorded["encoder.layers.0"], expected, atol=1e-5)


def test_a_limit_of_minus_one_token_is_no_limit(models, tokenizer, monkeypatch):
    monkeypatch.setattr(models["bert"].config, "max_position_embeddings", -1)  # as in some models
    assert Pretrained(models["bert"], tokenizer).record(TEXTS)["encoder.layer.0"].shape == (4, 16)
    with pytest.raises(
        InputError,
        match="must be a model of transformers, its folder or its name on the hub, got int",
    ):
        Pretrained(3, tokenizer)
