"""Judges by name: a function of the user's own, or a CLIP model that compares images with texts.

    FILE.py:FUNCTION or MODULE:FUNCTION    image -> a dict of factors, or a list of the concepts that it sees
    clip:FOLDER_OR_ID                      image against "a photo of a cat", zero-shot

A CLIP model gives a score for every image and concept, and no verdict. Of a list of which one concept is asked for, the
one with the highest score is seen. Where several are asked for, a concept is seen above a threshold of its own: the one
that tells best, on train prompts only, the images in which it was asked for from the others. So a model that fails on
most train prompts too has no honest threshold; look at images, or take a judge that answers questions.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics import user_files
from recombine.basics.errors import InputError, require
from recombine.basics.optional_deps import library
from recombine.basics.suggest import nearest
from recombine.probe.prompts import Prompts, article, judge

CLIP = "clip:"
BATCH = 16  # images
TEXT = "a photo of {}"


def function(name: str) -> Callable[[Any], Any]:
    """The function that FILE.py:FUNCTION or MODULE:FUNCTION names."""
    place, _, called = name.rpartition(":")
    reads = f"a judge reads FILE.py:FUNCTION, MODULE:FUNCTION or {CLIP}FOLDER_OR_ID; got {name!r}"
    require(bool(place and called), reads)
    if place.endswith(".py"):
        module = user_files.load(Path(place))
    else:
        try:
            if str(Path.cwd()) not in sys.path:  # as `python -m` does
                sys.path.append(str(Path.cwd()))
            module = importlib.import_module(place)
        except ImportError as error:
            raise InputError(
                f"the judge's module {place!r} cannot be imported ({error}): name a file, or {CLIP}…"
            ) from error
    known = [
        one for one, value in vars(module).items() if callable(value) and not one.startswith("_")
    ]
    require(
        callable(getattr(module, called, None)),
        f"{place} has no judge {called!r}: {nearest(called, known)}",
    )
    return getattr(module, called)


def code(name: str) -> str:
    """A hash of the file that a judge comes from, or nothing: another judge gives other rows."""
    if not name or name.startswith(CLIP):
        return ""
    file = inspect.getsourcefile(inspect.unwrap(function(name)))
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""


def verdicts(
    name: str, files: Sequence[Path], prompts: Prompts, numbers: np.ndarray
) -> pd.DataFrame:
    """What the judge of this name sees in every image, and whether it `failed`; `numbers` are the images' prompts."""
    asked: Any = prompts.factors.iloc[numbers].reset_index(drop=True)
    if not name.startswith(CLIP):
        return judge(map(_opened, files), function(name), asked)
    words = [one for listed in prompts.concepts.values() for one in listed]
    scores = pd.DataFrame(
        clip_scores(name.removeprefix(CLIP), files, words), columns=pd.Index(words)
    )
    train, found = ~prompts.held_out[numbers], {}
    for column, listed in prompts.concepts.items():
        if prompts.num_hot[column] == 1:
            found[column] = [listed[place] for place in scores[listed].to_numpy().argmax(axis=1)]
        else:
            for one in listed:
                line = threshold(scores[one].to_numpy()[train], asked[one].to_numpy()[train] == 1)
                found[one] = (scores[one] > line).astype(int)
    return judge(pd.DataFrame(found).to_dict("records"), lambda seen: seen, asked)


def threshold(scores: np.ndarray, present: np.ndarray) -> float:
    """The score above which something counts as seen: where the shares of hits and of right rejections sum to most."""
    order = np.sort(scores)
    lines = np.concatenate([[-np.inf], (order[1:] + order[:-1]) / 2, [np.inf]])
    if present.all() or not present.any():
        return float(lines[0] if present.all() else lines[-1])
    above = scores[:, None] > lines
    return float(lines[np.argmax(above[present].mean(axis=0) - above[~present].mean(axis=0))])


def clip_scores(name: str, files: Sequence[Path], words: Sequence[str]) -> np.ndarray:
    """How well every image goes with every word: images x words."""
    torch, transformers = library("torch"), library("transformers")
    where = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model = transformers.CLIPModel.from_pretrained(name).eval().to(where)
        processor = transformers.CLIPProcessor.from_pretrained(name)
    except (OSError, ValueError) as error:
        told = f"no CLIP model can be loaded from {name!r} ({(str(error) or 'no reason given').splitlines()[0]})"
        raise InputError(f"{told}: give a folder, or a name on the hub") from error
    texts, found = [TEXT.format(article(word)) for word in words], []
    for start in range(0, len(files), BATCH):
        images = [_opened(file) for file in files[start : start + BATCH]]
        inputs = processor(text=texts, images=images, return_tensors="pt", padding=True).to(where)
        with torch.no_grad():
            found.append(model(**inputs).logits_per_image.float().cpu().numpy())
    return np.concatenate(found)


def _opened(file: Path) -> Any:
    """An image with its pixels: nothing is left open."""
    image_module: Any = importlib.import_module("PIL.Image")
    with image_module.open(os.fspath(file)) as image:
        return image.convert("RGB")
