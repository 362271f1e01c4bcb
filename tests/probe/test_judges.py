"""Judges by name: functions, and a CLIP model whose thresholds come from train prompts alone."""

import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.probe import Prompts, judges


@pytest.fixture
def prompts():
    return Prompts({"animal": ["cat", "dog", "owl", "fox"]}, "a photo of {a animal}", num_hot=2)


def test_a_function_is_found_by_file_and_by_module(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text("def look(image):\n    return ['cat']\n")
    monkeypatch.chdir(tmp_path)
    assert judges.function("of_mine.py:look")(None) == ["cat"]
    assert judges.function("of_mine:look")(None) == ["cat"]
    for name, says in (
        ("of_mine.py:lok", "of_mine.py has no judge 'lok': did you mean look?"),
        ("nowhere_at_all:look", "cannot be imported"),
        ("look", "a judge reads FILE.py:FUNCTION"),
    ):
        with pytest.raises(InputError, match=says):
            judges.function(name)


def test_another_judge_has_another_code(tmp_path):
    file = tmp_path / "of_mine.py"
    file.write_text("def look(image):\n    return ['cat']\n")
    before = judges.code(f"{file}:look")
    assert before == judges.code(f"{file}:look") != ""
    file.write_text("def look(image):\n    return ['dog']\n")
    assert judges.code(f"{file}:look") != before
    assert judges.code("clip:folder") == judges.code("") == ""


def test_a_threshold_tells_best_what_was_asked_for():
    scores, present = (
        np.array([0.0, 1.0, 2.0, 3.0, 4.0]),
        np.array([False, False, True, True, True]),
    )
    assert judges.threshold(scores, present) == 1.5
    assert judges.threshold(scores, np.array([False, True, False, True, True])) == 2.5
    assert judges.threshold(scores, ~present[::-1] | True) == -np.inf
    assert judges.threshold(scores, np.zeros(5, bool)) == np.inf


def test_clip_sees_what_is_above_a_threshold_of_train_prompts_alone(prompts, monkeypatch):
    """Scores of held-out images are far higher: were they looked at, the threshold would be another."""
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


def test_clip_names_the_best_of_a_list_of_which_one_is_asked(monkeypatch):
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
    assert seen["failed"].tolist() == [prompts.texts[0] != "a blue owl"] + [False] * (
        len(prompts) - 1
    )


def test_a_clip_model_in_a_folder_is_asked(tmp_path):
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
    shown = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size)
    model.save_pretrained(tmp_path / "clip")
    transformers.CLIPProcessor(shown, tokenizer).save_pretrained(tmp_path / "clip")
    files = [tmp_path / f"{number}.png" for number in range(judges.BATCH + 2)]
    for number, file in enumerate(files):
        image_module.new("RGB", (32, 32), (13 * number, 255 - 13 * number, 90)).save(file)
    scores = judges.clip_scores(str(tmp_path / "clip"), files, ["cat", "owl"])
    assert scores.shape == (len(files), 2)
    pixels = shown(image_module.open(files[-1]), return_tensors="pt")["pixel_values"]
    words = tokenizer(["a photo of an owl"], return_tensors="pt")
    with torch.no_grad():
        alone = model(**words, pixel_values=pixels).logits_per_image.item()
    assert scores[-1, 1] == pytest.approx(alone, abs=1e-4)
    with pytest.raises(InputError, match="no CLIP model can be loaded"):
        judges.clip_scores(str(tmp_path / "nowhere"), files, ["cat"])
