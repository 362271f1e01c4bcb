"""Diffusion models from training to what is expected of them: what one makes of every combination, and what its
activations say about those that it never saw.

Models of one kind of scene and one width train together. What is trained is kept in a folder at once, so that nothing
is lost if the rest is stopped, and that a model's weights can be taken from there.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from recombine.basics.errors import require
from recombine.experiments.limits._images import ahead, denoise, judge, saved
from recombine.experiments.limits._images.rows import ranked
from recombine.experiments.limits._images.scenes import Crowd, Cube, Scenes, Things
from recombine.experiments.limits._images.unet import UNet
from recombine.parts.prng import new_key
from recombine.reporting import gallery
from recombine.sweeps.code_hash import of_files
from recombine.training import device

STAR = ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
CUBE = {"star": STAR, "failing": ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1)), "joined": STAR}
KEPT = (0.3, 0.7)  # of the steps to an image: where activations are read
STOPS = (50, 100, 150, 200, 300, 400, 600, 800, 1200, 1600)  # steps at which the cube is looked at
SHOWN = 2  # images of an unseen combination that are kept, of cells that are shown
LEVELS = 15.5  # half the number of brightnesses of these, less a half
PROBED = 6  # images of a combination that probes read
TRAINING = (
    "scenes",
    "num_train",
    "width",
    "seed",
    "num_steps",
    "batch",
)  # what of a cell its weights depend on
Cell = dict[str, Any]
COMMITTED = Path(__file__).parent / "weights"


@functools.cache
def scenes_of(name: str) -> Scenes:
    """What a cell is about."""
    return Crowd() if name == "crowd" else Cube() if name in CUBE else Things()


def telling(name: str) -> str:
    """How its networks are told a code: those of the cube, but for the contrast, each factor by itself."""
    return "apart" if name in ("star", "failing") else "together"


def trained(name: str, num_train: int, seed: int) -> np.ndarray:
    """The combinations that are trained: those of a split, or random ones in which every value is there."""
    scenes = scenes_of(name)
    if isinstance(scenes, Cube):
        return np.array(
            [row for row, values in enumerate(scenes.values) if tuple(values) in CUBE[name]]
        )
    rng = np.random.default_rng(seed)
    drawn = (rng.permutation(len(scenes.codes))[:num_train] for _ in range(10_000))
    found = next((rows for rows in drawn if scenes.codes[rows].any(axis=0).all()), None)
    require(
        found is not None,
        f"{num_train} random combinations of {name} do not hold every value: take more",
    )
    return np.sort(np.asarray(found))


def distance(scenes: Scenes, rows: np.ndarray) -> np.ndarray:
    """How many factors of each combination differ from the nearest of those."""
    parts = np.split(scenes.codes, np.cumsum(scenes.blocks)[:-1], axis=1)
    return np.sum([(part[:, None] != part[None, rows]).any(2) for part in parts], axis=0).min(1)


def group_of(cell: Cell, cells: Sequence[Cell]) -> list[Cell]:
    """The cells whose models train together with this one's: of one kind of scene, one width and one training."""

    def about(one: Cell) -> tuple[Any, ...]:
        return (
            scenes_of(one["scenes"]),
            telling(one["scenes"]),
            one["width"],
            one["num_steps"],
            one["batch"],
        )

    return [one for one in cells if about(one) == about(cell)]


def _shape(group: Sequence[Cell]) -> denoise.Shape:
    one = group[0]
    return denoise.Shape(
        scenes_of(one["scenes"]),
        one["width"],
        one["num_steps"],
        one["batch"],
        len(group),
        telling(one["scenes"]),
    )


def _stops(cell: Cell) -> list[int]:
    return [s for s in STOPS if s < cell["num_steps"]] if cell["scenes"] in CUBE else []


@functools.cache
def _like(name: str, width: int) -> Any:
    """The layout of a network."""
    return jax.eval_shape(lambda: UNet(new_key(0), width, scenes_of(name).blocks, telling(name)))


