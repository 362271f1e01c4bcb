"""Activations of a diffusion pipeline while it draws: `Diffusion(pipeline).record(prompts)`.

Any pipeline of diffusers with a `unet` or a `transformer` works; tests cover Stable Diffusion 1.5,
XL and 3 and FLUX. Layers are recorded at fractions of the way from noise to image. Text encoders
are recorded too.

By default the conditional half of a guided batch is recorded, and the unconditional one only on
request; steps are counted from 0 for each image; and padding is not part of a text. `paper=True`
takes features as the paper's image experiments did (arXiv 2507.07207, section on image generation),
errors included:

- A step is recorded under the number of the last step that a callback has reported as done. That is
  off by one, and for the first step of an image it is the last step of the image before. The first
  image has no last step; where one is needed, its latest is used.
- Both halves of a guided batch are averaged, so half of each feature belongs to no prompt.
- Text encoders are averaged over all positions, padding included.
- All steps are averaged (or, with `join="concatenate"`, concatenated). Layers are resnets,
  attention, feed-forward and the mid block of a unet, or all blocks of a transformer.

The paper then chose the best layer on test combinations. `Decodability` does not: it chooses by
cross-validation.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch

from recombine.basics.console import Meter
from recombine.basics.errors import InputError, require
from recombine.basics.optional_deps import import_library
from recombine.basics.suggest import did_you_mean
from recombine.probe import batching
from recombine.probe.activation_store import ActivationStore
from recombine.probe.denoising import ALL_STEPS, HALVES, PipelineCall
from recombine.probe.device_transfer import to_cpu
from recombine.probe.layer_selection import select_modules
from recombine.probe.pooling import EVERY, Pool, find_tensor
from recombine.probe.prompts import Prompts, judge
from recombine.probe.recorder import MAX_MEMORY

DEFAULT_LAYERS = {
    "unet": ["down_blocks.*", "mid_block", "up_blocks.*"],
    "transformer": ["transformer_blocks.*", "single_transformer_blocks.*"],
}
PAPER_LAYERS = {
    "unet": ["**.resnets.*", "**.attn1", "**.attn2", "**.ff", "mid_block"],
    "transformer": DEFAULT_LAYERS["transformer"],
}
DEFAULT_FRACTIONS = (0.1, 0.5, 0.9)
JOINS = ("each", "mean", "concatenate")
SET_BY_RECORD = ("prompt", "generator", "num_images_per_prompt", "return_dict")  # pipeline options


class Recording(NamedTuple):
    """The result of `Diffusion.record`, with one entry per image.

    All seeds of the first prompt come first, then those of the second, and so on. `factors`,
    `held_out` and `verdicts` are None unless the prompts are `Prompts`; `verdicts` also needs a
    judge.
    """

    activations: dict[str, np.ndarray]
    images: list[Any]  # or their files
    prompts: np.ndarray  # the number of each image's prompt
    seeds: np.ndarray
    factors: pd.DataFrame | None = None
    held_out: np.ndarray | None = None
    verdicts: pd.DataFrame | None = None


class Diffusion:
    """Records a diffusers pipeline, provided as an object, a folder or a name on the hub.

    - `component`: the pipeline's denoising network; `layers`: names or patterns of its modules
    - `fractions`: where to record, from noise (0) to image (1), or "all" steps
    - `join`: keep fractions separate ("each": `layer@0.5`), average ("mean") or "concatenate" them
    - `halves`: of a guided batch; the unconditional one is named `layer@0.5/unconditional`
    - `text`: whether to record text encoders
    - `paper`: take features as in the paper, see the module's docstring
    - `pool`, `max_memory`, `folder`, `progress`: as for `Recorder`
    """

    def __init__(
        self,
        pipeline: Any,
        component: str | None = None,
        layers: Any = None,
        fractions: Sequence[float] | Literal["all"] | None = None,
        pool: Pool = "mean",
        *,
        join: Literal["each", "mean", "concatenate"] | None = None,
        halves: Sequence[str] = HALVES[:1],
        text: bool = True,
        paper: bool = False,
        max_memory: int = MAX_MEMORY,
        folder: str | Path | None = None,
        progress: bool = True,
    ):
        self.pipeline = _load(pipeline) if isinstance(pipeline, (str, Path)) else pipeline
        self.component = component or _find_component(self.pipeline)
        self.network = _network(self.pipeline, self.component)
        if layers is None:
            layers = _default_layers(self.network, self.component, paper)
        self.modules = select_modules(self.network, layers)
        self.fractions = fractions or (ALL_STEPS if paper else DEFAULT_FRACTIONS)
        require(
            _are_fractions(self.fractions),
            f"fractions must be numbers from 0 to 1, or 'all', got {fractions!r}",
        )
        self.join = join or ("mean" if paper else "each")
        require(self.join in JOINS, f"join must be 'each', 'mean' or 'concatenate', got {join!r}")
        halves = [halves] if isinstance(halves, str) else list(halves)
        require(
            bool(halves) and set(halves) <= set(HALVES),
            f"halves must be 'conditional', 'unconditional' or both, got {halves!r}",
        )
        self.halves = tuple(halves)
        require(
            pool != EVERY,
            "pool='every' is for Recorder and Pretrained: Diffusion has one row per image",
        )
        self.pool: Pool = pool
        self.text = text
        self.paper = paper
        self.max_memory = max_memory
        self.folder = None if folder is None else Path(folder)
        self.progress = progress
        self._call: PipelineCall | None = None  # while the pipeline draws

    def record(
        self,
        prompts: Prompts | Sequence[str],
        seeds: Sequence[int] = (0,),
        batch_size: int = 1,
        judging: Callable[[Any], Any] | None = None,
        keep: bool | str | Path = True,
        **call: Any,
    ) -> Recording:
        """Draw an image for every prompt and seed, and record layers meanwhile.

        `call` has options for the pipeline (`num_inference_steps`, `guidance_scale`, `height`, …).
        A judge is any function of an image. It judges each image at once, so that images need not
        be kept. `keep` is whether to return images, or a folder to save them in.
        """
        texts = _texts(prompts)
        seeds = _check_seeds(seeds)
        require(bool(texts), "there is nothing to draw: provide at least one prompt")
        require(batch_size > 0, f"batch_size must be at least 1, got {batch_size}")
        require(
            judging is None or isinstance(prompts, Prompts),
            "a judge needs the concepts of each prompt: provide Prompts",
        )
        self._check_call_options(call)
        samples = list(itertools.product(range(len(texts)), seeds))
        num_batches = -(-len(samples) // batch_size)
        store = ActivationStore(self.max_memory, self.folder, num_batches)
        images: list[Any] = []
        judgments: list[Any] = []
        reported_step = 0
        meter = Meter("drawing, images", len(samples), self.progress)
        with self._hooks(batch_size), meter:
            for start in range(0, len(samples), batch_size):
                batch = samples[start : start + batch_size]
                batch_texts = [texts[number] for number, _ in batch]
                batch_seeds = [seed for _, seed in batch]
                drawn, done = self._draw(batch_texts, batch_seeds, reported_step, call)
                reported_step = done.reported_step or 0
                rows = done.collect_rows(list(self.modules), self.join, self.halves)
                store.add(to_cpu(rows))
                if judging is not None:
                    judgments += [judging(image) for image in drawn]
                images += _keep_images(drawn, keep, start)
                meter.advance(len(batch))
        numbers, seed_of_image = np.array(samples).T
        recording = Recording(store.arrays(), images, numbers, seed_of_image)
        if not isinstance(prompts, Prompts):
            return recording
        return _with_factors(recording, prompts, None if judging is None else judgments)

    def _draw(
        self, texts: list[str], seeds: list[int], reported_step: int, call: dict[str, Any]
    ) -> tuple[list[Any], PipelineCall]:
        """Draw one batch: the images, and what was recorded."""
        # With a true_cfg_scale above 1, pipelines call the network again for the negative prompt.
        default_scale = _call_parameters(self.pipeline).get("true_cfg_scale") or 1
        scale = call.get("true_cfg_scale", default_scale)
        has_negative = scale > 1 and call.get("negative_prompt") is not None
        self._call = PipelineCall(
            self.pipeline,
            len(texts),
            self.fractions,
            calls_per_step=2 if has_negative else 1,
            reported_step=reported_step if self.paper else None,
        )
        options = dict(call)
        for name, value in call.items():
            if "prompt" in name and isinstance(value, str):
                options[name] = [value] * len(texts)
        # One generator per image, so that no image depends on the others of its batch.
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        images = self.pipeline(prompt=texts, generator=generators, **options).images
        self._call.check_num_calls(self.component)
        return list(images), self._call

    @contextlib.contextmanager
    def _hooks(self, batch_size: int) -> Iterator[None]:
        """Add hooks, set evaluation mode and hide the pipeline's progress bar; then undo it all."""
        progress_bar = getattr(self.pipeline, "_progress_bar_config", None)
        networks = [
            part for part in vars(self.pipeline).values() if isinstance(part, torch.nn.Module)
        ]
        modes = {module: module.training for network in networks for module in network.modules()}
        handles: list[Any] = []
        try:
            self._register_hooks(handles)
            self.pipeline.set_progress_bar_config(disable=True)
            for network in networks:
                network.eval()
            yield
        except Exception as error:
            explanation = batching.explain_error(error, self.network, batch_size, set())
            if explanation is None:
                raise
            raise InputError(explanation) from error
        finally:
            for handle in handles:
                handle.remove()
            for module, mode in modes.items():
                module.training = mode
            self._call = None
            self.pipeline.set_progress_bar_config(**(progress_bar or {}))

    def _register_hooks(self, handles: list[Any]) -> None:
        """Register all hooks; each handle is added to the list at once, in case the next fails."""
        handles.append(
            self.network.register_forward_pre_hook(
                lambda *_: self._current_call.start_network_call()
            )
        )
        for name, module in self.modules.items():
            handles.append(module.register_forward_hook(self._layer_hook(name)))
        if self.text:
            for name, encoder, tokenizer in _text_encoders(self.pipeline):
                end_token = getattr(tokenizer, "eos_token_id", None)
                hook = self._text_hook(name, end_token)
                handles.append(encoder.register_forward_hook(hook, with_kwargs=True))

    @property
    def _current_call(self) -> PipelineCall:
        if self._call is None:
            raise InputError(
                "the pipeline was called from elsewhere while it is being recorded: wait until "
                "recording ends"
            )
        return self._call

    def _layer_hook(self, name: str) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: Any) -> None:
            self._current_call.record_layer(name, module, output, self.pool)

        return hook

    def _text_hook(self, name: str, end_token: int | None) -> Callable[..., None]:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            ids = args[0] if args else kwargs.get("input_ids")
            self._current_call.record_text(name, find_tensor(output), ids, end_token, self.pool)

        return hook

    def _check_call_options(self, call: dict[str, Any]) -> None:
        """Refuse unknown options: some pipelines accept and ignore any keyword."""
        known = _call_parameters(self.pipeline)
        pipeline_name = type(self.pipeline).__name__
        for name in call:
            require(
                name not in SET_BY_RECORD,
                f"record sets {name} itself: leave it out, and provide prompts and seeds",
            )
            require(
                name in known or not known,
                f"{pipeline_name} has no option {name!r}: {did_you_mean(name, known)}",
            )


