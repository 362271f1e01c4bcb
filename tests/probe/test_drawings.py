"""Drawings in a folder: nothing is drawn twice, and nothing of another pipeline or seed is taken."""

from types import SimpleNamespace

import numpy as np
import pytest

image_module = pytest.importorskip(
    "PIL.Image", reason="images need Pillow, which comes with the extra torch"
)

from recombine.basics.errors import InputError  # noqa: E402
from recombine.probe.drawings import Drawings  # noqa: E402


class Plain:
    """Draws one colour, that of the seed; its layer has the length of the text and the seed."""

    def __init__(self):
        self.asked = []

    def record(self, texts, seeds, batch_size, **call):
        (text,) = texts
        self.asked.append(text)
        images = [image_module.new("RGB", (8, 8), (100 * seed, 0, 0)) for seed in seeds]
        return SimpleNamespace(
            activations={"a": np.array([[len(text), seed] for seed in seeds])}, images=images
        )


def test_what_is_there_is_not_drawn_again(tmp_path):
    plain = Plain()
    drawings = Drawings(tmp_path / "work", {"pipeline": "p"}, lambda: plain)
    drawings.draw(["cat"], [0, 2])
    found = drawings.draw(["an owl", "cat"], [0, 2])
    assert plain.asked == ["cat", "an owl"]
    assert found.activations["a"].tolist() == [[6, 0], [6, 2], [3, 0], [3, 2]]
    assert found.prompts.tolist() == [0, 0, 1, 1]
    colours = [image_module.open(file).convert("RGB").getpixel((4, 4))[0] for file in found.files]
    assert np.allclose(colours, [0, 200, 0, 200], atol=3)
    drawings.draw(["cat"], [0, 1])
    drawings.draw(["cat"], [0, 2], num_inference_steps=3)
    Drawings(tmp_path / "work", {"pipeline": "q"}, lambda: plain).draw(["cat"], [0, 2])
    assert plain.asked == ["cat", "an owl", "cat", "cat", "cat"]


def test_damage_is_told(tmp_path):
    drawings = Drawings(tmp_path, {}, Plain)
    drawings.draw(["cat", "dog"], [0, 1])
    file = sorted(tmp_path.glob("*.npz"))[0]
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(
        InputError, match=f"{file.name} is damaged: remove it, and it is drawn again"
    ):
        drawings.draw(["cat", "dog"], [0, 1])
    file.unlink()
    assert len(drawings.draw(["cat", "dog"], [0, 1]).files) == 4
