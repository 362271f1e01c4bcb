"""Predicts which prompts an image model gets wrong, from probes of its layers.

Each held-out prompt gets the log loss of its concepts, as in the paper's image experiments, and two
baselines: the rarity of its pairs of concepts, and the log loss of control probes that are fitted
on the concepts of other prompts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from recombine.probe.decodability import Decodability
from recombine.probe.prompts import Prompts


class FailurePrediction:
    """Predicted failures of prompts.

    `numbers` is the prompt number of each image, `layers` the activations by layer (images x
    features) and `failed` whether each image failed (NaN if unknown). The result is the table
    `rows`, a row per prompt.
    """

    def __init__(
        self,
        prompts: Prompts,
        numbers: np.ndarray,
        layers: dict[str, np.ndarray],
        failed: np.ndarray,
        rng: np.random.Generator,
    ):
        self.numbers = numbers
        self.held = prompts.held_out[numbers]
        self.factors: Any = prompts.factors.iloc[numbers].reset_index(drop=True)
        outcomes = None if np.isnan(failed).all() else failed
        self.probe = self._fit(layers, self.factors, outcomes)
        layer = self.probe.layer_
        permuted = _images_of_other_prompts(prompts.held_out, numbers, rng)
        control_factors: Any = self.factors.iloc[permuted].reset_index(drop=True)
        control = self._fit({layer: layers[layer]}, control_factors)

        self.rows: Any = pd.DataFrame(
            {"what": "prompt", "prompt": prompts.texts, "held_out": prompts.held_out}
        )
        self.rows["number"] = np.arange(len(self.rows))
        self.rows["layer"] = layer
        self.rows["probability_of"] = self.probe.probability_of_
        held_activations = layers[layer][self.held]
        log_losses = self.probe.log_loss(held_activations, self.factors[self.held])
        self._add_column("expected", log_losses)
        control_losses = control.log_loss(held_activations, control_factors[self.held])
        self._add_column("control", control_losses)
        self._add_ranking(held_activations)
        # Train prompts: the error of probes that were fitted without the prompt.
        self.rows.loc[~prompts.held_out, "error"] = self.probe.errors_

    def layers(self, probe: Any = None) -> list[dict[str, Any]]:
        """Decodability of concepts by layer and split, with the permuted-label control."""
        scores: Any = (probe or self.probe).scores_.groupby(["layer", "split"], sort=False)
        means = scores[["score", "shuffled"]].mean().reset_index()
        return means.assign(what="layer").to_dict("records")

    def other(self, layers: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """The same for further layers, which do not rank prompts."""
        return self.layers(self._fit(layers, self.factors))

    def _fit(
        self, layers: dict[str, np.ndarray], factors: Any, outcomes: Any = None
    ) -> Decodability:
        """Logistic probes, with prompts as combinations."""
        probe = Decodability("logistic", edition=1)
        return probe.fit(layers, factors, self.numbers, self.held, outcomes)

    def _add_column(self, name: str, values: np.ndarray) -> None:
        """Add a column for held-out prompts: the mean over their images."""
        means: Any = pd.Series(values).groupby(self.numbers[self.held]).mean()
        self.rows[name] = means.reindex(self.rows.index)

    def _add_ranking(self, held_activations: np.ndarray) -> None:
        """Add the decoding error of held-out prompts, its probability, and their rarity."""
        factors = self.factors[self.held]
        numbers = self.numbers[self.held]
        by_error = self.probe.rank(factors, held_activations, numbers)
        prompts = by_error["combination"].astype(int)
        self.rows.loc[prompts, "error"] = by_error["error"].to_numpy()
        self.rows.loc[prompts, "probability"] = by_error["probability"].to_numpy()
        by_rarity = self.probe.rank(factors, None, numbers)
        prompts = by_rarity["combination"].astype(int)
        self.rows.loc[prompts, "rarity"] = by_rarity["error"].to_numpy()


def _images_of_other_prompts(
    held_out: np.ndarray, numbers: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """For every image, an image of another prompt on the same side of the split."""
    partner = np.arange(len(held_out))
    for side in (False, True):
        ring = rng.permutation(np.flatnonzero(held_out == side))
        partner[ring] = np.roll(ring, 1)
    first_image = np.unique(numbers, return_index=True)[1]
    return first_image[partner[numbers]]


Foretold = FailurePrediction  # the old name, for one release
