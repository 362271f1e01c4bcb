"""One diffusion model from training to what is expected of it: what it makes of every combination, and what its
activations say about those that it never saw.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from recombine.core import require
from recombine.images import denoise, gallery, judge
from recombine.images.scenes import Crowd, Scenes, Things

CUBE = {"star": ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)), "failing": ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1))}
KEPT = (0.2, 0.5, 0.8)  # of the steps to an image: where activations are read
STOPS = (125, 250, 500, 1000, 2000)  # steps of training at which the cube is looked at, before the last
FAILED = 0.5  # a combination fails if fewer of its images are right
SHOWN = 4  # images of a combination that are kept, of one seed


def scenes_of(name: str) -> Scenes:
    """What a cell is about."""
    return Things(2, 2, 2) if name in CUBE else Things() if name == "things" else Crowd()


def trained(name: str, num_train: int, seed: int) -> np.ndarray:
    """The combinations that are trained: those of a split, or random ones in which every value is there."""
    scenes = scenes_of(name)
    if name in CUBE:
        return np.array([row for row, values in enumerate(Things(2, 2, 2).values) if tuple(values) in CUBE[name]])
    rng = np.random.default_rng(seed)
    drawn = (rng.permutation(len(scenes.codes))[:num_train] for _ in range(10_000))
    found = next((rows for rows in drawn if scenes.codes[rows].any(axis=0).all()), None)
    require(found is not None, f"{num_train} random combinations of {name} do not hold every value: take more")
    return np.sort(np.asarray(found))


@functools.cache
def judge_of(scenes: Scenes, num_steps: int) -> tuple[Any, float]:
    """The judge of these scenes, and its own accuracy."""
    found = judge.train(scenes, num_steps)
    return found, judge.accuracy(found, scenes)


def study(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Train one model; a row for each combination (and, of the cube, each stop on the way)."""
    scenes, rows = scenes_of(cell["scenes"]), trained(cell["scenes"], cell["num_train"], cell["seed"])
    stops = [s for s in STOPS if s < cell["num_steps"]] if cell["scenes"] in CUBE else []
    nets = denoise.train(scenes, rows, cell["width"], cell["seed"], cell["num_steps"], cell["batch"], stops)
    found = []
    for stop, net in nets.items():
        probed = stop == cell["num_steps"] and cell["scenes"] not in CUBE
        found += [row | {"trained_for": stop} for row in looked_at(net, scenes, rows, cell, probed)]
    return found


def looked_at(net: Any, scenes: Scenes, rows: np.ndarray, cell: dict[str, Any], probed: bool) -> list[dict[str, Any]]:
    """What a trained model makes of every combination, and what its activations say about it."""
    total, per = len(scenes.codes), cell["per"]
    number = np.repeat(np.arange(total), per)
    images, seen = denoise.sample(net, scenes.codes[number], cell["seed"], cell["to_image"], KEPT)
    by, accuracy = judge_of(scenes, cell["judged"])
    right = judge.right(by, scenes, images, scenes.codes[number]).reshape(total, per, -1)
    held = ~np.isin(np.arange(total), rows)
    apart = np.abs(scenes.codes[:, None] - scenes.codes[None, rows]).sum(2).min(1)
    apart = apart if isinstance(scenes, Crowd) else apart / 2  # another value changes two numbers of the code
    share = right.all(2).mean(1)
    told, scores = expected(scenes, number, held, seen, 1 - share) if probed else ({}, {})
    return [
        {
            "combination": _name(scenes, i),
            "unseen": bool(held[i]),
            "distance": int(apart[i]),
            "right": float(share[i]),
            "product": float(right[i].mean(0).prod()),
            "judge": accuracy,
            **{name: float(values[i]) for name, values in told.items()},
            **scores,
            "images": gallery.png(images[number == i][:SHOWN]) if cell["seed"] == 0 else "",
        }
        for i in range(total)
    ]


def _name(scenes: Scenes, row: int) -> str:
    values = scenes.factors.iloc[row]
    return " and ".join(values.index[values] if isinstance(scenes, Crowd) else values[["size", "colour", "shape"]])


def expected(
    scenes: Scenes, number: np.ndarray, held: np.ndarray, seen: dict[str, np.ndarray], failure: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The expected failure of each unseen combination, from its activations, from probes of other combinations' factors
    and from how rare its pairs are; and how well each ranks what failed."""
    from recombine.probe import Decodability

    factors, unseen, names = scenes.factors, held[number], np.arange(len(held)).astype(str)
    other = np.arange(len(held))
    other[~held] = np.random.default_rng(0).permutation(other[~held])
    new, new_names = factors.iloc[number[unseen]].reset_index(drop=True), names[number[unseen]]
    told, scores = {}, {}
    for name, rows in (("expected", number), ("control", other[number]), ("rare", number)):
        probe = Decodability().fit(seen, factors.iloc[rows].reset_index(drop=True), names[number], unseen)
        read = None if name == "rare" else seen[probe.layer_][unseen]
        ranking = probe.rank(new, read, new_names)
        told[name] = np.full(len(held), np.nan)
        told[name][ranking["combination"].astype(int)] = ranking["error"]
        of_unseen = dict(zip(names[held], failure[held], strict=True))
        scores[f"{name}/rank"] = probe.evaluate(of_unseen)["spearman"]
        scores[f"{name}/auroc"] = probe.evaluate({k: v > FAILED for k, v in of_unseen.items()})["auroc"]
    return told, scores
