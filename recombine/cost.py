"""What a run will cost: seconds per step from its shapes, by a model fitted to measured runs of one device.

    seconds of one run's step = c0 / runs per call + c1 + c2 flops + c3 bytes

The coefficients are what `recombine bench` fits and `cost.json` keeps, by kind of device; evaluations are not counted.
On another device the ratios between runs still hold, and progress corrects the scale as it goes.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import nnls

from recombine import device
from recombine.muon import NUM_ITERATIONS
from recombine.program import fresh
from recombine.recipe import Fast
from recombine.run import Run, structure


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


class Cost(NamedTuple):
    """The fitted model of one device."""

    coefficients: tuple[float, ...]
    compile_seconds: float

    def step(self, run: Run, width: int) -> float:
        """Seconds of one training step of one run among `width`."""
        return float(_features(Work.of(run), width) @ np.array(self.coefficients))

    def chunk(self, runs: Sequence[Run], width: int) -> float:
        """Seconds to train a chunk of runs."""
        return len(runs) * runs[0].num_steps * self.step(runs[0], width)


def fit(works: Sequence[Work], widths: Sequence[int], seconds: Sequence[float], compile_seconds: float) -> Cost:
    """The non-negative coefficients with the least relative error on measured seconds per run and step."""
    features = np.stack([_features(work, width) for work, width in zip(works, widths, strict=True)])
    relative = features / np.asarray(seconds)[:, None]
    scale = relative.max(axis=0)
    found, _ = nnls(relative / scale, np.ones(len(seconds)))
    return Cost(tuple(map(float, found / scale)), compile_seconds)


def load(kind: str | None = None) -> Cost:
    """The model of a kind of device, this machine's by default; the nearest where it was never measured."""
    known: dict[str, Any] = json.loads(Path(__file__).with_name("cost.json").read_text())
    kind = kind or jax.devices()[0].device_kind
    nearest = "cpu" if device.on_cpu() else next(name for name in known if name != "cpu")
    found = known.get(kind, known[nearest])
    return Cost(tuple(found["coefficients"]), found["compile_seconds"])


def _features(work: Work, width: int) -> np.ndarray:
    return np.array([1 / width, 1.0, work.flops, work.bytes])


_counted: dict[Run, Work] = {}


def _count(run: Run) -> Work:
    shapes = [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(lambda: fresh(run)[0])) if leaf.ndim == 2]
    num_points = run.num_tasks * run.num_points
    weights, units = sum(map(math.prod, shapes)), sum(shape[0] for shape in shapes)
    flops = 6.0 * num_points * weights
    if isinstance(run.recipe, Fast):
        flops += sum(NUM_ITERATIONS * (4 * min(s) ** 2 * max(s) + 2 * min(s) ** 3) for s in shapes)
    # Weights, two moments and gradients are read and written; a unit's value passes some six times per point.
    return Work(flops, 28.0 * weights + 12.0 * num_points * units)