def _load(name: str | Path) -> Any:
    """A pipeline with its weights, in half precision on a GPU if there is one."""
    diffusers = import_library("diffusers")
    has_gpu = torch.cuda.is_available()
    dtype = torch.float16 if has_gpu else torch.float32
    try:
        pipeline: Any = diffusers.DiffusionPipeline.from_pretrained(str(name), dtype=dtype)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"cannot load a pipeline from {str(name)!r} ({reason}): provide a folder with a "
            "model_index.json, or a name on the hub"
        ) from error
    return pipeline.to("cuda") if has_gpu else pipeline


def _find_component(pipeline: Any) -> str:
    for name in DEFAULT_LAYERS:
        if isinstance(getattr(pipeline, name, None), torch.nn.Module):
            return name
    raise InputError(
        f"{type(pipeline).__name__} has neither a unet nor a transformer: provide a pipeline of "
        "diffusers, or name the component"
    )


def _network(pipeline: Any, component: str) -> Any:
    """The denoising network of a pipeline."""
    network = getattr(pipeline, component, None)
    require(
        isinstance(network, torch.nn.Module),
        f"this pipeline has no {component!r}: name its denoising network, for example "
        "component='unet'",
    )
    require(
        not hasattr(network, "_orig_mod"),
        f"the {component} is compiled, so its layers cannot be recorded: undo that with "
        f"pipeline.{component} = pipeline.{component}._orig_mod",
    )
    return network


