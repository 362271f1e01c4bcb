"""Judges by name: functions, and a CLIP model with thresholds from train prompts only."""

import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.probe import Prompts, judges


@pytest.fixture
def prompts():
    return Prompts({"animal": ["cat", "dog", "owl", "fox"]}, "a photo of {a animal}", num_hot=2)


def test_functions_are_loaded_by_file_and_by_module(tmp_path, monkeypatch):
    (tmp_path / "my_judge.py").write_text("def look(image):\n    return ['cat']\n")
    monkeypatch.chdir(tmp_path)
    assert judges.load_function("my_judge.py:look")(None) == ["cat"]
    assert judges.load_function("my_judge:look")(None) == ["cat"]
    for name, message in (
        ("my_judge.py:lok", "my_judge.py has no judge 'lok': did you mean look?"),
        ("no_such_module:look", "cannot be imported"),
        ("look", "a judge must be FILE.py:FUNCTION"),
    ):
        with pytest.raises(InputError, match=message):
            judges.load_function(name)


def test_the_code_hash_changes_with_the_function(tmp_path):
    file = tmp_path / "my_judge.py"
    file.write_text("def look(image):\n    return ['cat']\n")
    before = judges.code_hash(f"{file}:look")
    assert before == judges.code_hash(f"{file}:look") != ""
    file.write_text("def look(image):\n    return ['dog']\n")
    assert judges.code_hash(f"{file}:look") != before
    assert judges.code_hash("clip:folder") == judges.code_hash("") == ""


def test_the_threshold_separates_present_from_absent_concepts():
    scores = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    assert judges.threshold(scores, np.array([False, False, True, True, True])) == 1.5
    assert judges.threshold(scores, np.array([False, True, False, True, True])) == 2.5
    assert judges.threshold(scores, np.ones(5, bool)) == -np.inf
    assert judges.threshold(scores, np.zeros(5, bool)) == np.inf


def test_clip_thresholds_come_from_train_prompts_only(prompts, monkeypatch):
    """Scores of held-out images are far higher: if they were used, the threshold would differ."""
    numbers = np.arange(len(prompts)).repeat(2)
    true = prompts.factors.iloc[numbers].to_numpy()
    held = prompts.held_out[numbers]
    monkeypatch.setattr(
        judges, "clip_scores", lambda name, files, words: true + 10.0 * held[:, None]
    )
    seen = judges.verdicts("clip:folder", [], prompts, numbers)
    assert not seen["failed"][~held].any()
    assert seen["failed"][held].all()
    assert (seen[["cat", "dog", "owl", "fox"]][held] == 1).all(axis=None)


def test_clip_sees_the_best_concept_of_a_list_with_one_active_concept(monkeypatch):
    prompts = Prompts(
        {"colour": ["red", "blue"], "animal": ["cat", "dog", "owl"]}, "{a colour} {animal}"
    )
    numbers = np.arange(len(prompts))
    words = ["red", "blue", "cat", "dog", "owl"]
    scores = np.array([[word in text for word in words] for text in prompts.texts], float)
    scores[0] = [0, 1, 0, 0, 1]
    monkeypatch.setattr(judges, "clip_scores", lambda name, files, words: scores)
    seen = judges.verdicts("clip:folder", [], prompts, numbers)
    assert seen.loc[0, ["colour", "animal"]].tolist() == ["blue", "owl"]
    first_failed = prompts.texts[0] != "a blue owl"
    assert seen["failed"].tolist() == [first_failed] + [False] * (len(prompts) - 1)


def test_clip_scores_equal_those_of_the_model_itself(tmp_path):
    torch = pytest.importorskip("torch", reason="a CLIP model needs the extra torch")
    transformers = pytest.importorskip("transformers", reason="a CLIP model needs the extra torch")
    image_module = pytest.importorskip("PIL.Image")
    from recombine.probe import tiny

    torch.manual_seed(0)
    tokenizer = tiny.clip_tokenizer()
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    text = vision | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    shape = {"image_size": 32, "patch_size": 8}
    config = transformers.CLIPConfig(
        text_config=text, vision_config=vision | shape, projection_dim=8
    )
    model = transformers.CLIPModel(config).eval()
    size = {"height": 32, "width": 32}
    image_processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size)
    model.save_pretrained(tmp_path / "clip")
    transformers.CLIPProcessor(image_processor, tokenizer).save_pretrained(tmp_path / "clip")
    files = [tmp_path / f"{number}.png" for number in range(judges.BATCH_SIZE + 2)]
    for number, file in enumerate(files):
        image_module.new("RGB", (32, 32), (13 * number, 255 - 13 * number, 90)).save(file)
    scores = judges.clip_scores(str(tmp_path / "clip"), files, ["cat", "owl"])
    assert scores.shape == (len(files), 2)
    pixels = image_processor(image_module.open(files[-1]), return_tensors="pt")["pixel_values"]
    words = tokenizer(["a photo of an owl"], return_tensors="pt")
    with torch.no_grad():
        expected = model(**words, pixel_values=pixels).logits_per_image.item()
    assert scores[-1, 1] == pytest.approx(expected, abs=1e-4)
    with pytest.raises(InputError, match="cannot load a CLIP model"):
        judges.clip_scores(str(tmp_path / "nowhere"), files, ["cat"])
