"""What can be read of an instruction from a student of the language, and whether that tells which it will get wrong.

A student is saved, loaded by the instrument as any model of transformers is, and recorded at three places: where the
instruction ends (`asked`), where the answer starts (`start`), and on average over the places from which its letters are
written (`answer`). The last is what the paper does with image models, where layers are averaged over the image and its
steps.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from recombine.basics.random_streams import generator
from recombine.basics.statistics import auroc, rank_correlation
from recombine.experiments.instrument._instructions.grammar import Language
from recombine.experiments.instrument._instructions.student import Students, save, untrained
from recombine.probe.decodability import Decodability
from recombine.probe.failure import rarity
from recombine.probe.pretrained import Pretrained

PLACES = ("asked", "start", "answer")
BATCH = 512  # sentences


def record(model: Any, language: Language, texts: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """Activations at each place by layer, of sentences that end before the last letter of the answer."""
    n = language.length

    def pool(tokens: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [tokens[:, -2 * n - 1], tokens[:, -n], tokens[:, -n:].float().mean(dim=1)], dim=1
        )

    with tempfile.TemporaryDirectory() as folder, _quiet():
        found = Pretrained(save(model, language, Path(folder)), pool=pool, progress=False).record(
            texts, BATCH
        )
    split = {name: rows.reshape(len(rows), len(PLACES), -1) for name, rows in found.items()}
    return {
        place: {name: rows[:, i] for name, rows in split.items()} for i, place in enumerate(PLACES)
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without a word that a model is loaded without its last layer, which is not read."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    before, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shown:
            logging.enable_progress_bar()


class Reading:
    """Expected failures of the unseen instructions of one student, each with what it is to be compared with."""

    def __init__(self, language: Language, parts: np.ndarray, failed: np.ndarray, num_read: int):
        self.tasks: Any = pd.DataFrame(language.tasks(), columns=language.operations)
        self.parts, self.failed = parts, failed
        self.numbers = np.arange(len(parts)).repeat(num_read)
        unseen = np.flatnonzero(parts == 2)
        rare = rarity(self.tasks.iloc[unseen], self.tasks[parts == 1])
        self.rows: Any = pd.DataFrame({"number": unseen, "failed": failed[unseen], "rarity": rare})
        names = np.array(language.operations)
        self.rows["instruction"] = [
            " and ".join(names[row > 0]) for row in language.tasks()[unseen]
        ]
        self.rows["num_hot"] = self.tasks.iloc[unseen].sum(axis=1).to_numpy()
        self.facts: dict[str, Any] = {}

    def read(
        self,
        name: str,
        layers: dict[str, np.ndarray],
        partners: np.ndarray | None = None,
        by: Any = "best",
    ) -> None:
        """Fit probes on train instructions, each asked for its own operations or for a partner's, and rank the rest by
        the best read layer, or by all of them."""
        kept = self.parts[self.numbers] > 0
        asked = self.tasks if partners is None else self.tasks.iloc[partners].reset_index(drop=True)
        factors = asked.iloc[self.numbers[kept]].reset_index(drop=True)
        numbers, held = self.numbers[kept], self.parts[self.numbers[kept]] == 2
        there = {layer: rows[kept] for layer, rows in layers.items()}
        probe = Decodability(layers=by).fit(there, factors, numbers, held)
        new = {layer: rows[held] for layer, rows in there.items()}
        ranking = probe.rank(factors[held], new, numbers[held]).set_index("combination")
        self.rows[name] = ranking["error"].reindex(self.rows["number"].astype(str)).to_numpy()
        scores: Any = (
            probe.scores_[probe.scores_["layer"] == probe.layer_].groupby("split")["score"].mean()
        )
        self.facts |= {f"{name}/layer": probe.layer_, f"{name}/seen": scores["seen"]}
        self.facts[f"{name}/unseen"] = scores["held out"]

    def partners(self, rng: np.random.Generator) -> np.ndarray:
        """For every task another one of the same part, which the control asks for."""
        partner = np.arange(len(self.parts))
        for part in (1, 2):
            ring = rng.permutation(np.flatnonzero(self.parts == part))
            partner[ring] = np.roll(ring, 1)
        return partner

    def compared(self, name: str) -> dict[str, float]:
        """How well a column ranks unseen instructions by how often they fail; also among the longest ones only."""
        longest = self.rows[self.rows["num_hot"] == self.rows["num_hot"].max()]
        return {
            f"{name}/{told}{score}": found
            for told, rows in (("", self.rows), ("longest/", longest))
            for score, found in zip(
                ("spearman", "auroc"), _scores(rows[name], rows["failed"]), strict=True
            )
        }


def look(
    group: Students,
    number: int,
    seed: int,
    parts: np.ndarray,
    told: np.ndarray,
    doubt: np.ndarray,
    failed: np.ndarray,
) -> list[dict[str, Any]]:
    """A row of one student, then one for each of its unseen instructions.

    `told` are its sentences as tokens, task by task, with the answers that it wrote; `doubt` and `failed` are by task.
    """
    language = group.language
    reading = Reading(language, parts, failed, len(told) // len(parts))
    reading.rows["doubt"] = doubt[reading.rows["number"]]
    texts = [language.text(tokens) for tokens in told]
    places = record(group.models[number], language, texts)
    for place, layers in places.items():
        reading.read(place, layers)
    *_, last = places["answer"]
    reading.read("last", {last: places["answer"][last]})
    twin = record(untrained(language, group.size, seed), language, texts)["answer"]
    others = reading.partners(generator(seed, "instructions"))
    reading.read("control", places["answer"], others)
    reading.read("twin", twin)
    reading.read("whole", places["answer"], by="all")
    reading.read("whole control", places["answer"], others, by="all")
    reading.read("whole twin", twin, by="all")
    row = {"what": "student", "num_train": int((parts == 1).sum())} | reading.facts
    row |= {"seen": 1 - failed[parts == 1].mean(), "test": 1 - failed[parts == 2].mean()}
    for name in reading.rows.columns.difference(["number", "failed", "instruction", "num_hot"]):
        row |= reading.compared(name)
    return [row, *({"what": "instruction"} | unseen for unseen in reading.rows.to_dict("records"))]


def _scores(expected: Any, failed: Any) -> tuple[float, float]:
    """Rank correlation, and the AUROC for those that fail more often than not; NaN where none differ."""
    return rank_correlation(expected, failed), auroc(expected, failed > 0.5)