def _default_layers(network: torch.nn.Module, component: str, paper: bool) -> list[str]:
    """The default patterns that this network has modules for."""
    by_component = PAPER_LAYERS if paper else DEFAULT_LAYERS
    patterns = by_component.get(component, DEFAULT_LAYERS["transformer"])
    children = {name for name, _ in network.named_children()}
    first_names = {pattern: pattern.split(".")[0] for pattern in patterns}
    return [pattern for pattern in patterns if first_names[pattern] in children | {"**"}]


def _texts(prompts: Prompts | Sequence[str]) -> list[str]:
    if isinstance(prompts, Prompts):
        return prompts.texts
    return [prompts] if isinstance(prompts, str) else list(prompts)


def _check_seeds(seeds: Any) -> list[int]:
    require(
        isinstance(seeds, Iterable) and not isinstance(seeds, str),
        f"seeds must be a list of whole numbers such as range(2), got {seeds!r}",
    )
    seeds = list(seeds)
    require(bool(seeds), "there is nothing to draw: provide at least one seed")
    return seeds


def _with_factors(recording: Recording, prompts: Prompts, judgments: list[Any] | None) -> Recording:
    """Add factors, held-out prompts and verdicts to a recording of `Prompts`."""
    factors = prompts.factors.iloc[recording.prompts].reset_index(drop=True)
    held_out = prompts.held_out[recording.prompts]
    verdicts = None
    if judgments is not None:
        verdicts = judge(judgments, lambda judgment: judgment, factors)
    return recording._replace(factors=factors, held_out=held_out, verdicts=verdicts)


