"""The cost of a run: seconds per step, from its shapes, by a model that is fitted to measured runs.

    seconds of one run's step = c0 / runs per call + c1 + c2 flops + c3 bytes

`recombine bench` fits the coefficients, and `cost.json` stores them by kind of device. An
evaluation is counted as its forward passes. A diagnostic counts as further forward passes.

On a device that was never measured, the ratios between runs still hold. The progress display
corrects the scale while a sweep trains.
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
from recombine.training.program import initialize

FORWARD_PASSES_PER_DIAGNOSTIC = 3.5  # measured for a probe of every layer
BYTES_PER_WEIGHT = 28.0  # weights, gradients and two moments are read and written
BYTES_PER_UNIT = 12.0  # a unit's value is read and written several times per point


class Work(NamedTuple):
    """What one training step of one run has to compute, counted from shapes."""

    flops: float
    bytes: float

    @classmethod
    def of(cls, run: Run) -> "Work":
        """The work of a training step: network, gradient and optimizer."""
        template = structure(run)
        if template not in _work_of_structure:
            _work_of_structure[template] = _count_work(run)
        return _work_of_structure[template]

    @classmethod
    def of_evaluation(cls, run: Run) -> "Work":
        """The work of an evaluation: seen, test and extrapolation tasks, and the diagnostics."""
        shapes = _matrix_shapes(run)
        num_passes = 1 + FORWARD_PASSES_PER_DIAGNOSTIC * len(run.diagnostics)
        num_points = 3 * run.num_eval_tasks * run.num_eval_points * num_passes
        num_weights = sum(map(math.prod, shapes))
        num_units = sum(shape[0] for shape in shapes)
        return cls(2.0 * num_points * num_weights, 4.0 * num_points * num_units)


class Cost(NamedTuple):
    """The fitted model of one device."""

    coefficients: tuple[float, ...]
    compile_seconds: float
    diagnostic_seconds: float = 0.0  # that one call takes for a diagnostic, whatever its size
    alone: bool = False  # whether each run is a call of its own, as on a CPU

    def step_of(self, work: Work, width: int) -> float:
        """The seconds of one step with this work, for one of `width` runs in a call."""
        return float(_features(work, width) @ np.array(self.coefficients))

    def step(self, run: Run, width: int) -> float:
        """The seconds of one training step, for one of `width` runs in a call."""
        return self.step_of(Work.of(run), width)

    def chunk(self, runs: Sequence[Run], width: int) -> float:
        """The seconds to train and evaluate a chunk of runs."""
        run = runs[0]
        num_runs = len(runs)
        num_calls = num_runs if self.alone else 1
        training = num_runs * run.num_steps * self.step(run, width)
        evaluation = num_runs * self.step_of(Work.of_evaluation(run), width)
        evaluation += num_calls * len(run.diagnostics) * self.diagnostic_seconds
        return training + run.num_evals * evaluation


def fit(
    works: Sequence[Work], widths: Sequence[int], seconds: Sequence[float], compile_seconds: float
) -> Cost:
    """Fit the non-negative coefficients with the smallest relative error.

    `seconds` are measured, per run and step.
    """
    features = np.stack([_features(work, width) for work, width in zip(works, widths, strict=True)])
    relative = features / np.asarray(seconds)[:, None]
    scale = relative.max(axis=0)
    scaled_coefficients, _ = nnls(relative / scale, np.ones(len(seconds)))
    return Cost(tuple(map(float, scaled_coefficients / scale)), compile_seconds)


@functools.cache
def measured_kinds() -> dict[str, Any]:
    """The kinds of devices that were measured, with their coefficients."""
    file = resources.files("recombine.training").joinpath("cost.json")
    return json.loads(file.read_text(encoding="utf-8"))


def nearest_kind(kind: str | None = None) -> str:
    """The measured kind of device that is nearest to this kind (by default, this machine's)."""
    kind = kind or jax.devices()[0].device_kind
    if kind in measured_kinds():
        return kind
    return "cpu" if device.on_cpu() else next(name for name in measured_kinds() if name != "cpu")


def load(kind: str | None = None) -> Cost:
    """The model of this kind of device (by default, this machine's), or of the nearest kind."""
    model = measured_kinds()[nearest_kind(kind)]
    is_cpu_model = "cores" in model
    speedup = 1.0
    if kind is None and is_cpu_model:  # the runs share the cores of this machine
        speedup = device.num_cores() / model["cores"]
    return Cost(
        coefficients=tuple(c / speedup for c in model["coefficients"]),
        compile_seconds=model["compile_seconds"],
        diagnostic_seconds=model["diagnostic_seconds"] / speedup,
        alone=is_cpu_model,
    )


def _features(work: Work, width: int) -> np.ndarray:
    return np.array([1 / width, 1.0, work.flops, work.bytes])


_work_of_structure: dict[Run, Work] = {}
_shapes_of_structure: dict[Run, list[tuple[int, ...]]] = {}


def _matrix_shapes(run: Run) -> list[tuple[int, ...]]:
    """The shapes of the network's matrices."""
    template = structure(run)
    if template not in _shapes_of_structure:
        leaves = jax.tree.leaves(jax.eval_shape(lambda: initialize(run)[0]))
        _shapes_of_structure[template] = [leaf.shape for leaf in leaves if leaf.ndim == 2]
    return _shapes_of_structure[template]


def _count_work(run: Run) -> Work:
    shapes = _matrix_shapes(run)
    num_points = run.num_tasks * run.num_points
    num_weights = sum(map(math.prod, shapes))
    num_units = sum(shape[0] for shape in shapes)
    flops = 6.0 * num_points * num_weights
    if isinstance(run.recipe, Fast):
        flops += sum(map(_muon_flops, shapes))
    num_bytes = BYTES_PER_WEIGHT * num_weights + BYTES_PER_UNIT * num_points * num_units
    return Work(flops, num_bytes)


def _muon_flops(shape: tuple[int, ...]) -> int:
    """The flops of Muon's iterations for one matrix: two long products and a short one each."""
    short = min(shape)
    long = max(shape)
    return NUM_ITERATIONS * (4 * short**2 * long + 2 * short**3)
