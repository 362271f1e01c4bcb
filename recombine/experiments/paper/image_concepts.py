"""Do an image model's activations predict which prompts it will draw wrongly?

Claim: prompts whose concepts cannot be decoded from the activations of an image model are those
that it draws wrongly (arXiv 2507.07207, section on image generation).

You need the weights of a diffusers pipeline with a UNet or a transformer. Every prompt names three
concepts; a quarter of the combinations is held out. Images are drawn with several seeds, and
activations are averaged over space and steps. Logistic regressions on standardized features, one
for each concept, are fitted on the other combinations. Held-out prompts are ranked by log loss.

Unlike in the paper's code, the layer is chosen by cross-validation on train prompts, steps are
counted correctly, and only the conditional half of a batch is recorded. Text encoders are probed,
too, but never used for the ranking: they contain the prompt whatever is drawn. The baseline is how
rare the prompt's pairs of concepts are among train prompts; the control is a probe of the concepts
of another prompt. A judge decides which images are wrong; without one there is no verdict. Random
weights get no verdict either: they draw no concepts, but their activations still encode the prompt.

Settings: `--set pipeline=FOLDER_OR_ID judge=clip:FOLDER_OR_ID` (or judge=FILE.py:FUNCTION, a
function from image to factors), concepts=animals|solids|clothes, num_concepts, num_prompts,
num_images, num_steps, join=mean|each|concatenate, seed. Images are saved beside the rows after each
prompt: a stopped command continues from there, and another judge uses the same images. Without a
pipeline, one with random weights shows that everything works.

Command:  recombine run image_concepts --scale full --set pipeline=FOLDER_OR_ID
          judge=clip:FOLDER_OR_ID
Runtime:  small, random weights: 20 s on one core; full: not yet run.
Expected: a positive rank correlation of log loss and failures, better than that of the baseline;
          none for the control.
"""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require
from recombine.basics.random_streams import generator
from recombine.basics.statistics import LEVELS, NUM_DRAWS, rank_correlation
from recombine.basics.suggest import did_you_mean
from recombine.experiments.claim import (
    Frame,
    Measured,
    Statistic,
    above,
    contains,
    control,
    hypothesis,
    reproduces,
)
from recombine.experiments.plots import bars, custom, scatter
from recombine.reporting import gallery

TITLE = "Which prompts will an image model draw wrongly? Predicted from its activations"
SOURCE = "arXiv 2507.07207, section on image generation"
ANIMALS = ["cat", "dog", "owl", "fox", "hen", "elk", "cow", "pig", "bear", "frog", "lion", "goat"]
ANIMALS += ["duck", "horse", "mouse", "zebra", "tiger", "sheep", "eagle", "rabbit"]
COLOURS = ["red", "blue", "green", "yellow", "black", "white", "orange", "purple", "pink", "grey"]
SOLIDS = ["cube", "ball", "cone", "cylinder", "pyramid", "ring", "torus", "prism", "disc", "star"]
PLACES = ["table", "carpet", "beach", "meadow", "road", "stage", "shelf", "roof", "bridge", "sofa"]
CLOTHES = ["hat", "scarf", "jacket", "shirt", "crown", "cape", "sweater", "tie", "dress", "vest"]
# Lists of concepts, the template, and the number of concepts from each list: three in all.
CONCEPTS: dict[str, tuple[dict[str, list[str]], str, dict[str, int]]] = {
    "animals": ({"animal": ANIMALS}, "a photo of {a animal}", {"animal": 3}),
    "solids": (
        {"colour": COLOURS, "solid": SOLIDS, "place": PLACES},
        "a photo of {a colour} {solid} on a {place}",
        {"colour": 1, "solid": 1, "place": 1},
    ),
    "clothes": (
        {"animal": ANIMALS, "colour": COLOURS, "garment": CLOTHES},
        "a photo of {a animal} wearing {a colour} {garment}",
        {"animal": 1, "colour": 1, "garment": 1},
    ),
}
# Concepts of each list, prompts (if there are as many), images of each prompt, denoising steps.
SIZES = {
    "tiny": {"num_concepts": 5, "num_prompts": 30, "num_images": 2, "num_steps": 2},
    "small": {"num_concepts": 6, "num_prompts": 60, "num_images": 2, "num_steps": 4},
    "full": {"num_concepts": 20, "num_prompts": 400, "num_images": 4, "num_steps": 30},
}
# Probes need two images of a prompt: one to be fitted on and one to be scored.
MIN_SIZES = {"num_concepts": 4, "num_prompts": 8, "num_images": 2, "num_steps": 1}
RANDOM = "random weights"
JOINS = ("mean", "each", "concatenate")
FRAC_TEST = 0.25
CONTROL_LABEL = "control: another prompt"