def _call_parameters(pipeline: Any) -> dict[str, Any]:
    """The keyword parameters of a pipeline's call, base classes included, with their defaults."""
    parameters: dict[str, Any] = {}
    for cls in type(pipeline).__mro__:
        if "__call__" in vars(cls):
            signature = inspect.signature(vars(cls)["__call__"])
            for parameter in signature.parameters.values():
                if parameter.kind is not parameter.VAR_KEYWORD:
                    parameters[parameter.name] = parameter.default
    return parameters


def _are_fractions(fractions: Any) -> bool:
    if isinstance(fractions, str) or not isinstance(fractions, Iterable):
        return fractions == ALL_STEPS
    return all(isinstance(value, Real) and 0 <= float(value) <= 1 for value in fractions)


def _text_encoders(pipeline: Any) -> Iterator[tuple[str, Any, Any]]:
    """The text encoders of a pipeline: name, encoder, tokenizer."""
    for suffix in ("", "_2", "_3"):
        encoder = getattr(pipeline, f"text_encoder{suffix}", None)
        if encoder is not None:
            yield f"text_encoder{suffix}", encoder, getattr(pipeline, f"tokenizer{suffix}", None)


def _keep_images(images: list[Any], keep: bool | str | Path, start: int) -> list[Any]:
    """The images, their files if they are saved in a folder, or nothing."""
    if isinstance(keep, bool):
        return images if keep else []
    require(
        all(hasattr(image, "save") for image in images),
        "only images can be saved in a folder: leave out output_type, or set keep to True or False",
    )
    folder = Path(keep)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{start + number:06d}.png" for number in range(len(images))]
    for image, file in zip(images, files, strict=True):
        image.save(file)
    return files