def _file(folder: Path, cell: Cell, stop: int) -> Path:
    """Where a model is kept: its name tells what it is, and a hash all that it depends on."""
    text = json.dumps([[cell[name] for name in TRAINING], _code(), device.on_cpu()])
    code = hashlib.sha256(text.encode()).hexdigest()[:8]
    names = (cell[name] for name in ("scenes", "num_train", "width", "seed"))
    return folder / f"{'-'.join(map(str, names))}-{stop}-{code}.safetensors"


@functools.cache
def _code() -> str:
    return of_files(Path(__file__).parent.glob("*.py"))


def prepare(cells: Sequence[Cell]) -> None:
    """Compile ahead what the cells need, in their order, where there is a processor for it."""
    for cell in cells:
        scenes = scenes_of(cell["scenes"])
        _shape(group_of(cell, cells)).begin()
        _making(cell).begin(_like(cell["scenes"], cell["width"]), scenes.codes.shape[1])
        ahead.begin(
            ("judge", scenes, cell["judged"]),
            lambda scenes=scenes, cell=cell: _judged(scenes, cell["judged"]),
        )


def nets_of(
    cell: Cell, cells: Sequence[Cell], folder: Path, tell: Callable[[str], None] = lambda text: None
) -> dict[int, Any]:
    """A cell's networks, at its stops and at the end; if they are not in the folder, its whole group is trained."""
    wanted = {stop: _file(folder, cell, stop) for stop in (*_stops(cell), cell["num_steps"])}
    if not all(file.is_file() for file in wanted.values()):
        group = group_of(cell, cells)
        rows = [trained(one["scenes"], one["num_train"], one["seed"]) for one in group]
        stops = sorted({stop for one in group for stop in _stops(one)})
        title = f"{len(group)} models of width {cell['width']} train"
        training = denoise.train(
            _shape(group), rows, [one["seed"] for one in group], stops,
            lambda step: tell(f"{title}: {step} of {cell['num_steps']} steps"),
        )  # fmt: skip
        for stop, nets in training:
            for i, one in enumerate(group):
                if stop in (*_stops(one), one["num_steps"]):
                    about = {name: str(one[name]) for name in TRAINING} | {"stop": str(stop)}
                    saved.save(
                        _file(folder, one, stop),
                        jax.tree.map(lambda leaf, i=i: leaf[i], nets),
                        about,
                    )
    like = _like(cell["scenes"], cell["width"])
    return {stop: saved.load(file, like) for stop, file in wanted.items()}


def committed(cell: Cell) -> Any:
    """The network of a cell that comes with the package."""
    name = "{scenes}-{num_train}-{width}-{seed}.safetensors".format(**cell)
    return saved.load(COMMITTED / name, _like(cell["scenes"], cell["width"]))


def _judged(scenes: Scenes, num_steps: int) -> tuple[Any, float]:
    """The judge of these scenes, and its own accuracy; without steps, the one that comes with the package."""
    if num_steps == 0:
        like = jax.eval_shape(lambda: judge.Judge(new_key(0), scenes.codes.shape[1]))
        found = saved.load(COMMITTED / f"judge-{type(scenes).__name__.lower()}.safetensors", like)
    else:
        found = judge.train(scenes, num_steps)
    return found, judge.accuracy(found, scenes, 4096 if num_steps != 0 else 1024)


def judge_of(scenes: Scenes, num_steps: int) -> tuple[Any, float]:
    """The judge, made once."""
    return ahead.made(("judge", scenes, num_steps), lambda: _judged(scenes, num_steps))


