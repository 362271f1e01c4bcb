"""One call of an image pipeline as hooks see it: the step, and the halves of a guided batch.

Steps are counted where the network is called, so they are right for any scheduler, and start at 0
with every call of the pipeline. With guidance, a batch holds the unconditional half first and then
the conditional one. Pipelines with a `true_cfg_scale` instead call the network twice per step,
first with the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recombine.basics.errors import InputError, require
from recombine.probe.pooling import Pool, find_tensor, pool_output

HALVES = ("conditional", "unconditional")
BOTH_HALVES = "both"  # their average, in the paper's mode
ALL_STEPS = "all"


class PipelineCall:
    """Records one call of the pipeline, for `num_images` images.

    `calls_per_step` is how often the pipeline calls the network per step. In the paper's mode,
    `reported_step` is the last step that a callback has reported as done, and each step is recorded
    under that number. Otherwise it is None.
    """

    def __init__(
        self,
        pipeline: Any,
        num_images: int,
        fractions: Sequence[float] | str,
        calls_per_step: int = 1,
        reported_step: int | None = None,
    ):
        self.pipeline = pipeline
        self.num_images = num_images
        self.fractions = fractions
        self.calls_per_step = calls_per_step
        self.reported_step = reported_step
        self.num_calls = 0
        self.num_steps = 0
        self.current_step: int | None = None  # None if nothing is recorded in the current step
        self.half = HALVES[0]
        self.layers_run: set[str] = set()  # in the current step
        self.rows: dict[tuple[str, int], dict[str, Tensor]] = {}  # by layer and step, then by half
        self.texts: dict[str, Tensor] = {}  # by text encoder

    @property
    def is_paper_mode(self) -> bool:
        """Whether features are taken as in the paper's image experiments."""
        return self.reported_step is not None

    @property
    def recorded_steps(self) -> list[int]:
        """The steps that are recorded."""
        if isinstance(self.fractions, str):
            return list(range(self.num_steps))
        return [round(fraction * (self.num_steps - 1)) for fraction in self.fractions]

    def start_network_call(self) -> None:
        """Note that the network is called, and find out which step this is."""
        if not self.num_calls:
            # Fewer than the scheduler's if the pipeline skips steps, as image-to-image does.
            planned = getattr(self.pipeline, "num_timesteps", None)
            self.num_steps = planned or len(self.pipeline.scheduler.timesteps)
        step, half = divmod(self.num_calls, self.calls_per_step)
        self.half = HALVES[half]
        number = step if self.reported_step is None else self.reported_step
        is_recorded = self.fractions == ALL_STEPS or number in self.recorded_steps
        self.current_step = number if is_recorded else None
        self.num_calls += 1
        if self.is_paper_mode and self.num_calls % self.calls_per_step == 0:
            self.reported_step = step  # a callback would report this step when it is done
        self.layers_run = set()

    def record_layer(self, name: str, module: nn.Module, output: Any, pool: Pool) -> None:
        """Record the output of a layer, if the current step is recorded."""
        if self.current_step is None:
            return
        require(
            name not in self.layers_run,
            f"layer {name!r} ran twice in one step: choose a layer inside it",
        )
        self.layers_run.add(name)
        tensor = _image_tensor(module, output)
        if tensor is None:
            raise InputError(
                f"layer {name!r} returned {type(output).__name__} without a tensor: choose a layer "
                "inside it"
            )
        rows = pool_output(name, tensor, pool)
        halves = self._split_halves(rows)
        num_rows = len(next(iter(halves.values())))
        require(
            num_rows == self.num_images,
            f"layer {name!r} returned {len(rows)} rows for {self.num_images} images: choose a "
            "layer whose first axis is the image",
        )
        self.rows.setdefault((name, self.current_step), {}).update(halves)

    def _split_halves(self, rows: Tensor) -> dict[str, Tensor]:
        is_guided = bool(getattr(self.pipeline, "do_classifier_free_guidance", False))
        if is_guided and self.calls_per_step == 1 and len(rows) == 2 * self.num_images:
            return {
                "unconditional": rows[: self.num_images],
                "conditional": rows[self.num_images :],
            }
        return {self.half: rows}

    def record_text(
        self, encoder: str, tensor: Tensor | None, ids: Any, end_token: int | None, pool: Pool
    ) -> None:
        """Record a text encoder's first output, the prompts; later ones are negative prompts."""
        if encoder in self.texts or tensor is None:
            return
        mask = None
        has_ids = isinstance(ids, Tensor) and ids.shape == tensor.shape[:2]
        if has_ids and end_token is not None and not self.is_paper_mode:
            is_end = (ids == end_token).int()
            mask = is_end.cumsum(dim=1) - is_end == 0  # up to the first end token; then padding
        self.texts[encoder] = pool_output(encoder, tensor, pool, mask=mask)

    def check_num_calls(self, component: str) -> None:
        """After the call, check that the network was called as often as there are steps."""
        expected = self.num_steps * self.calls_per_step
        problem = (
            f"the {component} was called {self.num_calls} times in {self.num_steps} steps of the "
            "scheduler"
        )
        require(
            self.num_calls <= expected,
            f"{problem}: turn off options that call it more often, such as skip-layer guidance",
        )
        require(
            self.num_calls == expected,
            f"{problem}: it is not the denoising network, or steps are skipped; name another "
            "component, or turn off skipping",
        )

    def collect_rows(
        self, layers: Sequence[str], join: str, halves: Sequence[str]
    ) -> dict[str, Tensor]:
        """The rows of all layers by name; steps are separate, averaged or concatenated."""
        collected: dict[str, Tensor] = dict(self.texts)
        steps = list(zip(self._step_labels(), self.recorded_steps, strict=True))
        for name in layers:
            for half in (BOTH_HALVES,) if self.is_paper_mode else halves:
                suffix = "/unconditional" if half == "unconditional" else ""
                rows = {label: self._rows_of(name, step, half) for label, step in steps}
                if join == "concatenate":
                    collected[name + suffix] = torch.cat(list(rows.values()), dim=1)
                elif join == "mean":
                    recorded = [rows[label] for label, step in steps if (name, step) in self.rows]
                    collected[name + suffix] = torch.stack(recorded).mean(dim=0)
                else:
                    for label, of_step in rows.items():
                        collected[f"{name}@{label}{suffix}"] = of_step
        return collected

    def _step_labels(self) -> Sequence[float | str]:
        if isinstance(self.fractions, str):
            return [f"{step + 1}/{self.num_steps}" for step in self.recorded_steps]
        return self.fractions

    def _rows_of(self, name: str, step: int, half: str) -> Tensor:
        if (name, step) not in self.rows and self.is_paper_mode:
            # The first image has no last step in the paper's mode: its latest one is used.
            steps_of_layer = [other for layer, other in self.rows if layer == name]
            step = max(steps_of_layer, default=step)
        if (name, step) not in self.rows:
            raise InputError(f"layer {name!r} did not run in step {step + 1}: choose another layer")
        by_half = self.rows[name, step]
        if half == BOTH_HALVES:
            return torch.stack(list(by_half.values())).mean(dim=0)
        require(
            half in by_half,
            "there is no unconditional half without guidance: set guidance_scale above 1, or "
            "record only the conditional half",
        )
        return by_half[half]


def _image_tensor(module: nn.Module, output: Any) -> Tensor | None:
    """The image's tensor in a layer's output.

    Blocks with a text stream and an image stream return the text first; their attention layers
    return the image first.
    """
    has_two_streams = type(module).__name__.endswith("TransformerBlock")
    if isinstance(output, tuple) and has_two_streams:
        output = output[::-1]
    return find_tensor(output)
