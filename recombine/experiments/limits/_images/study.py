"""Train diffusion models, generate every combination with them, and predict which ones fail.

Models of one kind of scene and one width train together. Trained models are saved to a folder at
once, so that an interrupted experiment can go on from there.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import numpy as np

from recombine.basics.errors import require
from recombine.basics.version import PACKAGE
from recombine.experiments.limits._images import compilation, denoise, judge, network_io
from recombine.experiments.limits._images.scenes import Crowd, Cube, Scenes, Things
from recombine.experiments.limits._images.scores import rank_and_auroc
from recombine.experiments.limits._images.unet import UNet
from recombine.parts.prng import new_key
from recombine.reporting import gallery
from recombine.sweeps.code_hash import hash_of_files
from recombine.training import device

STAR = ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
CUBE = {"star": STAR, "failing": ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1)), "joined": STAR}
RECORDED_AT = (0.3, 0.7)  # fractions of the denoising steps at which activations are recorded
EVAL_STEPS = (50, 100, 150, 200, 300, 400, 600, 800, 1200, 1600)  # of the cube's training
NUM_SHOWN = 2  # images per held-out combination that the table keeps, for cells that are shown
GRAY_LEVELS = 32  # of a channel of the images that the table keeps
NUM_PROBED = 6  # images per combination for the probes
TRAINING_KEYS = ("scenes", "num_train", "width", "seed", "num_steps", "batch")  # fix the weights
PACKAGED = Path(str(resources.files("recombine.experiments.limits._images") / "weights"))
Cell = dict[str, Any]
ShowProgress = Callable[[str], None]


@functools.cache
def scenes_of(name: str) -> Scenes:
    """The scenes of a cell, by its entry `scenes`."""
    if name == "crowd":
        return Crowd()
    return Cube() if name in CUBE else Things()


def conditioning_of(name: str) -> str:
    """How the networks embed a code: one vector per factor (`summed`) or one for all (`joint`)."""
    return "summed" if name in ("star", "failing") else "joint"


def train_combinations(name: str, num_train: int, seed: int) -> np.ndarray:
    """The train combinations: those of a split of the cube, or random ones with every value."""
    scenes = scenes_of(name)
    if isinstance(scenes, Cube):
        is_train = [tuple(values) in CUBE[name] for values in scenes.values]
        return np.flatnonzero(is_train)
    rng = np.random.default_rng(seed)
    draws = (rng.permutation(len(scenes.codes))[:num_train] for _ in range(10_000))
    complete = next((rows for rows in draws if scenes.codes[rows].any(axis=0).all()), None)
    require(
        complete is not None,
        f"{num_train} random combinations of {name} do not have every value: take more",
    )
    return np.sort(np.asarray(complete))


def distance_to_train(scenes: Scenes, train: np.ndarray) -> np.ndarray:
    """In how many factors each combination differs from the nearest train combination."""
    factors = np.split(scenes.codes, np.cumsum(scenes.blocks)[:-1], axis=1)
    differs = [(factor[:, None] != factor[None, train]).any(2) for factor in factors]
    return np.sum(differs, axis=0).min(1)


def group_of(cell: Cell, cells: Sequence[Cell]) -> list[Cell]:
    """The cells whose models train together: of one kind of scene, one width and one training."""
    return [other for other in cells if _group_key(other) == _group_key(cell)]


def _group_key(cell: Cell) -> tuple[Any, ...]:
    name = cell["scenes"]
    sizes = (cell["width"], cell["num_steps"], cell["batch"])
    return (scenes_of(name), conditioning_of(name), *sizes)


def _shape(group: Sequence[Cell]) -> denoise.Shape:
    first = group[0]
    return denoise.Shape(
        scenes=scenes_of(first["scenes"]),
        width=first["width"],
        num_steps=first["num_steps"],
        batch=first["batch"],
        num_networks=len(group),
        conditioning=conditioning_of(first["scenes"]),
    )


def _eval_steps(cell: Cell) -> list[int]:
    """The steps of training at which a cell is evaluated; of the cube, several before the last."""
    earlier = EVAL_STEPS if cell["scenes"] in CUBE else ()
    return [step for step in earlier if step < cell["num_steps"]] + [cell["num_steps"]]


@functools.cache
def _layout(name: str, width: int) -> Any:
    """The shapes of a network's leaves."""
    blocks = scenes_of(name).blocks
    return jax.eval_shape(lambda: UNet(new_key(0), width, blocks, conditioning_of(name)))


def _file(folder: Path, cell: Cell, step: int) -> Path:
    """The file of a model; its name has a hash of everything that the weights depend on."""
    text = json.dumps([[cell[key] for key in TRAINING_KEYS], _code_hash(), device.on_cpu()])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    model = "{scenes}-{num_train}-{width}-{seed}".format(**cell)
    return folder / f"{model}-{step}-{digest}.safetensors"


@functools.cache
def _code_hash() -> str:
    return hash_of_files((PACKAGE / "experiments" / "limits" / "_images").glob("*.py"))


