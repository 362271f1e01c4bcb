"""Activations of a text or vision model of transformers: `Pretrained("folder").record(texts)`.

Texts are padded on the right, where padding does not change what a real token attends to: on the
left it would shift the positions of models that count them from the start. Only real tokens are
pooled; "last" is the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from recombine.basics.errors import InputError, require
from recombine.basics.optional_deps import import_library
from recombine.basics.suggest import did_you_mean
from recombine.probe.layer_selection import block_patterns
from recombine.probe.pooling import Pool
from recombine.probe.recorder import Recorder

NO_LIMIT = 1_000_000  # tokens, for models without a known limit
# The classes that prepare inputs, and how the names of their files begin.
PROCESSOR_FILES = {
    "AutoTokenizer": ("tokenizer", "vocab", "spiece"),
    "AutoImageProcessor": ("preprocessor", "processor"),
}
TOWERS = ("text_model", "vision_model")  # of models that compare texts with images


class Pretrained:
    """Records a model of transformers.

    The model is an object with its tokenizer or image processor, a folder, or a name on the hub. By
    default all of its blocks are recorded. `part` names the module to record; by default that is
    the whole model, or the encoder of a model with an encoder and a decoder. Models with two
    towers, such as CLIP, need it. Further options are those of `Recorder`.
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
            name = model
            model = _load_model(name)
            processor = processor or _load_processor(name)
        require(
            callable(processor) or isinstance(processor, _TokenizerAndImageProcessor),
            "the model has no tokenizer or image processor: provide it with processor=",
        )
        self.model: Any = _select_part(model, part)
        self.processor: Any = processor
        self.recorder = Recorder(self.model, layers or block_patterns(self.model), pool, **options)

    @property
    def groups(self) -> np.ndarray:
        """The sample that each row of the activations belongs to, for `pool="every"`."""
        return self.recorder.groups

    def record(self, samples: Sequence[Any], batch_size: int = 32) -> dict[str, np.ndarray]:
        """The activations of texts or images by layer: samples x features."""
        require(
            not isinstance(samples, (str, bytes)),
            f"samples must be a list of texts or images, got {type(samples).__name__}: put it into "
            "a list",
        )
        samples = list(samples)
        require(bool(samples), "there is no sample to record: provide at least one text or image")
        require(batch_size > 0, f"batch_size must be at least 1, got {batch_size}")
        make_batch = self._text_batch if isinstance(samples[0], str) else self._image_batch
        return self.recorder.record(_LazyBatches(samples, batch_size, make_batch))

    def _image_batch(self, images: list[Any], start: int) -> Any:
        prepare: Any = getattr(self.processor, "image_processor", self.processor)
        return dict(prepare(images=images, return_tensors="pt"))

    def _text_batch(self, texts: list[str], start: int) -> Any:
        """Token ids and a mask, padded on the right; `start` is the number of the first text."""
        tokenizer: Any = getattr(self.processor, "tokenizer", self.processor)
        tokens = dict(tokenizer(texts))
        lengths = [len(ids) for ids in tokens["input_ids"]]
        self._check_lengths(lengths, start, self._max_tokens(tokenizer))
        fill_values = {"input_ids": getattr(tokenizer, "pad_token_id", None) or 0}
        batch = {}
        for name, rows in tokens.items():
            padded = np.full((len(rows), max(lengths)), fill_values.get(name, 0))
            for i, row in enumerate(rows):
                padded[i, : len(row)] = row
            batch[name] = torch.as_tensor(padded)
        mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
        return batch | {"attention_mask": torch.as_tensor(mask.astype(np.int64))}

    def _check_lengths(self, lengths: list[int], start: int, max_tokens: int) -> None:
        for number, length in enumerate(lengths, start):
            require(length > 0, f"text {number} has no token: leave it out")
            require(
                length <= max_tokens,
                f"text {number} has {length} tokens and the model takes {max_tokens}: shorten it",
            )

    def _max_tokens(self, tokenizer: Any) -> int:
        limits = [
            getattr(tokenizer, "model_max_length", None),
            getattr(self.model.config, "max_position_embeddings", None),
            NO_LIMIT,
        ]
        return int(min(limit for limit in limits if limit is not None and limit > 0))  # -1: none


class _TokenizerAndImageProcessor(NamedTuple):
    """The processors of a model of texts and images."""

    tokenizer: Any
    image_processor: Any


def _select_part(model: Any, part: str | None) -> Any:
    """The module of a model that is recorded."""
    require(
        isinstance(model, torch.nn.Module),
        "model must be a model of transformers, its folder or its name on the hub, got "
        f"{type(model).__name__}: record other models with Recorder or Decodability",
    )
    if part is not None:
        modules = dict(model.named_modules())
        require(
            part in modules,
            f"the model has no part {part!r}: {did_you_mean(part, dict(model.named_children()))}",
        )
        return modules[part]
    towers = [name for name in TOWERS if isinstance(getattr(model, name, None), torch.nn.Module)]
    require(
        len(towers) < 2,
        f"{type(model).__name__} has separate modules for texts and images: set "
        f"part={' or part='.join(map(repr, towers))}",
    )
    config = getattr(model, "config", None)
    return model.get_encoder() if getattr(config, "is_encoder_decoder", False) else model


class _LazyBatches:
    """Batches that are made when they are needed; their number is known in advance."""

    def __init__(
        self, samples: list[Any], batch_size: int, make_batch: Callable[[list[Any], int], Any]
    ):
        self.samples = samples
        self.batch_size = batch_size
        self.make_batch = make_batch

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.samples), self.batch_size):
            yield self.make_batch(self.samples[start : start + self.batch_size], start)


def _load_model(name: str | Path) -> Any:
    """A model with its weights, on a GPU if there is one."""
    transformers = import_library("transformers")
    try:
        model: Any = transformers.AutoModel.from_pretrained(str(name))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"cannot load a model from {str(name)!r} ({reason}): provide a folder with a "
            "config.json, or a name on the hub"
        ) from error
    return model.to("cuda") if torch.cuda.is_available() else model


def _load_processor(name: str | Path) -> Any:
    """The tokenizer, the image processor, or both."""
    transformers = import_library("transformers")
    folder = Path(name)
    file_names = [path.name for path in folder.iterdir()] if folder.is_dir() else None
    processors: list[Any] = []
    for kind, prefixes in PROCESSOR_FILES.items():
        # Without its files, transformers would make an empty tokenizer, which knows no word.
        if file_names is not None and not any(file.startswith(prefixes) for file in file_names):
            continue
        try:
            processors.append(getattr(transformers, kind).from_pretrained(str(name)))
        except (OSError, ValueError):  # most models have only one of the two
            continue
    require(
        bool(processors),
        f"there is neither a tokenizer nor an image processor in {str(name)!r}: provide it with "
        "processor=",
    )
    if len(processors) == len(PROCESSOR_FILES):
        return _TokenizerAndImageProcessor(*processors)
    return processors[0]
