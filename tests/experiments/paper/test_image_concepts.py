"""Image concepts, end to end on tiny pipelines: what is drawn once, what is planted is found, and what is refused."""

import json
import re
import zlib

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.experiments.claim import judge as ledger_of
from recombine.experiments.paper import image_concepts as experiment
from recombine.storage.table import Table

NAMES = experiment.ANIMALS[:7]
NUM_PROMPTS = 35  # all threes of seven
JUDGE = f'''"""A judge that sees stripes: one for each concept, white where it is there."""

import numpy as np

NAMES = {NAMES!r}


def look(image):
    lines = np.asarray(image.convert("L"), float).mean(axis=1).reshape(len(NAMES), -1).mean(axis=1)
    return [name for name, line in zip(NAMES, lines, strict=True) if line > 128]


def blind(image):
    return []
'''
PLANTED = ("pipeline=planted", "num_concepts=7", f"num_prompts={NUM_PROMPTS}", "num_steps=2")


def lost(text: str) -> bool:
    """Whether the planted pipeline does not understand a prompt: a third of them."""
    return zlib.crc32(text.encode()) % 3 == 0


def test_cells_take_settings_and_refuse_nonsense():
    (cell,) = experiment.cells("small", pipeline="folder", num_steps=7)
    assert cell["pipeline"] == "folder"
    assert [cell[name] for name in ("num_concepts", "num_prompts", "num_images", "num_steps")] == [
        6,
        60,
        2,
        7,
    ]
    assert experiment.cells("tiny")[0]["pipeline"] == experiment.RANDOM
    for wrong, says in (
        ({"scale": "full"}, "--set pipeline="),
        ({"scale": "tiny", "concepts": "animal"}, "did you mean animals"),
        ({"scale": "tiny", "join": "means"}, "did you mean mean"),
        ({"scale": "tiny", "num_images": 1}, "num_images must be at least 2, got 1"),
        (
            {"scale": "tiny", "concepts": "solids", "num_prompts": 9},
            "raise num_prompts, or lower num_concepts",
        ),
    ):
        with pytest.raises(InputError, match=re.escape(says)):
            experiment.cells(**wrong)


@pytest.mark.parametrize("concepts", experiment.CONCEPTS)
def test_prompts_have_three_concepts(concepts):
    prompts = experiment.asked(concepts, 5, 30, 0)
    lists = [one for listed in prompts.concepts.values() for one in listed]
    for text in prompts.texts:
        assert sum(one in text.replace(",", "").split() for one in lists) == 3
    assert 0 < prompts.held_out.sum() < len(prompts)


def test_without_rows_nothing_is_claimed():
    assert [claim.verdict for claim in experiment.claims(None)] == ["not yet run"] * 3


def made(slope: float, seed: int = 0) -> pd.DataFrame:
    """Rows of 40 held-out prompts whose failures follow log loss so far."""
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


def test_verdicts_go_both_ways():
    verdicts = [claim.verdict for claim in experiment.claims(made(5.0))]
    assert verdicts == ["reproduced"] * 3
    assert experiment.claims(made(-5.0))[0].verdict == "not reproduced"
    assert (
        experiment.claims(made(0.0).assign(control=lambda rows: rows["failed"]))[2].verdict
        == "not reproduced"
    )
    same = made(5.0).assign(rarity=lambda rows: rows["expected"])
    assert experiment.claims(same)[1].verdict == "not reproduced"


@pytest.mark.parametrize(
    "changes", [{"pipeline": experiment.RANDOM}, {"failed": np.nan}, {"failed": 1.0}]
)
def test_random_weights_no_judge_or_no_success_give_no_verdict(changes):
    claims = experiment.claims(made(5.0).assign(**changes))
    assert [claim.verdict for claim in claims] == ["not yet run"] * 3