def study(
    cell: Cell, cells: Sequence[Cell], folder: Path, tell: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """A row for each combination that a cell's model makes (and, of the cube, each stop on the way)."""
    scenes, found = scenes_of(cell["scenes"]), []
    if cell["num_steps"] == 0:
        nets = {0: committed(cell)}
    else:
        prepare(cells)
        nets = nets_of(cell, cells, folder, tell)
        by, accuracy = judge_of(scenes, cell["judged"])
        kept = folder / f"judge-{type(scenes).__name__.lower()}.safetensors"
        saved.save(kept, by, {"accuracy": str(accuracy), "judged": str(cell["judged"])})
    rows = trained(cell["scenes"], cell["num_train"], cell["seed"])
    for stop, net in nets.items():
        probed = stop == cell["num_steps"] and cell["scenes"] not in CUBE
        found += [row | {"trained_for": stop} for row in looked_at(net, rows, cell, probed)]
    return found


def _making(cell: Cell) -> denoise.Making:
    count = len(scenes_of(cell["scenes"]).codes) * cell["per"]
    return denoise.Making(cell["to_image"], KEPT, denoise.at_once(count))


def looked_at(net: Any, rows: np.ndarray, cell: Cell, probed: bool) -> list[dict[str, Any]]:
    """What a trained model makes of every combination, and what its activations say about it."""
    scenes, per = scenes_of(cell["scenes"]), cell["per"]
    there = np.arange(len(scenes.codes))
    number = np.repeat(there, per)
    images, seen = denoise.sample(net, scenes.codes[number], cell["seed"], cell["to_image"], KEPT)
    by, accuracy = judge_of(scenes, cell["judged"])
    right = judge.right(by, scenes, images, scenes.codes[number]).reshape(len(there), per, -1)
    held = ~np.isin(there, rows)
    apart = distance(scenes, rows)
    share = right.all(2).mean(1)
    told, scores = {}, {}
    if probed:
        few = np.tile(np.arange(per) < PROBED, len(there))
        told, scores = expected(
            scenes, number[few], held, {name: x[few] for name, x in seen.items()}, 1 - share
        )
    images = images.reshape(len(there), per, *images.shape[1:])
    shown = held & (probed and cell["shown"])
    images = (
        np.round((images + 1) * LEVELS) / LEVELS - 1
    )  # a third of the bytes, and nobody sees it
    return [
        {
            "combination": _name(scenes, int(row)),
            "unseen": bool(held[i]),
            "distance": int(apart[i]),
            "right": float(share[i]),
            "product": float(right[i].mean(0).prod()),
            "judge": accuracy,
            **{name: float(values[i]) for name, values in told.items()},
            **scores,
            "images": gallery.png(images[i, :SHOWN]) if shown[i] else "",
        }
        for i, row in enumerate(there)
    ]


def _name(scenes: Scenes, row: int) -> str:
    values = scenes.factors.iloc[row]
    return (
        " and ".join(values.index[values])
        if isinstance(scenes, Crowd)
        else " ".join(values[["size", "colour", "shape"]])
    )


def expected(
    scenes: Scenes,
    number: np.ndarray,
    held: np.ndarray,
    seen: dict[str, np.ndarray],
    failure: np.ndarray,
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The expected failure of each unseen combination, from its activations, from probes of other combinations' factors
    and from how rare its pairs are; and how well each ranks what failed."""
    from recombine.probe import Decodability

    factors, unseen, names = scenes.factors, held[number], np.arange(len(held)).astype(str)
    other = np.arange(len(held))
    other[~held] = np.random.default_rng(0).permutation(other[~held])
    new, new_names = factors.iloc[number[unseen]].reset_index(drop=True), names[number[unseen]]
    fit, told, scores = {}, {}, {}
    for name, rows in (("expected", number), ("control", other[number]), ("rare", number)):
        if name != "rare":
            layers = (
                seen
                if name == "expected"
                else {fit["expected"].layer_: seen[fit["expected"].layer_]}
            )
            fit[name] = Decodability().fit(
                layers, factors.iloc[rows].reset_index(drop=True), names[number], unseen
            )
        probe = fit["expected" if name == "rare" else name]
        ranking = probe.rank(new, None if name == "rare" else seen[probe.layer_][unseen], new_names)
        told[name] = np.full(len(held), np.nan)
        told[name][ranking["combination"].astype(int)] = ranking["error"]
        scores[f"{name}/rank"], scores[f"{name}/auroc"] = ranked(told[name][held], failure[held])
    best = fit["expected"].scores_
    best = best[(best["layer"] == fit["expected"].layer_) & (best["split"] == "held out")]
    return told, scores | {"read/unseen": float(best["score"].mean())}