def compile_ahead(cells: Sequence[Cell]) -> None:
    """Compile the programs of the cells in the background, in their order, if there are cores."""
    for cell in cells:
        scenes = scenes_of(cell["scenes"])
        _shape(group_of(cell, cells)).compile_ahead()
        layout = _layout(cell["scenes"], cell["width"])
        _sampler(cell).compile_ahead(layout, scenes.codes.shape[1])
        num_steps = cell["judged"]
        train_judge = functools.partial(_judge_and_accuracy, scenes, num_steps)
        compilation.compile_ahead(("judge", scenes, num_steps), train_judge)


def networks_of(
    cell: Cell,
    cells: Sequence[Cell],
    folder: Path,
    show_progress: ShowProgress = lambda text: None,
) -> dict[int, Any]:
    """A cell's networks by step of training; its group is trained if they are not in the folder."""
    files = {step: _file(folder, cell, step) for step in _eval_steps(cell)}
    if not all(file.is_file() for file in files.values()):
        _train_group(group_of(cell, cells), folder, show_progress)
    layout = _layout(cell["scenes"], cell["width"])
    return {step: network_io.load(file, layout) for step, file in files.items()}


def _train_group(group: Sequence[Cell], folder: Path, show_progress: ShowProgress) -> None:
    """Train the models of a group together and save each at its steps."""
    shape = _shape(group)
    title = f"{len(group)} models of width {shape.width} train"
    training = denoise.train(
        shape,
        [train_combinations(cell["scenes"], cell["num_train"], cell["seed"]) for cell in group],
        [cell["seed"] for cell in group],
        sorted({step for cell in group for step in _eval_steps(cell)}),
        lambda step: show_progress(f"{title}: {step} of {shape.num_steps} steps"),
    )
    for step, networks in training:
        for number, cell in enumerate(group):
            if step in _eval_steps(cell):
                metadata = {key: str(cell[key]) for key in TRAINING_KEYS} | {"stop": str(step)}
                network = jax.tree.map(lambda leaf, i=number: leaf[i], networks)
                network_io.save(_file(folder, cell, step), network, metadata)


def packaged_network(cell: Cell) -> Any:
    """The network of a cell that comes with the package."""
    name = "{scenes}-{num_train}-{width}-{seed}.safetensors".format(**cell)
    return network_io.load(PACKAGED / name, _layout(cell["scenes"], cell["width"]))


def judge_of(scenes: Scenes, num_steps: int) -> tuple[Any, float]:
    """The judge of these scenes and its accuracy, computed once."""
    train_judge = functools.partial(_judge_and_accuracy, scenes, num_steps)
    return compilation.compiled(("judge", scenes, num_steps), train_judge)


def _judge_and_accuracy(scenes: Scenes, num_steps: int) -> tuple[Any, float]:
    """Train a judge for this many steps; with 0 steps, load the one of the package."""
    if num_steps > 0:
        trained = judge.train(scenes, num_steps)
        return trained, judge.accuracy(trained, scenes, 4096)
    layout = jax.eval_shape(lambda: judge.Judge(new_key(0), scenes.codes.shape[1]))
    packaged = network_io.load(_judge_file(PACKAGED, scenes), layout)
    return packaged, judge.accuracy(packaged, scenes, 1024)


def _judge_file(folder: Path, scenes: Scenes) -> Path:
    return folder / f"judge-{type(scenes).__name__.lower()}.safetensors"


def study(
    cell: Cell,
    cells: Sequence[Cell],
    folder: Path,
    show_progress: ShowProgress = lambda text: None,
) -> list[dict[str, Any]]:
    """One row per combination that a cell's model generates; for the cube also per step."""
    if cell["num_steps"] == 0:
        networks = {0: packaged_network(cell)}
    else:
        compile_ahead(cells)
        networks = networks_of(cell, cells, folder, show_progress)
        scenes = scenes_of(cell["scenes"])
        classifier, accuracy = judge_of(scenes, cell["judged"])
        metadata = {"accuracy": str(accuracy), "judged": str(cell["judged"])}
        network_io.save(_judge_file(folder, scenes), classifier, metadata)
    train = train_combinations(cell["scenes"], cell["num_train"], cell["seed"])
    rows = []
    for step, network in networks.items():
        with_probes = step == cell["num_steps"] and cell["scenes"] not in CUBE
        for row in evaluate(network, train, cell, with_probes):
            rows.append(row | {"trained_for": step})
    return rows


def _sampler(cell: Cell) -> denoise.Sampler:
    num_images = len(scenes_of(cell["scenes"]).codes) * cell["per"]
    return denoise.Sampler(cell["to_image"], RECORDED_AT, denoise.batch_size(num_images))


