"""Judges by name: a user's function, or a CLIP model that compares images with texts.

    FILE.py:FUNCTION or MODULE:FUNCTION    image -> a dict of factors, or a list of concepts in it
    clip:FOLDER_OR_ID                      image compared with "a photo of a cat", zero-shot

A CLIP model gives a score for every image and concept, from which verdicts follow. For a list with
one active concept, the concept with the highest score counts as seen. For a list with several, each
concept has a threshold, above which it counts as seen: the one that best separates images with the
concept in the prompt from images without it, on train prompts only. If the image model fails on
most train prompts, this threshold is meaningless: look at images, or use a judge that answers
questions.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics import user_files
from recombine.basics.errors import InputError, require
from recombine.basics.optional_deps import import_library
from recombine.basics.suggest import did_you_mean
from recombine.probe.prompts import Prompts, judge, with_article

CLIP_PREFIX = "clip:"
BATCH_SIZE = 16  # images
TEXT_TEMPLATE = "a photo of {}"


def load_function(name: str) -> Callable[[Any], Any]:
    """The function that FILE.py:FUNCTION or MODULE:FUNCTION names."""
    module_name, _, function_name = name.rpartition(":")
    require(
        bool(module_name and function_name),
        f"a judge must be FILE.py:FUNCTION, MODULE:FUNCTION or {CLIP_PREFIX}FOLDER_OR_ID, "
        f"got {name!r}",
    )
    module = _load_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value)]
        public = [key for key in names if not key.startswith("_")]
        raise InputError(
            f"{module_name} has no judge {function_name!r}: {did_you_mean(function_name, public)}"
        )
    return function


def _load_module(name: str) -> ModuleType:
    if name.endswith(".py"):
        return user_files.load(Path(name))
    folder = str(Path.cwd())
    if folder not in sys.path:  # as `python -m` does
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"the judge's module {name!r} cannot be imported ({error}): name a file, or use "
            f"{CLIP_PREFIX}FOLDER_OR_ID"
        ) from error


def code_hash(name: str) -> str:
    """A hash of the file of a judge's function; empty for a CLIP model and for no judge."""
    if not name or name.startswith(CLIP_PREFIX):
        return ""
    file = inspect.getsourcefile(inspect.unwrap(load_function(name)))
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""


def verdicts(
    name: str, files: Sequence[Path], prompts: Prompts, numbers: np.ndarray
) -> pd.DataFrame:
    """What a judge sees in every image, and whether the image `failed`.

    `numbers` has the prompt number of each image.
    """
    factors: Any = prompts.factors.iloc[numbers].reset_index(drop=True)
    if not name.startswith(CLIP_PREFIX):
        return judge(map(_open_image, files), load_function(name), factors)
    words = [concept for concepts in prompts.concepts.values() for concept in concepts]
    scores = pd.DataFrame(
        clip_scores(name.removeprefix(CLIP_PREFIX), files, words), columns=pd.Index(words)
    )
    is_train = ~prompts.held_out[numbers]
    seen: dict[str, Any] = {}
    for column, concepts in prompts.concepts.items():
        if prompts.num_hot[column] == 1:
            best = scores[concepts].to_numpy().argmax(axis=1)
            seen[column] = [concepts[i] for i in best]
        else:
            for concept in concepts:
                of_concept = scores[concept].to_numpy()
                present = factors[concept].to_numpy() == 1
                minimum = threshold(of_concept[is_train], present[is_train])
                seen[concept] = (of_concept > minimum).astype(int)
    return judge(pd.DataFrame(seen).to_dict("records"), lambda concepts: concepts, factors)


def threshold(scores: np.ndarray, present: np.ndarray) -> float:
    """The score above which a concept counts as seen.

    It maximizes the sum of the true positive rate and the true negative rate.
    """
    ordered = np.sort(scores)
    candidates = np.concatenate([[-np.inf], (ordered[1:] + ordered[:-1]) / 2, [np.inf]])
    if present.all():
        return float(candidates[0])
    if not present.any():
        return float(candidates[-1])
    above = scores[:, None] > candidates
    separation = above[present].mean(axis=0) - above[~present].mean(axis=0)
    return float(candidates[np.argmax(separation)])


def clip_scores(name: str, files: Sequence[Path], words: Sequence[str]) -> np.ndarray:
    """The CLIP similarity of every image with every word: images x words."""
    torch = import_library("torch")
    transformers = import_library("transformers")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model = transformers.CLIPModel.from_pretrained(name).eval().to(device)
        processor = transformers.CLIPProcessor.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = (str(error) or "no reason given").splitlines()[0]
        raise InputError(
            f"cannot load a CLIP model from {name!r} ({reason}): provide a folder, or a "
            "name on the hub"
        ) from error
    texts = [TEXT_TEMPLATE.format(with_article(word)) for word in words]
    scores = []
    for start in range(0, len(files), BATCH_SIZE):
        images = [_open_image(file) for file in files[start : start + BATCH_SIZE]]
        inputs = processor(text=texts, images=images, return_tensors="pt", padding=True)
        with torch.no_grad():
            logits = model(**inputs.to(device)).logits_per_image
        scores.append(logits.float().cpu().numpy())
    return np.concatenate(scores)


def _open_image(file: Path) -> Any:
    """An image with its pixels; the file is closed."""
    image_module: Any = importlib.import_module("PIL.Image")
    with image_module.open(os.fspath(file)) as image:
        return image.convert("RGB")
