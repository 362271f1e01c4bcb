"""A cache of drawn images and their activations, prompt by prompt in a folder.

Drawing takes hours where fitting probes takes minutes, so nothing is drawn twice: a stopped command
continues where it was, and another judge or another split needs no pipeline at all.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recombine.basics.atomic_io import write_atomically
from recombine.basics.console import Meter, say
from recombine.basics.errors import InputError
from recombine.basics.version import PACKAGE
from recombine.sweeps.syntax import parse_file, tree_text

JPEG_QUALITY = 95  # judges see the images as they are saved
RECORDING_MODULES = ("diffusion", "denoising", "pooling", "layer_selection", "tiny")


class CachedImages(NamedTuple):
    """Activations and files of all prompts, with one entry per image.

    All images of the first prompt come first, then those of the second, and so on.
    """

    activations: dict[str, np.ndarray]
    files: list[Path]
    prompts: np.ndarray  # the number of each image's prompt


class ImageCache:
    """A cache of images and activations in a folder.

    `about` identifies everything that the images depend on except the prompt. `make` returns the
    `Diffusion` that draws; it is called only if an image is missing.
    """

    def __init__(self, folder: Path, about: dict[str, Any], make: Callable[[], Any]):
        self.folder = folder
        self.about = about
        self.make = make

    def draw(self, texts: Sequence[str], seeds: Sequence[int], **call: Any) -> CachedImages:
        """Draw the missing prompts, saving each before the next begins; return all prompts."""
        stems = [self._stem(text, seeds, call) for text in texts]
        missing = [i for i, stem in enumerate(stems) if not _activation_file(stem).exists()]
        num_done = len(texts) - len(missing)
        try:
            diffusion = self.make() if missing else None
            with Meter("drawing, prompts", len(missing)) as meter:
                for i in missing:
                    self._draw_prompt(diffusion, texts[i], seeds, call, stems[i])
                    num_done += 1
                    meter.advance()
        except KeyboardInterrupt:
            say(f"{num_done} of {len(texts)} prompts are drawn and saved in {self.folder}")
            raise
        layers = [_read_activations(_activation_file(stem), len(seeds)) for stem in stems]
        activations = {
            name: np.concatenate([of_prompt[name] for of_prompt in layers]) for name in layers[0]
        }
        files = [_image_file(stem, number) for stem in stems for number in range(len(seeds))]
        return CachedImages(activations, files, np.arange(len(texts)).repeat(len(seeds)))

    def _stem(self, text: str, seeds: Sequence[int], call: dict[str, Any]) -> Path:
        """The path of a prompt's files, without their endings."""
        key = [_recording_hash(), self.about, text, list(seeds), call]
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return self.folder / digest[:16]

    def _draw_prompt(
        self, diffusion: Any, text: str, seeds: Sequence[int], call: dict[str, Any], stem: Path
    ) -> None:
        recording = diffusion.record([text], seeds, batch_size=len(seeds), **call)
        activations = io.BytesIO()
        np.savez(activations, **recording.activations)
        try:
            for number, image in enumerate(recording.images):
                encoded = io.BytesIO()
                image.convert("RGB").save(encoded, "JPEG", quality=JPEG_QUALITY, subsampling=0)
                write_atomically(_image_file(stem, number), encoded.getvalue())
            # Written last: a prompt is complete if this file exists.
            write_atomically(_activation_file(stem), activations.getvalue())
        except OSError as error:
            raise InputError(
                f"cannot save images in {self.folder} ({error.strerror or error}): free some "
                "space, or set another --out"
            ) from error


@functools.cache
def _recording_hash() -> str:
    """A hash of the code that records, so that images of other code are not reused."""
    folder = PACKAGE / "probe"
    trees = [tree_text(parse_file(folder / f"{name}.py")) for name in RECORDING_MODULES]
    return hashlib.sha256("".join(trees).encode()).hexdigest()[:16]


def _image_file(stem: Path, number: int) -> Path:
    return stem.with_name(f"{stem.name}-{number}.jpg")


def _activation_file(stem: Path) -> Path:
    return stem.with_suffix(".npz")


def _read_activations(file: Path, num_images: int) -> dict[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as arrays:
            layers = dict(arrays)
        is_complete = bool(layers) and all(len(layer) == num_images for layer in layers.values())
    except Exception as error:  # damaged zip files and arrays raise many kinds
        raise InputError(
            f"{file} is damaged: delete it, and its prompt will be drawn again"
        ) from error
    if not is_complete:
        raise InputError(
            f"{file} does not hold {num_images} images: delete it, and its prompt will be drawn "
            "again"
        )
    return layers


Drawings = ImageCache  # the old name, for one release