def evaluate(
    network: Any, train: np.ndarray, cell: Cell, with_probes: bool
) -> list[dict[str, Any]]:
    """One row per combination: the accuracy of its images and, with probes, predicted failure."""
    scenes = scenes_of(cell["scenes"])
    num_combinations = len(scenes.codes)
    per_combination = cell["per"]
    combinations = np.repeat(np.arange(num_combinations), per_combination)  # of each image
    codes = scenes.codes[combinations]
    images, activations = denoise.sample(
        network, codes, cell["seed"], cell["to_image"], RECORDED_AT
    )
    classifier, judge_accuracy = judge_of(scenes, cell["judged"])
    is_correct = judge.is_correct(classifier, scenes, images, codes)  # images x factors
    is_correct = is_correct.reshape(num_combinations, per_combination, -1)
    accuracy = is_correct.all(2).mean(1)
    is_held_out = ~np.isin(np.arange(num_combinations), train)
    distances = distance_to_train(scenes, train)
    errors: dict[str, np.ndarray] = {}
    scores: dict[str, float] = {}
    if with_probes:
        is_probed = np.tile(np.arange(per_combination) < NUM_PROBED, num_combinations)
        probed = {name: layer[is_probed] for name, layer in activations.items()}
        errors, scores = predict_failures(
            scenes, combinations[is_probed], is_held_out, probed, 1 - accuracy
        )
    images = _fewer_gray_levels(images).reshape(
        num_combinations, per_combination, *images.shape[1:]
    )
    rows = []
    for i in range(num_combinations):
        is_shown = is_held_out[i] and with_probes and cell["shown"]
        row = {
            "combination": _name(scenes, i),
            "unseen": bool(is_held_out[i]),
            "distance": int(distances[i]),
            "right": float(accuracy[i]),
            "product": float(is_correct[i].mean(0).prod()),
            "judge": judge_accuracy,
        }
        row |= {name: float(values[i]) for name, values in errors.items()}
        row |= scores
        row["images"] = gallery.png(images[i, :NUM_SHOWN]) if is_shown else ""
        rows.append(row)
    return rows


def _fewer_gray_levels(images: np.ndarray) -> np.ndarray:
    """The images with fewer gray levels: a third of the bytes, and the difference is invisible."""
    half = (GRAY_LEVELS - 1) / 2
    return np.round((images + 1) * half) / half - 1


def _name(scenes: Scenes, combination: int) -> str:
    values = scenes.factors.iloc[combination]
    if isinstance(scenes, Crowd):
        return " and ".join(values.index[values])
    return " ".join(values[["size", "colour", "shape"]])


def predict_failures(
    scenes: Scenes,
    combinations: np.ndarray,
    is_held_out: np.ndarray,
    activations: dict[str, np.ndarray],
    failure: np.ndarray,
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Predict which held-out combinations fail, and compare predictions with the failure rates.

    `combinations` has the combination of each image and `activations` the layers of these images;
    `is_held_out` and `failure` have one value per combination. Three predictors are compared:

    `expected`  the error of probes fitted to train combinations, on the layer chosen there
    `control`   the same on that layer, with probes fitted to the factors of other combinations
    `rare`      how rare the pairs of values of a combination are in training; no activations

    Gives the predicted error of each combination by predictor (NaN if it was trained), and the
    rank correlation and AUROC of each predictor. `read/unseen` is the decodability of held-out
    combinations.
    """
    from recombine.probe import Decodability

    names = np.arange(len(is_held_out)).astype(str)
    image_is_held_out = is_held_out[combinations]

    def factors_of(rows: np.ndarray) -> Any:
        return scenes.factors.iloc[rows].reset_index(drop=True)

    def fit(layers: dict[str, np.ndarray], labels: np.ndarray) -> Decodability:
        probe = Decodability("ridge", edition=1)
        return probe.fit(layers, factors_of(labels), names[combinations], image_is_held_out)

    probe = fit(activations, combinations)
    layer = activations[probe.layer_]
    permuted = _permute_train(is_held_out)
    control = fit({probe.layer_: layer}, permuted[combinations])

    held_out_factors = factors_of(combinations[image_is_held_out])
    held_out_names = names[combinations[image_is_held_out]]
    held_out_layer = layer[image_is_held_out]
    rankings = {
        "expected": probe.rank(held_out_factors, held_out_layer, held_out_names),
        "control": control.rank(held_out_factors, held_out_layer, held_out_names),
        "rare": probe.rank(held_out_factors, None, held_out_names),
    }
    errors: dict[str, np.ndarray] = {}
    scores: dict[str, float] = {}
    for predictor, ranking in rankings.items():
        error = np.full(len(is_held_out), np.nan)
        error[ranking["combination"].astype(int)] = ranking["error"]
        rank, auroc = rank_and_auroc(error[is_held_out], failure[is_held_out])
        errors[predictor] = error
        scores[f"{predictor}/rank"] = rank
        scores[f"{predictor}/auroc"] = auroc
    scores["read/unseen"] = _held_out_score(probe)
    return errors, scores


def _permute_train(is_held_out: np.ndarray) -> np.ndarray:
    """The number of each combination, with those of the train combinations permuted."""
    numbers = np.arange(len(is_held_out))
    numbers[~is_held_out] = np.random.default_rng(0).permutation(numbers[~is_held_out])
    return numbers


def _held_out_score(probe: Any) -> float:
    """The mean score of a fitted probe on held-out combinations, on its chosen layer."""
    table = probe.scores_
    is_chosen = (table["layer"] == probe.layer_) & (table["split"] == "held out")
    return float(table["score"][is_chosen].mean())
