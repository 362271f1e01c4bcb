"""The instrument: bring your own model's activations, learn whether its parts can be read, and what it will get wrong.

import numpy as np
from recombine.probe import Decodability

rng = np.random.default_rng(0)
shape, colour = rng.integers(4, size=(2, 2000))  # what each of 2,000 samples is made of
parts = rng.normal(size=(2, 4, 64))  # a made-up model, in which every part has a direction of its own
activations = parts[0][shape] + parts[1][colour] + rng.normal(size=(2000, 64))
factors = {"shape": np.array(list("ABCD"))[shape], "colour": np.array(list("rgby"))[colour]}
new = (shape == 0) & (colour < 2)  # combinations that no probe is fitted on
probe = Decodability().fit(activations, factors, held_out=new)
print(probe.scores_)  # layer x factor x split, with intervals and a shuffled control
print(probe.rank({name: values[new] for name, values in factors.items()}, activations[new]))
"""

import importlib
from typing import Any

from recombine.basics.errors import InputError

# The module of each name. Nothing is imported before it is asked for: scikit-learn and torch are slow to import.
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
        if name not in NEED_TORCH:  # all that the others need is installed with the package
            raise
        raise InputError(
            f"{error.name} is not installed: pip install 'recombine[torch]'"
        ) from error
