"""Image concepts end to end on tiny pipelines: caching, a planted failure, and refused settings."""

import json
import re
import zlib

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.experiments.ledger import judge as ledger_lines
from recombine.experiments.paper import image_concepts as experiment
from recombine.storage.table import Table
from tests.experiments.neutral import claims_of

NAMES = experiment.ANIMALS[:7]
NUM_PROMPTS = 35  # all combinations of three of the seven
JUDGE = f'''"""A judge of stripes: one per concept, white if the concept is in the image."""

import numpy as np

NAMES = {NAMES!r}


def look(image):
    lines = np.asarray(image.convert("L"), float).mean(axis=1).reshape(len(NAMES), -1).mean(axis=1)
    return [name for name, line in zip(NAMES, lines, strict=True) if line > 128]


def blind(image):
    return []
'''
PLANTED = ("pipeline=planted", "num_concepts=7", f"num_prompts={NUM_PROMPTS}", "num_steps=2")


def is_misunderstood(text: str) -> bool:
    """Whether the planted pipeline misunderstands a prompt: a third of them."""
    return zlib.crc32(text.encode()) % 3 == 0


def test_cells_take_settings_and_refuse_nonsense():
    (cell,) = experiment.cells("small", pipeline="folder", num_steps=7)
    assert cell["pipeline"] == "folder"
    sizes = {"num_concepts": 6, "num_prompts": 60, "num_images": 2, "num_steps": 7}
    assert cell.items() >= sizes.items()
    assert experiment.cells("tiny")[0]["pipeline"] == experiment.RANDOM
    solids = {"scale": "tiny", "concepts": "solids", "num_prompts": 9}
    for arguments, message in (
        ({"scale": "full"}, "--set pipeline="),
        ({"scale": "tiny", "concepts": "animal"}, "did you mean animals"),
        ({"scale": "tiny", "join": "means"}, "did you mean mean"),
        ({"scale": "tiny", "num_images": 1}, "num_images must be at least 2, got 1"),
        (solids, "raise num_prompts, or lower num_concepts"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            experiment.cells(**arguments)


@pytest.mark.parametrize("concepts", experiment.CONCEPTS)
def test_prompts_have_three_concepts(concepts):
    prompts = experiment.make_prompts(concepts, 5, 30, 0)
    words = [word for listed in prompts.concepts.values() for word in listed]
    for text in prompts.texts:
        assert sum(word in text.replace(",", "").split() for word in words) == 3
    assert 0 < prompts.held_out.sum() < len(prompts)


def test_without_rows_nothing_is_claimed():
    assert [claim.verdict for claim in claims_of(experiment, None)] == ["not yet run"] * 3


def rows_of(slope: float, seed: int = 0) -> pd.DataFrame:
    """Rows of 40 held-out prompts whose failures depend on log loss by this slope."""
    rng = np.random.default_rng(seed)
    expected = rng.normal(size=40)
    rows = pd.DataFrame(
        {"what": "prompt", "number": range(40), "expected": expected, "pipeline": "mine"}
    )
    failed = (slope * expected + rng.normal(size=40) > 0).astype(float)
    return rows.assign(
        held_out=True,
        failed=failed,
        control=rng.normal(size=40),
        rarity=rng.normal(size=40),
        seed=0,
    )


def verdicts(rows: pd.DataFrame) -> dict[str, str]:
    return {claim.name: claim.verdict for claim in claims_of(experiment, rows)}


def test_verdicts_both_ways():
    assert list(verdicts(rows_of(5.0)).values()) == ["reproduced"] * 3
    assert verdicts(rows_of(-5.0))["ranked"] == "not reproduced"
    rows = rows_of(0.0)
    assert verdicts(rows.assign(control=rows["failed"]))["control"] == "not reproduced"
    rows = rows_of(5.0)
    assert verdicts(rows.assign(rarity=rows["expected"]))["beyond counting"] == "not reproduced"


@pytest.mark.parametrize(
    "changes", [{"pipeline": experiment.RANDOM}, {"failed": np.nan}, {"failed": 1.0}]
)
def test_random_weights_no_judge_or_no_success_give_no_verdict(changes):
    rows = rows_of(5.0).assign(**changes)
    assert list(verdicts(rows).values()) == ["not yet run"] * 3


@pytest.fixture
def torch():
    """PyTorch with one thread: several would slow a tiny network down."""
    torch = pytest.importorskip("torch", reason="drawing needs the extra torch")
    pytest.importorskip("diffusers", reason="drawing needs the extra torch")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(num_threads)


@pytest.fixture
def planted(torch, monkeypatch, tmp_path):
    """A pipeline that misunderstands some prompts.

    It draws these from a text without their concepts, and paints a white stripe for every concept
    of the text that it draws from. Gives the prompts that it was called with, and a list for the
    number of prompts after which it is interrupted.
    """
    from PIL import Image

    from recombine.probe import diffusion, tiny

    (tmp_path / "mine.py").write_text(JUDGE)
    pipeline = tiny.pipeline("sd15")
    drawn = []
    stop_after = []

    class Planted(type(pipeline)):
        def __call__(self, prompt, **call):
            if stop_after and len(drawn) == 2 * stop_after[0]:
                raise KeyboardInterrupt
            drawn.extend(prompt)
            other_text = "a photo of a zzz, a zzz and a zzz"
            texts = [other_text if is_misunderstood(text) else text for text in prompt]
            result = super().__call__(prompt=texts, **call)
            result.images = [paint(text) for text in texts]
            return result

    def paint(text):
        is_present = np.array([name in text for name in NAMES])
        stripes = 255 * is_present.repeat(4)[:, None, None]
        pixels = np.broadcast_to(stripes, (28, 28, 3)).astype(np.uint8)
        return Image.fromarray(pixels)

    pipeline.__class__ = Planted
    monkeypatch.setattr(diffusion, "_load", lambda name: pipeline)
    return drawn, stop_after


RUN = ("run", "image_concepts", "--scale", "tiny", "--out", "out", "--json", "--set", *PLANTED)


def test_a_planted_failure_is_predicted_and_nothing_is_drawn_twice(planted, call, monkeypatch):
    """A stopped command continues; misunderstood prompts rank first; a new judge draws nothing."""
    from recombine.probe import diffusion

    drawn, stop_after = planted
    stop_after.append(12)
    code, _, error = call(*RUN, "judge=mine.py:look")
    assert code == 130
    assert "12 of 35 prompts are drawn and saved in out/work" in error
    stop_after.clear()
    code, _, error = call(*RUN, "judge=mine.py:look")
    assert code == 0, error
    assert len(drawn) == 2 * NUM_PROMPTS
    assert len(set(drawn)) == NUM_PROMPTS
    table = Table("out")
    rows = table.read()
    prompts = rows[rows["what"] == "prompt"].set_index("prompt")
    assert set(prompts.index) == set(drawn)
    assert prompts["failed"].to_dict() == {text: float(is_misunderstood(text)) for text in drawn}
    is_held_out = prompts["held_out"].astype(bool)
    held_out = prompts[is_held_out].sort_values("expected", ascending=False)
    assert 0 < held_out["failed"].sum() < len(held_out)
    assert held_out["failed"].is_monotonic_decreasing, "failures have the highest log loss"
    assert held_out["probability"].between(0, 1).all()
    assert set(held_out["probability_of"]) == {"failure"}
    assert not prompts["expected"][~is_held_out].notna().any()
    assert prompts["error"].notna().all()
    # A text encoder contains the prompt whatever is drawn.
    assert not held_out["layer"].str.startswith("text_encoder").any()
    assert "text_encoder" in set(rows["layer"][rows["what"] == "layer"])
    lines = ledger_lines("image_concepts", experiment, table)
    assert lines[0]["verdict"] == "reproduced"
    correlation = held_out["expected"].rank().corr(held_out["failed"].rank())
    assert lines[0]["measured"] == pytest.approx(correlation)
    figures = {name: json.loads(text) for name, text in table.figures().items()}
    assert list(figures) == ["outcome", "layers", "images"]
    layout = figures["images"]["layout"]
    assert len(layout["images"]) == len(held_out)
    last_lines = [note["text"].split("<br>")[-1] for note in layout["annotations"]]
    assert last_lines == [f"{rate:.0%} failed" for rate in held_out["failed"]]
    monkeypatch.setattr(diffusion, "_load", None)  # loading a pipeline would fail now
    code, out, error = call(*RUN, "judge=mine.py:blind")
    assert code == 0, error
    assert json.loads(out)["summary"]["failed"] == 1


def test_random_weights_show_that_it_works_and_claim_nothing(torch, call):
    code, out, error = call("run", "image_concepts", "--scale", "tiny", "--out", "out", "--json")
    assert code == 0, error
    assert set(json.loads(out)["summary"]) == {"read on held-out prompts", "as another prompt"}
    table = Table("out")
    lines = ledger_lines("image_concepts", experiment, table)
    assert {line["verdict"] for line in lines} == {"not yet run"}
    assert list(table.figures()) == ["layers", "images"]
    prompts = table.read().query("what == 'prompt'")
    assert len(prompts) == 10
    assert prompts["failed"].isna().all()
    assert set(prompts["probability_of"]) == {"misreading"}
    assert prompts["image/thumbnail"].str.len().max() < 4000
    code, _, error = call("report", "out")
    assert code == 0, error


def test_invalid_settings_are_refused(call):
    for setting, message in (
        ("pipelines=x", "image_concepts has no setting 'pipelines': did you mean pipeline"),
        ("num_steps=few", "num_steps must be a whole number, got 'few'"),
        ("judge=nobody.py:look", "there is no file nobody.py"),
        ("judge=look", "a judge must be FILE.py:FUNCTION"),
    ):
        code, _, error = call("run", "image_concepts", "--scale", "tiny", "--set", setting)
        assert code == 2
        assert message in error