def cells(
    scale: str,
    pipeline: str = "",
    judge: str = "",
    concepts: str = "animals",
    num_concepts: int = 0,
    num_prompts: int = 0,
    num_images: int = 0,
    num_steps: int = 0,
    join: str = "mean",
    seed: int = 0,
) -> list[dict[str, Any]]:
    """One cell: all prompts of one pipeline. A number that is 0 is taken from the scale."""
    require(
        bool(pipeline) or scale != "full",
        "random weights at full scale show nothing: name weights by --set pipeline=FOLDER_OR_ID",
    )
    if concepts not in CONCEPTS:
        raise InputError(f"there are no concepts {concepts!r}: {did_you_mean(concepts, CONCEPTS)}")
    if join not in JOINS:
        raise InputError(f"join cannot be {join!r}: {did_you_mean(join, JOINS)}")
    chosen = {
        "num_concepts": num_concepts,
        "num_prompts": num_prompts,
        "num_images": num_images,
        "num_steps": num_steps,
    }
    sizes = {name: number or SIZES[scale][name] for name, number in chosen.items()}
    for name, minimum in MIN_SIZES.items():
        require(sizes[name] >= minimum, f"{name} must be at least {minimum}, got {sizes[name]}")
    make_prompts(concepts, sizes["num_concepts"], sizes["num_prompts"], seed)  # raises errors early
    cell = {
        "pipeline": pipeline or RANDOM,
        "judge": judge,
        "concepts": concepts,
        "join": join,
        "seed": seed,
    }
    if judge:
        from recombine.probe import judges

        cell["judge_code"] = judges.code_hash(judge)  # a missing judge is an error at once
    return [cell | sizes]


def make_prompts(concepts: str, num_concepts: int, num_prompts: int, seed: int) -> Any:
    """The prompts, with their factors and which of them are held out."""
    from recombine.probe import Prompts

    lists, template, num_hot = CONCEPTS[concepts]
    used = {name: words[:num_concepts] for name, words in lists.items()}
    try:
        return Prompts(
            used, template, num_hot, frac_test=FRAC_TEST, max_combinations=num_prompts, seed=seed
        )
    except InputError as error:
        raise InputError(
            f"{num_prompts} prompts are too few for {num_concepts} concepts of each list: raise "
            f"num_prompts, or lower num_concepts ({error})"
        ) from error


def measure(
    pipeline: str,
    judge: str,
    concepts: str,
    num_concepts: int,
    num_prompts: int,
    num_images: int,
    num_steps: int,
    join: str,
    seed: int,
    folder: Path,
    judge_code: str = "",
) -> list[dict[str, Any]]:
    """Draw, record, judge and probe: a row per prompt, then one per layer and side of the split."""
    from recombine.probe import judges
    from recombine.probe.failure_prediction import FailurePrediction
    from recombine.probe.image_cache import ImageCache

    prompts = make_prompts(concepts, num_concepts, num_prompts, seed)
    about = {"pipeline": pipeline, "join": join}
    cache = ImageCache(folder, about, lambda: _recorded_pipeline(pipeline, join))
    images = cache.draw(prompts.texts, range(num_images), num_inference_steps=num_steps)
    failed = np.full(len(images.prompts), np.nan)
    if judge:
        verdicts = judges.verdicts(judge, images.files, prompts, images.prompts)
        failed = verdicts["failed"].to_numpy(float)
    text_layers = {}
    layers = {}
    for name, activations in images.activations.items():
        side = text_layers if name.startswith("text_encoder") else layers
        side[name] = activations
    rng = generator(seed, "image_concepts")
    prediction = FailurePrediction(prompts, images.prompts, layers, failed, rng)
    rows = prediction.rows.assign(failed=pd.Series(failed).groupby(images.prompts).mean())
    rows["image/thumbnail"] = [_thumbnail(file) for file in images.files[::num_images]]
    text_rows = prediction.other(text_layers) if text_layers else []
    return rows.to_dict("records") + prediction.layers() + text_rows


def _recorded_pipeline(name: str, join: Any) -> Any:
    from recombine.probe import Diffusion, tiny

    pipeline: Any = tiny.pipeline("sd15") if name == RANDOM else name
    fractions = None if join == "each" else "all"
    return Diffusion(pipeline, fractions=fractions, join=join, progress=False)


def _thumbnail(file: Path) -> str:
    from PIL import Image

    with Image.open(file) as image:
        return gallery.thumbnail(image)


def prepare(rows: Frame) -> Frame:
    """The rows as they are. Those of prompts and of layers have different columns."""
    return rows


def held_out_prompts(rows: Frame) -> Frame:
    """The rows of held-out prompts, the highest log loss first."""
    prompts = rows[rows["what"] == "prompt"]
    is_held_out = prompts["held_out"].astype(bool)
    return prompts[is_held_out].sort_values("expected", ascending=False)


def judged_prompts(rows: Frame) -> Frame | None:
    """The held-out prompts, or None if no image was judged."""
    held_out = held_out_prompts(rows)
    return held_out if held_out["failed"].notna().any() else None


def judged_prompts_of_trained_weights(rows: Frame) -> Frame | None:
    """As `judged_prompts`, or None if the weights are random."""
    is_random = (held_out_prompts(rows)["pipeline"] == RANDOM).any()
    return None if is_random else judged_prompts(rows)


