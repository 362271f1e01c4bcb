"""Images of prompts and what was recorded while they were drawn, kept prompt by prompt in a folder.

Drawing takes hours where fitting probes takes minutes, so nothing is drawn twice: a stopped command goes on from there,
and another judge or another split needs no pipeline at all.
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

from recombine.basics.atomic_io import replace
from recombine.basics.console import Meter, say
from recombine.basics.errors import InputError
from recombine.sweeps.closure import parse
from recombine.sweeps.code_hash import dump

QUALITY = 95  # of the images, which judges look at as they are kept


class Drawn(NamedTuple):
    """What is there of all prompts, an entry for each image: all of the first prompt, then those of the second."""

    activations: dict[str, np.ndarray]
    files: list[Path]
    prompts: np.ndarray  # numbers


class Drawings:
    """Drawings in a folder. `about` is all that they depend on but the prompt; `make` gives the `Diffusion` that draws,
    and is called only if something is missing."""

    def __init__(self, folder: Path, about: dict[str, Any], make: Callable[[], Any]):
        self.folder, self.about, self.make = folder, about, make

    def draw(self, texts: Sequence[str], seeds: Sequence[int], **call: Any) -> Drawn:
        """Draw what is missing, each prompt being kept before the next begins; all of it."""
        places = [self._place(text, seeds, call) for text in texts]
        left = [
            number for number, place in enumerate(places) if not place.with_suffix(".npz").exists()
        ]
        done = len(texts) - len(left)
        try:
            diffusion = self.make() if left else None
            with Meter("drawing, prompts", len(left)) as meter:
                for number in left:
                    self._one(diffusion, texts[number], seeds, call, places[number])
                    done += 1
                    meter.advance()
        except KeyboardInterrupt:
            say(f"{done} of {len(texts)} prompts are drawn and kept in {self.folder}")
            raise
        layers = [_read(place.with_suffix(".npz"), len(seeds)) for place in places]
        activations = {name: np.concatenate([one[name] for one in layers]) for name in layers[0]}
        files = [_image(place, number) for place in places for number in range(len(seeds))]
        return Drawn(activations, files, np.arange(len(texts)).repeat(len(seeds)))

    def _place(self, text: str, seeds: Sequence[int], call: dict[str, Any]) -> Path:
        """The files of a prompt, without their endings."""
        told = json.dumps([_recording(), self.about, text, list(seeds), call], sort_keys=True)
        return self.folder / hashlib.sha256(told.encode()).hexdigest()[:16]

    def _one(
        self, diffusion: Any, text: str, seeds: Sequence[int], call: dict[str, Any], place: Path
    ) -> None:
        drawn = diffusion.record([text], seeds, batch_size=len(seeds), **call)
        arrays, images = io.BytesIO(), drawn.images
        np.savez(arrays, **drawn.activations)
        try:
            for number, image in enumerate(images):
                kept = io.BytesIO()
                image.convert("RGB").save(kept, "JPEG", quality=QUALITY, subsampling=0)
                replace(_image(place, number), kept.getvalue())
            replace(
                place.with_suffix(".npz"), arrays.getvalue()
            )  # the last: with it the prompt is done
        except OSError as error:
            told = f"drawings cannot be kept in {self.folder} ({error.strerror or error})"
            raise InputError(f"{told}: make room, or name another --out") from error


@functools.cache
def _recording() -> str:
    """A hash of the code that records: what other code has drawn is not taken for its own."""
    here = Path(__file__).parent
    text = "".join(
        dump(parse(here / f"{name}.py"))
        for name in ("diffusion", "denoising", "pool", "layers", "tiny")
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _image(place: Path, number: int) -> Path:
    return place.with_name(f"{place.name}-{number}.jpg")


def _read(file: Path, num: int) -> dict[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as kept:
            found = dict(kept)
        whole = bool(found) and all(len(layer) == num for layer in found.values())
    except (
        Exception
    ) as error:  # whatever zip files and arrays say of themselves when they are damaged
        raise InputError(f"{file} is damaged: remove it, and it is drawn again") from error
    if not whole:
        raise InputError(f"{file} is not of {num} images: remove it, and it is drawn again")
    return found
