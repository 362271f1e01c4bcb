"""What a run will cost: seconds per step from its shapes, by a model fitted to measured runs of one device.

    seconds of one run's step = c0 / runs per call + c1 + c2 flops + c3 bytes

The coefficients are what `recombine bench` fits and `cost.json` keeps, by kind of device. An evaluation counts as the
forward passes that it is and its diagnostics are worth. On another device the ratios between runs still hold, and
progress corrects the scale as it goes.
"""

import functools
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import nnls

from recombine.parts.muon import NUM_ITERATIONS
from recombine.parts.recipes.fast import Fast
from recombine.sweeps.run import Run, structure
from recombine.training import device
from recombine.training.program import fresh

DIAGNOSTIC = 3.5  # forward passes that a probe of every layer is worth: measured on 2 cores, at widths 32 to 512


class Work(NamedTuple):
    """What one training step of one run has to do, counted from shapes."""

    flops: float
    bytes: float

    @classmethod
    def of(cls, run: Run) -> "Work":
        """Count the products of a step and of its optimiser, and the numbers that pass through memory."""
        kind = structure(run)
        if kind not in _counted:
            _counted[kind] = _count(run)
        return _counted[kind]

    @classmethod
    def of_evaluation(cls, run: Run) -> "Work":
        """Count the products of an evaluation: of seen tasks, test tasks and those beyond, and of its diagnostics."""
        num_points, shapes = 3 * run.num_eval_tasks * run.num_eval_points, _shapes(run)
        num_points *= 1 + DIAGNOSTIC * len(run.diagnostics)
        return cls(
            2.0 * num_points * sum(map(math.prod, shapes)),
            4.0 * num_points * sum(shape[0] for shape in shapes),
        )


class Cost(NamedTuple):
    """The fitted model of one device."""

    coefficients: tuple[float, ...]
    compile_seconds: float
    diagnostic_seconds: float = 0.0  # that one call waits for a diagnostic, whatever its size
    alone: bool = False  # whether every run is a call of its own, as on a CPU

    def step_of(self, work: Work, width: int) -> float:
        """Seconds of one step of one run among `width` that has so much to do."""
        return float(_features(work, width) @ np.array(self.coefficients))

    def step(self, run: Run, width: int) -> float:
        """Seconds of one training step of one run among `width`."""
        return self.step_of(Work.of(run), width)

    def chunk(self, runs: Sequence[Run], width: int) -> float:
        """Seconds to train a chunk of runs and to evaluate them as they go."""
        run, calls = runs[0], len(runs) if self.alone else 1
        evaluation = len(runs) * self.step_of(Work.of_evaluation(run), width)
        evaluation += calls * len(run.diagnostics) * self.diagnostic_seconds
        return len(runs) * run.num_steps * self.step(run, width) + run.num_evals * evaluation


def fit(
    works: Sequence[Work], widths: Sequence[int], seconds: Sequence[float], compile_seconds: float
) -> Cost:
    """The non-negative coefficients with the least relative error on measured seconds per run and step."""
    features = np.stack([_features(work, width) for work, width in zip(works, widths, strict=True)])
    relative = features / np.asarray(seconds)[:, None]
    scale = relative.max(axis=0)
    found, _ = nnls(relative / scale, np.ones(len(seconds)))
    return Cost(tuple(map(float, found / scale)), compile_seconds)


@functools.cache
def kinds() -> dict[str, Any]:
    """The kinds of devices that were measured."""
    return json.loads(
        resources.files("recombine.training").joinpath("cost.json").read_text(encoding="utf-8")
    )


def known_kind(kind: str | None = None) -> str:
    """A kind of device, this machine's by default, or the nearest that was measured."""
    kind = kind or jax.devices()[0].device_kind
    nearest = "cpu" if device.on_cpu() else next(name for name in kinds() if name != "cpu")
    return kind if kind in kinds() else nearest


def load(kind: str | None = None) -> Cost:
    """The model of a kind of device, this machine's by default; the nearest where it was never measured."""
    found = kinds()[known_kind(kind)]
    # Runs on a CPU share its cores.
    faster = device.num_cores() / found["cores"] if kind is None and "cores" in found else 1.0
    diagnostic = found["diagnostic_seconds"] / faster
    coefficients = tuple(c / faster for c in found["coefficients"])
    return Cost(coefficients, found["compile_seconds"], diagnostic, "cores" in found)


def _features(work: Work, width: int) -> np.ndarray:
    return np.array([1 / width, 1.0, work.flops, work.bytes])


_counted: dict[Run, Work] = {}
_shaped: dict[Run, list[tuple[int, ...]]] = {}


def _shapes(run: Run) -> list[tuple[int, ...]]:
    """Of the network's matrices."""
    kind = structure(run)
    if kind not in _shaped:
        leaves = jax.tree.leaves(jax.eval_shape(lambda: fresh(run)[0]))
        _shaped[kind] = [leaf.shape for leaf in leaves if leaf.ndim == 2]
    return _shaped[kind]


def _count(run: Run) -> Work:
    shapes = _shapes(run)
    num_points = run.num_tasks * run.num_points
    weights, units = sum(map(math.prod, shapes)), sum(shape[0] for shape in shapes)
    flops = 6.0 * num_points * weights
    if isinstance(run.recipe, Fast):
        flops += sum(NUM_ITERATIONS * (4 * min(s) ** 2 * max(s) + 2 * min(s) ** 3) for s in shapes)
    # Weights, two moments and gradients are read and written; a unit's value passes some six times per point.
    return Work(flops, 28.0 * weights + 12.0 * num_points * units)
