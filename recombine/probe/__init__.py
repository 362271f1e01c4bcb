"""Probe your own model's activations: which factors are decodable, and which combinations fail?

import numpy as np
from recombine.probe import Decodability

rng = np.random.default_rng(0)
shape, color = rng.integers(4, size=(2, 2000))  # the ground-truth factors of 2,000 samples
directions = rng.normal(size=(2, 4, 64))  # a toy model: each value has its own direction
activations = directions[0][shape] + directions[1][color] + rng.normal(size=(2000, 64))
factors = {"shape": np.array(list("ABCD"))[shape], "color": np.array(list("rgby"))[color]}
held_out = (shape == 0) & (color < 2)  # probes are not fitted on these combinations
probe = Decodability().fit(activations, factors, held_out=held_out)
print(probe.scores_)  # layer x factor x split, with intervals and a permuted-label control
new_factors = {name: values[held_out] for name, values in factors.items()}
print(probe.rank(new_factors, activations[held_out]))  # predicted failures, the worst first
"""

import importlib
from typing import Any

from recombine.basics.errors import InputError

# The module of each name. Modules are imported on first use: scikit-learn and torch import slowly.
NAMES = {
    "Decodability": "decodability",
    "Diffusion": "diffusion",
    "Pretrained": "pretrained",
    "Prompts": "prompts",
    "Recorder": "recorder",
    "judge": "prompts",
}
NEED_TORCH = {"Diffusion", "Pretrained", "Recorder"}  # the names that need the extra `torch`


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module 'recombine.probe' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"recombine.probe.{NAMES[name]}"), name)
    except ModuleNotFoundError as error:
        if name not in NEED_TORCH:  # their libraries are dependencies of the package
            raise
        raise InputError(
            f"{error.name} is not installed: run pip install 'recombine[torch]'"
        ) from error