def correlation(prompts: Frame, column: str) -> float:
    """The rank correlation of a column with the share of failed images, where both are known."""
    known = prompts[[column, "failed"]].dropna()
    return rank_correlation(known[column], known["failed"])


def bootstrapped_over_prompts(statistic: Statistic) -> Callable[[Frame], Measured]:
    """Measure a statistic and its 95% bootstrap interval over prompts.

    Draws without a rank correlation, where all images failed or none, are left out.
    """

    def measure_prompts(prompts: Frame) -> Measured:
        rng = generator(0, "image_concepts")
        values = []
        for _ in range(NUM_DRAWS):
            drawn = rng.integers(len(prompts), size=len(prompts))
            values.append(statistic(prompts.iloc[drawn]))
        low, high = pd.Series(values).quantile(list(LEVELS))
        return Measured(
            statistic(prompts), (float(low), float(high)), "95% bootstrap interval over prompts"
        )

    return measure_prompts


def summary(rows: Frame) -> dict[str, float]:
    """How well concepts are decoded, how many images failed, and the rank correlations."""
    held_out = held_out_prompts(rows)
    is_chosen = (rows["what"] == "layer") & (rows["layer"] == held_out["layer"].iloc[0])
    layer = rows[is_chosen].set_index("split")
    values = {
        "read on held-out prompts": layer["score"]["held out"],
        "as another prompt": layer["shuffled"]["held out"],
    }
    if held_out["failed"].notna().any():
        values["failed"] = held_out["failed"].mean()
        for column in ("expected", "rarity", "control"):
            values[f"rank correlation, {column}"] = correlation(held_out, column)
    # There is no rank correlation if all images failed or none.
    return {name: float(value) for name, value in values.items() if not pd.isna(value)}


def scores_by_layer(rows: Frame) -> Frame:
    """The accuracy of the probes by layer, in the order of the network, and of the control."""
    layers = rows[rows["what"] == "layer"]
    shuffled = layers[layers["split"] == "held out"].assign(split=CONTROL_LABEL)
    shuffled["score"] = shuffled["shuffled"]
    scores = pd.concat([layers, shuffled], ignore_index=True)
    scores["accuracy"] = scores["score"]
    scores["layer"] = pd.Categorical(scores["layer"], layers["layer"].unique())
    scores["split"] = pd.Categorical(scores["split"], ["seen", "held out", CONTROL_LABEL])
    return scores


def draw_images(rows: Frame) -> Any:
    """A sheet with an image of every held-out prompt."""
    held_out = held_out_prompts(rows)
    captions = [_caption(row) for row in held_out.to_dict("records")]
    pictures = pd.DataFrame({"image": held_out["image/thumbnail"], "caption": captions})
    is_judged = held_out["failed"].notna()
    pictures["good"] = (held_out["failed"] < 0.5).astype(float).where(is_judged)
    return gallery.sheet(pictures, "Held-out prompts, the highest predicted failure first")


def _caption(row: dict[str, Any]) -> str:
    lines = textwrap.wrap(row["prompt"].removeprefix("a photo of "), 20)
    lines.append(f"log loss {row['expected']:.2f}")
    if not pd.isna(row["failed"]):
        lines.append(f"{row['failed']:.0%} failed")
    return "<br>".join(lines)


CLAIMS = [
    reproduces(
        "ranked",
        "Held-out prompts whose concepts are hard to decode are drawn wrongly (rank correlation)",
        published="decodability predicts success",
        rows=judged_prompts_of_trained_weights,
        measure=bootstrapped_over_prompts(lambda prompts: correlation(prompts, "expected")),
        passes=above(0),
        control="probes of another prompt's concepts; no verdict for random weights",
    ),
    hypothesis(
        "beyond counting",
        "Activations rank prompts better than how rare their pairs of concepts are among train "
        "prompts (difference of the rank correlations)",
        source="ours",
        rows=judged_prompts_of_trained_weights,
        measure=bootstrapped_over_prompts(
            lambda prompts: correlation(prompts, "expected") - correlation(prompts, "rarity")
        ),
        passes=above(0),
        control="the baseline uses no activations",
    ),
    control(
        "control",
        "Probes of another prompt's concepts predict nothing (rank correlation)",
        rows=judged_prompts_of_trained_weights,
        measure=bootstrapped_over_prompts(lambda prompts: correlation(prompts, "control")),
        passes=contains(0),
    ),
]
FIGURES = [
    scatter(
        "failed",
        against="expected",
        color="what",
        rows=judged_prompts,
        name="outcome",
        title="Held-out prompts: predicted failure and the verdict of the judge",
        x_title="log loss of the prompt's concepts",
        y_title="share of images that failed",
        text="prompt",
        fit=True,
        finish=lambda drawn, rows: drawn.update_yaxes(range=[-0.05, 1.05]),
    ),
    bars(
        "accuracy",
        against="layer",
        color="split",
        rows=scores_by_layer,
        name="layers",
        title="Decodability of the concepts, by layer",
        x_title="",
        y_title="accuracy, mean over concepts",
    ),
    custom("images", draw_images),
]
