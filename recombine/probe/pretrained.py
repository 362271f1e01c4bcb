"""Activations of a text or vision model of transformers: `Pretrained("folder").record(texts)`.

Texts are tokenised and padded on the right, where padding changes nothing that a real token sees: to the left it would
shift the positions of models that count them from the start. Only real tokens are pooled; "last" is the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from recombine.basics.errors import InputError, require
from recombine.basics.optional_deps import library
from recombine.basics.suggest import nearest
from recombine.probe.layers import blocks
from recombine.probe.pool import Pool
from recombine.probe.recorder import Recorder

ENDLESS = 1_000_000  # tokens: no limit is known
KINDS = {
    "AutoTokenizer": ("tokenizer", "vocab", "spiece"),
    "AutoImageProcessor": ("preprocessor", "processor"),
}
TOWERS = ("text_model", "vision_model")  # of models that compare texts with images


class Pretrained:
    """Records a model of transformers, given itself with its tokeniser or image processor, or by folder or hub name.

    Layers are by default the blocks that it stacks. Of a model with an encoder and a decoder the encoder is read; of
    one with two towers, as CLIP has, the one that `part` names. Further options are those of `Recorder`.
    """

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        layers: Any = None,
        pool: Pool = "mean",
        part: str | None = None,
        **options: Any,
    ):
        if isinstance(model, (str, Path)):
            model, found = _load(model)
            processor = processor or found
        fine = callable(processor) or isinstance(processor, _Both)
        require(
            fine, "the model came without its tokeniser or image processor: give it, processor=…"
        )
        self.model: Any = _part(model, part)
        self.processor: Any = processor
        self.recorder = Recorder(self.model, layers or blocks(self.model), pool, **options)

    def record(self, samples: Sequence[Any], batch_size: int = 32) -> dict[str, np.ndarray]:
        """The activations of all texts (or images) by layer: samples x features."""
        told = f"samples must be a list of texts or images, got {type(samples).__name__}"
        require(not isinstance(samples, (str, bytes)), f"{told}: put it into a list")
        samples = list(samples)
        require(bool(samples), "there is no sample to record: give at least one text or image")
        require(batch_size > 0, f"batch_size must be at least 1, got {batch_size}")
        batch = self._texts if isinstance(samples[0], str) else self._images
        return self.recorder.record(_Batches(samples, batch_size, batch))

    def _images(self, images: list[Any], start: int) -> Any:
        prepare: Any = getattr(self.processor, "image_processor", self.processor)
        return dict(prepare(images=images, return_tensors="pt"))

    def _texts(self, texts: list[str], start: int) -> Any:
        tokenizer: Any = getattr(self.processor, "tokenizer", self.processor)
        tokens = dict(tokenizer(texts))
        lengths = [len(ids) for ids in tokens["input_ids"]]
        empty = lengths.index(0) if 0 in lengths else None
        require(empty is None, f"text {start + (empty or 0)} has no token: leave it out")
        most = self._most(tokenizer)
        long = int(np.argmax(lengths))
        told = f"text {start + long} has {lengths[long]} tokens and the model takes {most}"
        require(lengths[long] <= most, f"{told}: shorten it")
        fill = {"input_ids": getattr(tokenizer, "pad_token_id", None) or 0}
        batch = {}
        for name, rows in tokens.items():
            padded = np.full((len(rows), max(lengths)), fill.get(name, 0))
            for place, row in enumerate(rows):
                padded[place, : len(row)] = row
            batch[name] = torch.as_tensor(padded)
        mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
        return batch | {"attention_mask": torch.as_tensor(mask.astype(np.int64))}

    def _most(self, tokenizer: Any) -> int:
        own = getattr(
            self.model.config, "max_position_embeddings", None
        )  # -1 where there is no limit
        limits = [getattr(tokenizer, "model_max_length", None), own, ENDLESS]
        return int(min(limit for limit in limits if limit is not None and limit > 0))


class _Both(NamedTuple):
    """What prepares the inputs of a model of texts and images."""

    tokenizer: Any
    image_processor: Any


def _part(model: Any, part: str | None) -> Any:
    """What is read of a model."""
    told = f"model must be a model of transformers, its folder or its name on the hub, got {type(model).__name__}"
    require(
        isinstance(model, torch.nn.Module),
        f"{told}: record other models with Recorder or Decodability",
    )
    if part is not None:
        known = dict(model.named_modules())
        require(
            part in known,
            f"the model has no part {part!r}: {nearest(part, dict(model.named_children()))}",
        )
        return known[part]
    towers = [name for name in TOWERS if isinstance(getattr(model, name, None), torch.nn.Module)]
    told = f"{type(model).__name__} reads texts and images apart"
    require(len(towers) < 2, f"{told}: say which, part={' or part='.join(map(repr, towers))}")
    both = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return model.get_encoder() if both else model


class _Batches:
    """Samples that are made into batches when they are needed; their number is known before."""

    def __init__(self, samples: list[Any], batch_size: int, make: Any):
        self.samples, self.batch_size, self.make = samples, batch_size, make

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.samples), self.batch_size):
            yield self.make(self.samples[start : start + self.batch_size], start)


def _load(name: str | Path) -> tuple[Any, Any]:
    """A model with its weights, and what prepares its inputs."""
    transformers = library("transformers")
    try:
        model: Any = transformers.AutoModel.from_pretrained(str(name))
    except (OSError, ValueError) as error:
        told = f"no model can be loaded from {str(name)!r} ({str(error).splitlines()[0]})"
        raise InputError(
            f"{told}: give a folder with a config.json, or a name on the hub"
        ) from error
    there = {path.name for path in Path(name).iterdir()} if Path(name).is_dir() else None
    found: list[Any] = []
    for kind, files in KINDS.items():
        if there is not None and not any(file.startswith(files) for file in there):
            continue  # from a folder without its files an empty tokeniser would be made, which knows no word
        try:
            found.append(getattr(transformers, kind).from_pretrained(str(name)))
        except (OSError, ValueError):  # most models have one of them
            continue
    told = f"there is neither a tokeniser nor an image processor in {str(name)!r}"
    require(bool(found), f"{told}: give it, processor=…")
    both = _Both(*found) if len(found) == len(KINDS) else found[0]
    return model.to("cuda") if torch.cuda.is_available() else model, both
