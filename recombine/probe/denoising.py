"""One call of an image pipeline, as hooks see it: which step is under way, and which half of the batch is which.

The step is counted where the network is called, so that it is right whatever the scheduler does, and it begins anew
with every call of the pipeline. With guidance a batch holds the unconditional half first and then the conditional one;
pipelines with a `true_cfg_scale` call the network twice a step instead, first with the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recombine.basics.errors import InputError, require
from recombine.probe.pool import Pool, pick, pooled

HALVES = ("conditional", "unconditional")
ALL_STEPS = "all"


class Pass:
    """What is caught during one call of the pipeline, for so many images.

    With `late`, the paper's mode, a step is known by what a callback told when the one before it was done: `late` is
    the last step that it had told.
    """

    def __init__(
        self,
        pipeline: Any,
        num: int,
        fractions: Sequence[float] | str,
        twice: bool,
        late: int | None = None,
    ):
        self.pipeline, self.num, self.fractions, self.twice, self.late = (
            pipeline,
            num,
            fractions,
            twice,
            late,
        )
        self.calls = self.num_steps = 0
        self.current: int | None = None  # the step under way, where it is wanted
        self.caught: dict[tuple[str, int], dict[str, Tensor]] = {}
        self.texts: dict[str, Tensor] = {}

    def begin(self) -> None:
        """The network is called."""
        if not self.calls:
            planned = getattr(
                self.pipeline, "num_timesteps", None
            )  # fewer than the scheduler's, from an image say
            self.num_steps = planned or len(self.pipeline.scheduler.timesteps)
        per_step = 1 + self.twice
        step, self.half = self.calls // per_step, HALVES[self.calls % per_step]
        label = step if self.late is None else self.late
        self.current = label if self.fractions == ALL_STEPS or label in self.wanted else None
        self.calls += 1
        if self.late is not None and self.calls % per_step == 0:
            self.late = step  # what the callback tells when this step is done
        self.ran: set[str] = set()

    @property
    def wanted(self) -> list[int]:
        """The steps at which something is recorded."""
        if isinstance(self.fractions, str):
            return list(range(self.num_steps))
        return [round(fraction * (self.num_steps - 1)) for fraction in self.fractions]

    def catch(self, name: str, module: nn.Module, output: Any, pool: Pool) -> None:
        """A layer put something out."""
        if self.current is None:
            return
        require(
            name not in self.ran, f"layer {name!r} ran twice in one step: choose a layer within it"
        )
        self.ran.add(name)
        tensor = _image(module, output)
        if tensor is None:
            raise InputError(
                f"layer {name!r} returned no tensor but {type(output).__name__}: choose a layer within it"
            )
        rows = pooled(name, tensor, pool)
        guided = bool(getattr(self.pipeline, "do_classifier_free_guidance", False))
        halves = {self.half: rows}
        if guided and not self.twice and len(rows) == 2 * self.num:
            halves = {"unconditional": rows[: self.num], "conditional": rows[self.num :]}
        num = len(next(iter(halves.values())))
        told = f"layer {name!r} gave {len(rows)} rows for {self.num} images"
        require(num == self.num, f"{told}: choose a layer whose first axis is the image")
        self.caught.setdefault((name, self.current), {}).update(halves)

    def finish(self, component: str) -> None:
        """The image is there: was the network called as often as there are steps?"""
        expected = self.num_steps * (1 + self.twice)
        told = f"the {component} was called {self.calls} times in {self.num_steps} steps of the scheduler"
        more = "turn off what calls it more often, skip-layer guidance say"
        fewer = "it is not what denoises, or steps are left out; name another component, or turn that off"
        require(self.calls == expected, f"{told}: {more if self.calls > expected else fewer}")

    def read(self, text: str, tensor: Tensor | None, ids: Any, end: int | None, pool: Pool) -> None:
        """A text encoder read something: the first time, the prompts; afterwards, what is to be avoided."""
        if text in self.texts or tensor is None:
            return
        mask = None
        if (
            self.late is None
            and isinstance(ids, Tensor)
            and end is not None
            and ids.shape == tensor.shape[:2]
        ):
            ends = (ids == end).int()
            mask = ends.cumsum(dim=1) - ends == 0  # up to the first end; what follows is padding
        self.texts[text] = pooled(text, tensor, pool, mask=mask)


def gather(
    done: Pass, layers: Sequence[str], join: str, halves: Sequence[str]
) -> dict[str, Tensor]:
    """The rows of all layers under their names: steps one by one, averaged or side by side."""
    found: dict[str, Tensor] = dict(done.texts)
    labels = done.fractions
    if isinstance(labels, str):
        labels = [f"{step + 1}/{done.num_steps}" for step in done.wanted]
    for name in layers:
        for half in halves if done.late is None else ("both",):
            end = "/unconditional" if half == "unconditional" else ""
            rows = {
                label: _half(done, name, step, half)
                for label, step in zip(labels, done.wanted, strict=True)
            }
            if join == "concatenate":
                found[name + end] = torch.cat(list(rows.values()), dim=1)
            elif join == "mean":
                there = [
                    label
                    for label, step in zip(labels, done.wanted, strict=True)
                    if (name, step) in done.caught
                ]
                found[name + end] = torch.stack([rows[label] for label in there]).mean(dim=0)
            else:
                found |= {f"{name}@{label}{end}": row for label, row in rows.items()}
    return found


def _half(done: Pass, name: str, step: int, half: str) -> Tensor:
    if (name, step) not in done.caught and done.late is not None:
        step = max((label for caught, label in done.caught if caught == name), default=step)
    if (name, step) not in done.caught:
        raise InputError(f"layer {name!r} did not run in step {step + 1}: choose another")
    caught = done.caught[name, step]
    if half == "both":
        return torch.stack(list(caught.values())).mean(dim=0)
    told = "there is no unconditional half without guidance"
    require(
        half in caught, f"{told}: set guidance_scale above 1, or ask for the conditional one only"
    )
    return caught[half]


def _image(module: nn.Module, output: Any) -> Tensor | None:
    """The tensor of the image. Blocks with two streams put out the text's first, and their attention the image's."""
    two = isinstance(output, tuple) and type(module).__name__.endswith("TransformerBlock")
    return pick(output[::-1] if two else output)
