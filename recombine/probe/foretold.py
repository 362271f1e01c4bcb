"""What probes of an image model's layers say of its prompts: which of them it will get wrong, and how that is known.

Held-out prompts get the log loss of their concepts, as in the paper's image experiments, and two numbers to compare it
with: how rare the prompt's pairs of concepts are, and the log loss of probes that are asked for another prompt's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from recombine.probe.decodability import Decodability
from recombine.probe.prompts import Prompts


class Foretold:
    """What probes of an image model's layers say of its prompts."""

    def __init__(
        self,
        prompts: Prompts,
        numbers: np.ndarray,
        layers: dict[str, np.ndarray],
        failed: np.ndarray,
        rng: Any,
    ):
        self.numbers, self.held = numbers, prompts.held_out[numbers]
        self.factors: Any = prompts.factors.iloc[numbers].reset_index(drop=True)
        known = None if np.isnan(failed).all() else failed
        fit: Any = {"combinations": numbers, "held_out": self.held}
        self.probe = Decodability("logistic").fit(layers, self.factors, outcomes=known, **fit)
        layer = self.probe.layer_
        mixed: Any = self.factors.iloc[_others(prompts.held_out, numbers, rng)].reset_index(
            drop=True
        )
        control = Decodability("logistic").fit({layer: layers[layer]}, mixed, **fit)
        self.rows: Any = pd.DataFrame(
            {"what": "prompt", "prompt": prompts.texts, "held_out": prompts.held_out}
        )
        self.rows["number"] = np.arange(len(self.rows))
        self.rows["layer"], self.rows["probability_of"] = layer, self.probe.probability_of_
        there, x = self.held, layers[layer][self.held]
        self._put("expected", self.probe.log_loss(x, self.factors[there]))
        self._put("control", control.log_loss(x, mixed[there]))
        for name, given in (("error", x), ("rarity", None)):
            ranking = self.probe.rank(self.factors[there], given, numbers[there])
            places = ranking["combination"].astype(int)
            self.rows.loc[places, name] = ranking["error"].to_numpy()
            if name == "error":
                self.rows.loc[places, "probability"] = ranking["probability"].to_numpy()
        # Train prompts: each as read by probes that were fitted without it.
        self.rows.loc[~prompts.held_out, "error"] = self.probe.errors_

    def _put(self, name: str, values: np.ndarray) -> None:
        """A column of held-out prompts, the mean over their images."""
        means: Any = pd.Series(values).groupby(self.numbers[self.held]).mean()
        self.rows[name] = means.reindex(self.rows.index)

    def layers(self, probe: Any = None) -> list[dict[str, Any]]:
        """How well concepts are read from every layer, on seen and on held-out prompts, beside the shuffled control."""
        scores: Any = (probe or self.probe).scores_.groupby(["layer", "split"], sort=False)
        means = scores[["score", "shuffled"]].mean().reset_index()
        return means.assign(what="layer").to_dict("records")

    def other(self, layers: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """The same of layers that prompts are not ranked by."""
        return self.layers(
            Decodability("logistic").fit(layers, self.factors, self.numbers, self.held)
        )


def _others(held_out: np.ndarray, numbers: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For every image, an image of another prompt of the same part."""
    partner = np.arange(len(held_out))
    for part in (False, True):
        ring = rng.permutation(np.flatnonzero(held_out == part))
        partner[ring] = np.roll(ring, 1)
    first = np.unique(numbers, return_index=True)[1]
    return first[partner[numbers]]
