"""What a diffusion pipeline has in its layers while it draws: `Diffusion(pipeline).record(prompts)`.

Any pipeline of diffusers with a `unet` or a `transformer` will do; those of Stable Diffusion 1.5, XL and 3 and of FLUX
are tested. Layers are read at fractions of the way from noise to image, and text encoders along with them.

By default the conditional half of a guided batch is read and the unconditional one only if asked for, steps are counted
from 0 for each image, and padding is no part of a text. `paper=True` takes features as the paper's image experiments
did (arXiv 2507.07207, section on image generation), with what went wrong there:
- a step is called by the one that a callback last told as done: off by one, and at the first step of an image it is the
  last step of the image before. The first image has no last step; where one is needed its latest is taken.
- both halves of a guided batch are averaged: half of what is read is of no prompt.
- text encoders are averaged over all positions, padding too.
- all steps are averaged (or, with `join="concatenate"`, put side by side); layers are resnets, attention, feed-forward
  and the mid block, or all transformer blocks.
The best layer was then chosen on test combinations, which `Decodability` does not do: it chooses by cross-validation.
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
from recombine.basics.optional_deps import library
from recombine.basics.suggest import nearest
from recombine.probe import batch as batching
from recombine.probe.copies import to_cpu
from recombine.probe.denoising import ALL_STEPS, HALVES, Pass, gather
from recombine.probe.layers import choose
from recombine.probe.pool import Pool, pick
from recombine.probe.prompts import Prompts, judge
from recombine.probe.recorder import MAX_MEMORY
from recombine.probe.store import Store

COMPONENTS = {
    "unet": ["down_blocks.*", "mid_block", "up_blocks.*"],
    "transformer": ["transformer_blocks.*", "single_transformer_blocks.*"],
}
PUBLISHED = {
    "unet": ["**.resnets.*", "**.attn1", "**.attn2", "**.ff", "mid_block"]
}  # the paper's; blocks elsewhere
FRACTIONS = (0.1, 0.5, 0.9)
OURS = ("prompt", "generator", "num_images_per_prompt", "return_dict")  # of a pipeline's call


class Recording(NamedTuple):
    """What was recorded, an entry for each image: all seeds of the first prompt, then those of the second."""

    activations: dict[str, np.ndarray]
    images: list[Any]  # or their files
    prompts: np.ndarray  # numbers
    seeds: np.ndarray
    factors: pd.DataFrame | None = None  # these three where the prompts are `Prompts`
    held_out: np.ndarray | None = None
    verdicts: pd.DataFrame | None = None  # where a judge looked


class Diffusion:
    """Records a pipeline of diffusers, or the one in a folder or of a name on the hub, while it draws.

    `fractions` of the way from noise (0) to image (1), or "all" steps; `join` keeps them apart ("each": `layer@0.5`),
    averages them ("mean") or puts them side by side ("concatenate"). `halves` of a guided batch: the conditional one,
    and the unconditional one if named (`layer@0.5/unconditional`). `text=False` leaves text encoders out.
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
        self.component = component or _component(self.pipeline)
        self.network: Any = getattr(self.pipeline, self.component, None)
        told = f"this pipeline has no {self.component!r}"
        require(
            isinstance(self.network, torch.nn.Module),
            f"{told}: name its denoising network, component='unet' say",
        )
        told, undo = f"the {self.component} is compiled", f"pipeline.{self.component}._orig_mod"
        remedy = f"record the pipeline as it was, pipeline.{self.component} = {undo}"
        require(
            not hasattr(self.network, "_orig_mod"),
            f"{told}, and its layers cannot be read: {remedy}",
        )
        if layers is None:
            layers = (PUBLISHED if paper else COMPONENTS).get(self.component) or COMPONENTS[
                "transformer"
            ]
            there = {name for name, _ in self.network.named_children()} | {"**"}
            layers = [one for one in layers if one.split(".")[0] in there]
        self.modules = choose(self.network, layers)
        self.fractions = fractions or (ALL_STEPS if paper else FRACTIONS)
        require(
            _shares(self.fractions),
            f"fractions must be numbers from 0 to 1, or 'all', got {fractions!r}",
        )
        self.join = join or ("mean" if paper else "each")
        fine = self.join in ("each", "mean", "concatenate")
        require(fine, f"join must be 'each', 'mean' or 'concatenate', got {join!r}")
        halves = [halves] if isinstance(halves, str) else list(halves)
        require(
            bool(halves) and set(halves) <= set(HALVES),
            f"halves must be of {HALVES}, got {halves!r}",
        )
        self.pool: Pool = pool
        self.halves, self.text, self.paper = tuple(halves), text, paper
        self.max_memory, self.folder, self.progress = max_memory, folder, progress
        self._pass: Pass | None = None

    def record(
        self,
        prompts: Prompts | Sequence[str],
        seeds: Sequence[int] = (0,),
        batch_size: int = 1,
        judging: Callable[[Any], Any] | None = None,
        keep: bool | str | Path = True,
        **call: Any,
    ) -> Recording:
        """Draw an image for every prompt and seed, and record on the way.

        `call` is handed to the pipeline (`num_inference_steps`, `guidance_scale`, `height`, …). A judge, any function
        of an image, is asked at once, so that images need not be kept; `keep` may be a folder to write them to.
        """
        texts = (
            prompts.texts
            if isinstance(prompts, Prompts)
            else [prompts]
            if isinstance(prompts, str)
            else [*prompts]
        )
        told = f"seeds must be a list of whole numbers, range(2) say, got {seeds!r}"
        require(isinstance(seeds, Iterable) and not isinstance(seeds, str), told)
        seeds = list(seeds)
        require(
            bool(texts) and bool(seeds),
            "there is nothing to draw: give prompts and at least one seed",
        )
        require(batch_size > 0, f"batch_size must be at least 1, got {batch_size}")
        ours = next((name for name in OURS if name in call), None)
        require(
            ours is None,
            f"{ours} is set by record itself: leave it out, and give prompts and seeds",
        )
        self._refuse_unknown(call)
        factors = prompts.factors if isinstance(prompts, Prompts) else None
        require(
            judging is None or factors is not None,
            "a judge needs to know what was asked: give Prompts",
        )
        samples = list(itertools.product(range(len(texts)), seeds))
        numbers, of_seed = np.array(samples).T
        num_batches = -(-len(samples) // batch_size)
        store = Store(
            self.max_memory, None if self.folder is None else Path(self.folder), num_batches
        )
        images, seen, late = [], [], 0
        with (
            self._hooked(batch_size),
            Meter("drawing, images", len(samples), self.progress) as meter,
        ):
            for start in range(0, len(samples), batch_size):
                some = samples[start : start + batch_size]
                drawn, done = self._draw(
                    [texts[number] for number, _ in some], [seed for _, seed in some], late, call
                )
                late = done.late or 0
                store.add(to_cpu(gather(done, list(self.modules), self.join, self.halves)))
                seen += [None if judging is None else judging(image) for image in drawn]
                images += _kept(drawn, keep, start)
                meter.advance(len(some))
        if not isinstance(prompts, Prompts):
            return Recording(store.arrays(), images, numbers, of_seed)
        asked = prompts.factors.iloc[numbers].reset_index(drop=True)
        verdicts = None if judging is None else judge(seen, lambda found: found, asked)
        return Recording(
            store.arrays(), images, numbers, of_seed, asked, prompts.held_out[numbers], verdicts
        )

    def _draw(
        self, texts: list[str], seeds: list[int], late: int, call: dict[str, Any]
    ) -> tuple[list[Any], Pass]:
        usual = _parameters(self.pipeline).get("true_cfg_scale")
        twice = (
            call.get("true_cfg_scale", usual or 1) > 1 and call.get("negative_prompt") is not None
        )
        self._pass = Pass(
            self.pipeline, len(texts), self.fractions, twice, late if self.paper else None
        )
        alike = {
            name: text for name, text in call.items() if "prompt" in name and isinstance(text, str)
        }
        call = call | {name: [text] * len(texts) for name, text in alike.items()}
        generators = [
            torch.Generator().manual_seed(int(seed)) for seed in seeds
        ]  # no image depends on its neighbours
        drawn = self.pipeline(prompt=texts, generator=generators, **call).images
        self._pass.finish(self.component)
        return list(drawn), self._pass

    @contextlib.contextmanager
    def _hooked(self, batch_size: int) -> Iterator[None]:
        shown = getattr(self.pipeline, "_progress_bar_config", None)
        parts = [part for part in vars(self.pipeline).values() if isinstance(part, torch.nn.Module)]
        modes = {module: module.training for part in parts for module in part.modules()}
        handles: list[Any] = []
        try:
            handles.append(
                self.network.register_forward_pre_hook(lambda *_: self._under_way.begin())
            )
            for name, module in self.modules.items():
                handles.append(module.register_forward_hook(self._catch(name)))
            for name, encoder, tokenizer in _encoders(self.pipeline) if self.text else ():
                end = getattr(tokenizer, "eos_token_id", None)
                handles.append(
                    encoder.register_forward_hook(self._read(name, end), with_kwargs=True)
                )
            self.pipeline.set_progress_bar_config(disable=True)
            for part in parts:  # what is being trained is read without its dropout
                part.eval()
            yield
        except Exception as error:
            reason = batching.explain(error, self.network, batch_size, set())
            if reason is None:
                raise
            raise InputError(reason) from error
        finally:
            for handle in handles:
                handle.remove()
            for module, mode in modes.items():
                module.training = mode
            self._pass = None
            self.pipeline.set_progress_bar_config(**(shown or {}))

    @property
    def _under_way(self) -> Pass:
        require(
            self._pass is not None,
            "the pipeline is called by someone else while it is recorded: wait for the end",
        )
        return self._pass  # pyright: ignore[reportReturnType]

    def _catch(self, name: str) -> Callable[..., None]:
        return lambda module, args, output: self._under_way.catch(name, module, output, self.pool)

    def _read(self, name: str, end: int | None) -> Callable[..., None]:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            ids = args[0] if args else kwargs.get("input_ids")
            self._under_way.read(name, pick(output), ids, end, self.pool)

        return hook

    def _refuse_unknown(self, call: dict[str, Any]) -> None:
        """Some pipelines take anything by name: a misspelt option would be passed over."""
        known = _parameters(self.pipeline)
        strange = next((name for name in call if name not in known), None)
        told = f"{type(self.pipeline).__name__} has no option {strange!r}"
        require(strange is None or not known, f"{told}: {nearest(str(strange), known)}")


def _load(name: str | Path) -> Any:
    """A pipeline with its weights, in half precision where there is a GPU."""
    diffusers = library("diffusers")
    gpu = torch.cuda.is_available()
    try:
        found: Any = diffusers.DiffusionPipeline.from_pretrained(
            str(name), dtype=torch.float16 if gpu else torch.float32
        )
    except (OSError, ValueError) as error:
        told = f"no pipeline can be loaded from {str(name)!r} ({str(error).splitlines()[0]})"
        raise InputError(
            f"{told}: give a folder with a model_index.json, or a name on the hub"
        ) from error
    return found.to("cuda") if gpu else found


def _parameters(pipeline: Any) -> dict[str, Any]:
    """What the call of a pipeline, or of one that it is made from, takes by name, with defaults."""
    found: dict[str, Any] = {}
    for kind in type(pipeline).__mro__:
        if "__call__" in vars(kind):
            named = inspect.signature(vars(kind)["__call__"]).parameters.values()
            found |= {one.name: one.default for one in named if one.kind is not one.VAR_KEYWORD}
    return found


def _shares(fractions: Any) -> bool:
    if isinstance(fractions, str) or not isinstance(fractions, Iterable):
        return fractions == ALL_STEPS
    return all(isinstance(one, Real) and 0 <= float(one) <= 1 for one in fractions)


def _component(pipeline: Any) -> str:
    found = [
        name for name in COMPONENTS if isinstance(getattr(pipeline, name, None), torch.nn.Module)
    ]
    told = f"{type(pipeline).__name__} has neither a unet nor a transformer"
    require(bool(found), f"{told}: give a pipeline of diffusers, or name the component")
    return found[0]


def _encoders(pipeline: Any) -> Iterator[tuple[str, Any, Any]]:
    for number in ("", "_2", "_3"):
        encoder = getattr(pipeline, f"text_encoder{number}", None)
        if encoder is not None:
            yield f"text_encoder{number}", encoder, getattr(pipeline, f"tokenizer{number}", None)


def _kept(images: list[Any], keep: bool | str | Path, start: int) -> list[Any]:
    if isinstance(keep, bool):
        return images if keep else []
    folder = Path(keep)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{start + number:06d}.png" for number in range(len(images))]
    fine = all(hasattr(image, "save") for image in images)
    require(
        fine,
        "only images can be kept in a folder: leave out output_type, or set keep to True or False",
    )
    for image, file in zip(images, files, strict=True):
        image.save(file)
    return files
