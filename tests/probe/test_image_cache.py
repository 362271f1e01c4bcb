"""The image cache draws nothing twice, and reuses no image of another pipeline, seed or option."""

from types import SimpleNamespace

import numpy as np
import pytest

image_module = pytest.importorskip(
    "PIL.Image", reason="images need Pillow, which comes with the extra torch"
)

from recombine.basics.errors import InputError  # noqa: E402
from recombine.probe.image_cache import ImageCache  # noqa: E402


class FakeDiffusion:
    """Draws images whose red is 100 x seed; its layer holds the text's length and the seed."""

    def __init__(self):
        self.drawn = []

    def record(self, texts, seeds, batch_size, **call):
        (text,) = texts
        self.drawn.append(text)
        images = [image_module.new("RGB", (8, 8), (100 * seed, 0, 0)) for seed in seeds]
        layer = np.array([[len(text), seed] for seed in seeds])
        return SimpleNamespace(activations={"a": layer}, images=images)


def test_cached_prompts_are_not_drawn_again(tmp_path):
    diffusion = FakeDiffusion()
    cache = ImageCache(tmp_path / "work", {"pipeline": "p"}, lambda: diffusion)
    cache.draw(["cat"], [0, 2])
    cached = cache.draw(["an owl", "cat"], [0, 2])
    assert diffusion.drawn == ["cat", "an owl"]
    assert cached.activations["a"].tolist() == [[6, 0], [6, 2], [3, 0], [3, 2]]
    assert cached.prompts.tolist() == [0, 0, 1, 1]
    reds = [image_module.open(file).convert("RGB").getpixel((4, 4))[0] for file in cached.files]
    assert np.allclose(reds, [0, 200, 0, 200], atol=3)
    cache.draw(["cat"], [0, 1])
    cache.draw(["cat"], [0, 2], num_inference_steps=3)
    ImageCache(tmp_path / "work", {"pipeline": "q"}, lambda: diffusion).draw(["cat"], [0, 2])
    assert diffusion.drawn == ["cat", "an owl", "cat", "cat", "cat"]


def test_damaged_files_are_refused(tmp_path):
    cache = ImageCache(tmp_path, {}, FakeDiffusion)
    cache.draw(["cat", "dog"], [0, 1])
    file = sorted(tmp_path.glob("*.npz"))[0]
    file.write_bytes(file.read_bytes()[:50])
    message = f"{file.name} is damaged: delete it, and its prompt will be drawn again"
    with pytest.raises(InputError, match=message):
        cache.draw(["cat", "dog"], [0, 1])
    file.unlink()
    assert len(cache.draw(["cat", "dog"], [0, 1]).files) == 4