@pytest.fixture
def torch():
    """PyTorch with one thread: those of a tiny network wait for each other longer than they work."""
    torch = pytest.importorskip("torch", reason="drawing needs the extra torch")
    pytest.importorskip("diffusers", reason="drawing needs the extra torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(before)


@pytest.fixture
def planted(torch, monkeypatch, tmp_path):
    """A pipeline that does not understand some prompts: it draws from a text without their concepts, and paints stripes
    for those that are in the text that it draws from. What it was asked, and after how many prompts it is stopped."""
    from PIL import Image

    from recombine.probe import diffusion, tiny

    (tmp_path / "mine.py").write_text(JUDGE)
    pipeline, drawn, stop = tiny.pipeline("sd15"), [], []

    class Planted(type(pipeline)):
        def __call__(self, prompt, **call):
            if stop and len(drawn) == 2 * stop[0]:
                raise KeyboardInterrupt
            drawn.extend(prompt)
            texts = ["a photo of a zzz, a zzz and a zzz" if lost(text) else text for text in prompt]
            found = super().__call__(prompt=texts, **call)
            found.images = [paint(text) for text in texts]
            return found

    def paint(text):
        there = np.array([name in text for name in NAMES])
        pixels = np.broadcast_to(255 * there.repeat(4)[:, None, None], (28, 28, 3)).astype(np.uint8)
        return Image.fromarray(pixels)

    pipeline.__class__ = Planted
    monkeypatch.setattr(diffusion, "_load", lambda name: pipeline)
    return drawn, stop


RUN = ("run", "image_concepts", "--scale", "tiny", "--out", "out", "--json", "--set", *PLANTED)


def test_a_planted_failure_is_foretold_and_nothing_is_drawn_twice(planted, call, monkeypatch):
    """Stopped half-way it goes on from there; the lost prompts come first, and another judge needs no pipeline."""
    from recombine.probe import diffusion

    drawn, stop = planted
    stop.append(12)
    code, _, error = call(*RUN, "judge=mine.py:look")
    assert code == 130
    assert "12 of 35 prompts are drawn and kept in out/work" in error
    stop.clear()
    code, _, error = call(*RUN, "judge=mine.py:look")
    assert code == 0, error
    assert len(drawn) == 2 * NUM_PROMPTS
    assert len(set(drawn)) == NUM_PROMPTS
    table = Table("out")
    rows = table.read()
    prompts = rows[rows["what"] == "prompt"].set_index("prompt")
    assert set(prompts.index) == set(drawn)
    assert prompts["failed"].to_dict() == {text: float(lost(text)) for text in drawn}
    held = prompts[prompts["held_out"].astype(bool)].sort_values("expected", ascending=False)
    assert 0 < held["failed"].sum() < len(held)
    assert held["failed"].is_monotonic_decreasing, (
        "what is not in the activations is expected to fail"
    )
    assert held["probability"].between(0, 1).all()
    assert set(held["probability_of"]) == {"failure"}
    assert not prompts["expected"][~prompts["held_out"].astype(bool)].notna().any()
    assert prompts["error"].notna().all()
    assert not held["layer"].str.startswith("text_encoder").any(), (
        "a text encoder has the prompt whatever is drawn"
    )
    assert "text_encoder" in set(rows["layer"][rows["what"] == "layer"])
    lines = ledger_of("image_concepts", experiment, table)
    assert lines[0]["verdict"] == "reproduced"
    assert lines[0]["measured"] == pytest.approx(
        held["expected"].rank().corr(held["failed"].rank())
    )
    figures = {name: json.loads(text) for name, text in table.figures().items()}
    assert list(figures) == ["outcome", "layers", "images"]
    pictures, notes = (figures["images"]["layout"][name] for name in ("images", "annotations"))
    assert len(pictures) == len(held)
    assert [note["text"].split("<br>")[-1] for note in notes] == [
        f"{rate:.0%} failed" for rate in held["failed"]
    ]
    monkeypatch.setattr(diffusion, "_load", None)  # whoever loads a pipeline now fails
    code, out, error = call(*RUN, "judge=mine.py:blind")
    assert code == 0, error
    assert json.loads(out)["summary"]["failed"] == 1


def test_random_weights_show_that_it_works_and_claim_nothing(torch, call):
    code, out, error = call("run", "image_concepts", "--scale", "tiny", "--out", "out", "--json")
    assert code == 0, error
    assert set(json.loads(out)["summary"]) == {"read on held-out prompts", "as another prompt"}
    table = Table("out")
    assert {line["verdict"] for line in ledger_of("image_concepts", experiment, table)} == {
        "not yet run"
    }
    assert list(table.figures()) == ["layers", "images"]
    prompts = table.read().query("what == 'prompt'")
    assert len(prompts) == 10
    assert prompts["failed"].isna().all()
    assert set(prompts["probability_of"]) == {"misreading"}
    assert prompts["image/thumbnail"].str.len().max() < 4000
    code, _, error = call("report", "out")
    assert code == 0, error


def test_settings_that_are_none_are_told(call):
    for setting, says in (
        ("pipelines=x", "image_concepts has no setting 'pipelines': did you mean pipeline"),
        ("num_steps=few", "num_steps must be a whole number, got 'few'"),
        ("judge=nobody.py:look", "there is no file nobody.py"),
        ("judge=look", "a judge reads FILE.py:FUNCTION"),
    ):
        code, _, error = call("run", "image_concepts", "--scale", "tiny", "--set", setting)
        assert code == 2
        assert says in error
