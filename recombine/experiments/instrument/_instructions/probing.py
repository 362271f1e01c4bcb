"""Probes of one student of the instruction language, and how well they predict its failures.

A student is saved, loaded as any model of transformers is, and recorded at three positions: the end
of the instruction (`asked`), the start of the answer (`start`), and the mean over the positions
that write the answer (`answer`). The mean corresponds to the paper's measure for image models,
which averages layers over the image and the denoising steps.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch

from recombine.basics.random_streams import generator
from recombine.basics.statistics import auroc, rank_correlation
from recombine.experiments.instrument._instructions.grammar import Language
from recombine.experiments.instrument._instructions.student import Students, save, untrained
from recombine.probe.decodability import Decodability
from recombine.probe.failure_ranking import rarity
from recombine.probe.pretrained import Pretrained

POSITIONS = ("asked", "start", "answer")
BATCH_SIZE = 512  # sentences
Layers = dict[str, np.ndarray]


class Answers(NamedTuple):
    """What one student answered. Tasks and sentences are in the order of `Language.tasks`."""

    parts: np.ndarray  # by task: 1 if trained on, 2 if held out
    tokens: np.ndarray  # sentences x tokens, with the student's answers but for the last letter
    doubt: np.ndarray  # by task: the mean -log p per letter of the student's answers
    failed: np.ndarray  # by task: the share of wrong answers


def record(model: Any, language: Language, texts: list[str]) -> dict[str, Layers]:
    """Activations by position and layer, of sentences that end before the answer's last letter."""
    length = language.length

    def pool(tokens: torch.Tensor) -> torch.Tensor:
        asked = tokens[:, -2 * length - 1]
        start = tokens[:, -length]
        answer = tokens[:, -length:].float().mean(dim=1)
        return torch.stack([asked, start, answer], dim=1)

    with tempfile.TemporaryDirectory() as folder, _quiet():
        saved = save(model, language, Path(folder))
        layers = Pretrained(saved, pool=pool, progress=False).record(texts, BATCH_SIZE)
    by_position: dict[str, Layers] = {position: {} for position in POSITIONS}
    for name, rows in layers.items():
        pooled = rows.reshape(len(rows), len(POSITIONS), -1)
        for i, position in enumerate(POSITIONS):
            by_position[position][name] = pooled[:, i]
    return by_position


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warning of transformers that the output layer, which is not used, is missing."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    verbosity = logging.get_verbosity()
    has_progress_bar = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_progress_bar:
            logging.enable_progress_bar()


class FailurePredictors:
    """Predicted and actual failures of the held-out instructions of one student.

    `rows` has one row per held-out instruction and one column per predictor: larger values predict
    more failures. `facts` has the layer and the scores of every probe.
    """

    def __init__(self, language: Language, parts: np.ndarray, failed: np.ndarray, num_samples: int):
        tasks = language.tasks()
        self.tasks: Any = pd.DataFrame(tasks, columns=language.operations)
        self.parts = parts
        self.task_numbers = np.arange(len(parts)).repeat(num_samples)  # of every sample
        self.facts: dict[str, Any] = {}
        held_out = np.flatnonzero(parts == 2)
        operations = np.array(language.operations)
        self.rows: Any = pd.DataFrame(
            {
                "number": held_out,
                "failed": failed[held_out],
                "rarity": rarity(self.tasks.iloc[held_out], self.tasks[parts == 1]),
                "instruction": [" and ".join(operations[task > 0]) for task in tasks[held_out]],
                "num_hot": tasks[held_out].sum(axis=1),
            }
        )

    def add_probe(
        self,
        name: str,
        layers: Layers,
        partners: np.ndarray | None = None,
        use_layers: Literal["best", "all"] = "best",
    ) -> None:
        """Fit probes on train instructions and add the decoding errors of held-out ones to `rows`.

        `partners` makes the control: every instruction has the labels of its partner.
        """
        labels = self.tasks if partners is None else self.tasks.iloc[partners]
        is_used = self.parts[self.task_numbers] > 0
        task_numbers = self.task_numbers[is_used]
        is_held_out = self.parts[task_numbers] == 2
        factors = labels.iloc[task_numbers].reset_index(drop=True)
        used = {layer: rows[is_used] for layer, rows in layers.items()}
        held_out = {layer: rows[is_held_out] for layer, rows in used.items()}
        old_probe = Decodability("ridge", layers=use_layers, edition=1)
        probe = old_probe.fit(used, factors, task_numbers, is_held_out)
        ranking = probe.rank(factors[is_held_out], held_out, task_numbers[is_held_out])
        errors = ranking.set_index("combination")["error"]
        self.rows[name] = errors.reindex(self.rows["number"].astype(str)).to_numpy()
        chosen_layer: Any = probe.scores_[probe.scores_["layer"] == probe.layer_]
        scores = chosen_layer.groupby("split")["score"].mean()
        self.facts |= {
            f"{name}/layer": probe.layer_,
            f"{name}/seen": scores["seen"],
            f"{name}/unseen": scores["held out"],
        }

    def draw_partners(self, rng: np.random.Generator) -> np.ndarray:
        """For every task another one of the same part of the split."""
        partners = np.arange(len(self.parts))
        for part in (1, 2):
            shuffled = rng.permutation(np.flatnonzero(self.parts == part))
            partners[shuffled] = np.roll(shuffled, 1)
        return partners

    def scores(self, name: str) -> dict[str, float]:
        """How well a predictor ranks held-out instructions by failures.

        Scores with `longest` are about the instructions with the most operations only. The AUROC is
        that of instructions that fail more often than not.
        """
        longest = self.rows[self.rows["num_hot"] == self.rows["num_hot"].max()]
        values = {}
        for prefix, rows in ((name, self.rows), (f"{name}/longest", longest)):
            values[f"{prefix}/spearman"] = rank_correlation(rows[name], rows["failed"])
            values[f"{prefix}/auroc"] = auroc(rows[name], rows["failed"] > 0.5)
        return values


def probe_student(
    group: Students, number: int, seed: int, answers: Answers
) -> list[dict[str, Any]]:
    """A row of one student, then one for each of its held-out instructions."""
    language = group.language
    parts = answers.parts
    failed = answers.failed
    predictors = FailurePredictors(language, parts, failed, len(answers.tokens) // len(parts))
    predictors.rows["doubt"] = answers.doubt[predictors.rows["number"]]
    texts = [language.text(tokens) for tokens in answers.tokens]
    trained = record(group.models[number], language, texts)
    for position, layers in trained.items():
        predictors.add_probe(position, layers)
    layers = trained["answer"]
    last_layer = list(layers)[-1]
    predictors.add_probe("last", {last_layer: layers[last_layer]})
    baseline = record(untrained(language, group.size, seed), language, texts)["answer"]
    partners = predictors.draw_partners(generator(seed, "instructions"))
    predictors.add_probe("control", layers, partners)
    predictors.add_probe("twin", baseline)
    predictors.add_probe("whole", layers, use_layers="all")
    predictors.add_probe("whole control", layers, partners, use_layers="all")
    predictors.add_probe("whole twin", baseline, use_layers="all")
    student = {"what": "student", "num_train": int((parts == 1).sum())} | predictors.facts
    student["seen"] = 1 - failed[parts == 1].mean()
    student["test"] = 1 - failed[parts == 2].mean()
    facts_of_instructions = ["number", "failed", "instruction", "num_hot"]
    for name in predictors.rows.columns.difference(facts_of_instructions):
        student |= predictors.scores(name)
    instructions = predictors.rows.to_dict("records")
    return [student, *({"what": "instruction"} | row for row in instructions)]
