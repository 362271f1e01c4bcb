"""Can one tell from an image model's activations which prompts it will get wrong?

Claim: prompts whose concepts cannot be read from the activations of an image model are those that it draws wrongly
(arXiv 2507.07207, section on image generation).

For those who have weights: any pipeline of diffusers with a UNet or a transformer. Every prompt names three concepts;
a quarter of the combinations is held out. Images are drawn with several seeds, and what layers hold is averaged over
space and steps. Logistic regressions on standardised features, one for each concept, are fitted on the other
combinations, and held-out prompts are ranked by log loss. Unlike in the paper's code the layer is chosen by
cross-validation on train prompts, steps are counted right, and only the conditional half of a batch is read. Text
encoders are read too but never ranked by, since they hold the prompt whatever is drawn. The baseline is how rare the
prompt's pairs of concepts are among train prompts; the control is a probe of another prompt's concepts. A judge says
which images are wrong; without one there is no outcome, and no verdict.

Settings: `--set pipeline=FOLDER_OR_ID judge=clip:FOLDER_OR_ID` (or judge=FILE.py:FUNCTION, image -> factors), and
concepts=animals|solids|clothes, num_concepts, num_prompts, num_images, num_steps, join=mean|each|concatenate, seed.
What is drawn is kept beside the rows, prompt by prompt: a stopped command goes on, and another judge draws nothing
anew. Without a pipeline, one of random weights shows that everything works. It makes no concepts, so that nothing is
claimed.

Command:  recombine run image_concepts --scale full --set pipeline=FOLDER_OR_ID judge=clip:FOLDER_OR_ID
Runtime:  small, random weights: 20 s on one core; full: not yet run.
Expected: a positive rank correlation of log loss and failures, better than the baseline's; none for the control.
Measured: no pipeline with trained weights yet. Random weights (2026-11-16, small, 8 animals, 56 prompts, 3 splits): all
          images are nearly the same noise (pixels differ by 3 between prompts and by 45 within an image), but of the
          held-out prompts' concepts .77 to .82 are read (.54 to .57 by probes of another prompt's; always saying
          "absent" has .63): a network passes on what it was asked, whatever it draws. So decodability by itself says
          nothing of images; only a judge's verdicts do.
"""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require
from recombine.basics.random_streams import generator
from recombine.basics.statistics import LEVELS, NUM_DRAWS, rank_correlation
from recombine.basics.suggest import nearest
from recombine.experiments import claim as ledger
from recombine.reporting import figure, gallery

TITLE = "Which prompts will an image model get wrong? Predicted from its activations"
SOURCE = "arXiv 2507.07207, section on image generation"
ANIMALS = [
    *(
        "cat",
        "dog",
        "owl",
        "fox",
        "hen",
        "elk",
        "cow",
        "pig",
        "bear",
        "frog",
        "lion",
        "goat",
        "duck",
        "horse",
        "mouse",
    ),
    *("zebra", "tiger", "sheep", "eagle", "rabbit"),
]
COLOURS = ["red", "blue", "green", "yellow", "black", "white", "orange", "purple", "pink", "grey"]
SOLIDS = ["cube", "ball", "cone", "cylinder", "pyramid", "ring", "torus", "prism", "disc", "star"]
PLACES = ["table", "carpet", "beach", "meadow", "road", "stage", "shelf", "roof", "bridge", "sofa"]
CLOTHES = ["hat", "scarf", "jacket", "shirt", "crown", "cape", "sweater", "tie", "dress", "vest"]
# Lists of concepts, the template, and how many of each list are hot: three in all.
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
SIZES = {"tiny": (5, 30, 2, 2), "small": (6, 60, 2, 4), "full": (20, 400, 4, 30)}
LEAST = (
    4,
    8,
    2,
    1,
)  # of these: probes need two images of a prompt, one to be fitted on and one to be scored
RANDOM = "random weights"
JOINS = ("mean", "each", "concatenate")
FRAC_TEST = 0.25


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
    """One cell, all prompts of one pipeline; a number that is 0 is as the scale says."""
    told = "a random pipeline at full scale teaches nothing"
    require(bool(pipeline) or scale != "full", f"{told}: name one with --set pipeline=FOLDER_OR_ID")
    if concepts not in CONCEPTS:
        raise InputError(f"there are no concepts {concepts!r}: {nearest(concepts, CONCEPTS)}")
    if join not in JOINS:
        raise InputError(f"steps cannot be joined by {join!r}: {nearest(join, JOINS)}")
    names = ("num_concepts", "num_prompts", "num_images", "num_steps")
    chosen = zip((num_concepts, num_prompts, num_images, num_steps), SIZES[scale], strict=True)
    sizes = {name: own or usual for name, (own, usual) in zip(names, chosen, strict=True)}
    for name, least in zip(names, LEAST, strict=True):
        require(sizes[name] >= least, f"{name} must be at least {least}, got {sizes[name]}")
    asked(
        concepts, sizes["num_concepts"], sizes["num_prompts"], seed
    )  # what cannot be asked is told at once
    cell = {
        "pipeline": pipeline or RANDOM,
        "judge": judge,
        "concepts": concepts,
        "join": join,
        "seed": seed,
    }
    if judge:  # a judge that is not there is told before anything is drawn
        from recombine.probe import judges

        cell["judge_code"] = judges.code(judge)
    return [cell | sizes]


def asked(concepts: str, num_concepts: int, num_prompts: int, seed: int) -> Any:
    """The prompts, with their factors and which are held out."""
    from recombine.probe import Prompts

    lists, template, num_hot = CONCEPTS[concepts]
    cut = {name: listed[:num_concepts] for name, listed in lists.items()}
    try:
        return Prompts(
            cut, template, num_hot, frac_test=FRAC_TEST, max_combinations=num_prompts, seed=seed
        )
    except InputError as error:
        told = f"{num_prompts} prompts are too few for {num_concepts} concepts of each list"
        raise InputError(f"{told}: raise num_prompts, or lower num_concepts ({error})") from error


def measure(
    pipeline: str,
    judge: str,
    join: str,
    num_images: int,
    num_steps: int,
    folder: Path,
    judge_code: str = "",
    **which: Any,
) -> list[dict[str, Any]]:
    """Draw, record, judge and probe: a row for each prompt, then one for each layer and side of the split."""
    from recombine.probe import judges
    from recombine.probe.drawings import Drawings
    from recombine.probe.foretold import Foretold

    which.pop("judge_code", None)
    prompts = asked(**which)
    drawings = Drawings(
        folder, {"pipeline": pipeline, "join": join}, lambda: _diffusion(pipeline, join)
    )
    drawn = drawings.draw(prompts.texts, range(num_images), num_inference_steps=num_steps)
    failed = np.full(len(drawn.prompts), np.nan)
    if judge:
        failed = judges.verdicts(judge, drawn.files, prompts, drawn.prompts)["failed"].to_numpy(
            float
        )
    texts = {
        name: rows for name, rows in drawn.activations.items() if name.startswith("text_encoder")
    }
    layers = {name: rows for name, rows in drawn.activations.items() if name not in texts}
    foretold = Foretold(
        prompts, drawn.prompts, layers, failed, generator(which["seed"], "image_concepts")
    )
    pictures = [_thumbnail(file) for file in drawn.files[::num_images]]
    rate = pd.Series(failed).groupby(drawn.prompts).mean()
    rows = foretold.rows.assign(failed=rate, **{"image/thumbnail": pictures}).to_dict("records")
    return rows + foretold.layers() + (foretold.other(texts) if texts else [])


def _diffusion(pipeline: str, join: Any) -> Any:
    from recombine.probe import Diffusion

    made: Any = pipeline
    if pipeline == RANDOM:
        from recombine.probe import tiny

        made = tiny.pipeline("sd15")
    return Diffusion(made, fractions=None if join == "each" else "all", join=join, progress=False)


def _thumbnail(file: Path) -> str:
    from PIL import Image

    with Image.open(file) as image:
        return gallery.thumbnail(image)


def _held(rows: Any) -> Any:
    mine = rows[rows["what"] == "prompt"]
    return mine[mine["held_out"].astype(bool)].sort_values("expected", ascending=False)


def correlation(frame: Any, column: str) -> float:
    """The rank correlation of a column with how often images failed, over the prompts of which both are known."""
    known = frame[[column, "failed"]].dropna()
    return rank_correlation(known[column], known["failed"])


def summary(rows) -> dict[str, float]:
    """How well concepts are read, how many images failed, and what predicts it."""
    held = _held(rows)
    layers = rows[(rows["what"] == "layer") & (rows["layer"] == held["layer"].iloc[0])].set_index(
        "split"
    )
    told = {
        "read on held-out prompts": layers["score"]["held out"],
        "as another prompt": layers["shuffled"]["held out"],
    }
    if held["failed"].notna().any():
        told |= {"failed": held["failed"].mean()}
        told |= {
            f"rank correlation, {name}": correlation(held, name)
            for name in ("expected", "rarity", "control")
        }
    return {
        name: float(value) for name, value in told.items() if not pd.isna(value)
    }  # nothing ranks where all failed


def figures(rows) -> dict[str, Any]:
    """Log loss against outcomes, what is read from every layer, and the images by expected failure."""
    held, layers, drawn = _held(rows), rows[rows["what"] == "layer"], {}
    if held["failed"].notna().any():
        drawn["outcome"] = figure.scatter(
            held.assign(of="prompts"),
            "expected",
            "failed",
            "of",
            text="prompt",
            fit=True,
            title="Held-out prompts: expected failure and what the judge saw",
            x_title="log loss of the prompt's concepts",
            y_title="share of images that failed",
        ).update_yaxes(range=[-0.05, 1.05])
    mixed = layers[layers["split"] == "held out"]
    told = "control: another prompt"
    parts = [layers.assign(what=layers["split"]), mixed.assign(what=told, score=mixed["shuffled"])]
    whole = pd.concat(parts, ignore_index=True).rename(columns={"score": "accuracy"})
    whole["layer"] = pd.Categorical(
        whole["layer"], layers["layer"].unique()
    )  # in the order of the network
    whole["what"] = pd.Categorical(whole["what"], ["seen", "held out", told])
    drawn["layers"] = figure.bars(
        whole,
        "layer",
        "accuracy",
        "what",
        title="What is read of the concepts, by layer",
        x_title="",
        y_title="accuracy, mean over concepts",
    )
    captions = [_caption(row) for row in held.to_dict("records")]
    pictures = pd.DataFrame({"image": held["image/thumbnail"], "caption": captions})
    pictures["good"] = (held["failed"] < 0.5).astype(float).where(held["failed"].notna())
    drawn["images"] = gallery.sheet(
        pictures, "Held-out prompts, those first that are expected to fail"
    )
    return drawn


def _caption(row: dict[str, Any]) -> str:
    lines = textwrap.wrap(row["prompt"].removeprefix("a photo of "), 20)
    seen = [] if pd.isna(row["failed"]) else [f"{row['failed']:.0%} failed"]
    return "<br>".join([*lines, f"log loss {row['expected']:.2f}", *seen])


def claims(rows) -> list[ledger.Claim]:
    """Held-out prompts are ranked better than by chance and by counting, and the control ranks nothing."""
    held = None if rows is None else _held(rows)
    if held is not None and ((held["pipeline"] == RANDOM).any() or held["failed"].isna().all()):
        held = None  # nothing was drawn that could fail, or nobody looked
    return [
        _judged(
            held,
            lambda frame: correlation(frame, "expected"),
            lambda low, high: low > 0,
            name="ranked",
            statement="held-out prompts whose concepts are read badly are drawn wrongly (rank correlation)",
            source=SOURCE,
            published="decodability goes with success",
            control="probes of another prompt's concepts; nothing is claimed of random weights, which make none",
        ),
        _judged(
            held,
            lambda frame: correlation(frame, "expected") - correlation(frame, "rarity"),
            lambda low, high: low > 0,
            name="beyond counting",
            statement="activations rank prompts better than how rare their pairs of concepts are among train prompts",
            source="ours",
            published=ledger.OURS,
            control="the baseline sees no activation",
        ),
        _judged(
            held,
            lambda frame: correlation(frame, "control"),
            lambda low, high: low < 0 < high,
            name="control",
            statement="probes of another prompt's concepts predict nothing (rank correlation)",
            source="control",
            published=ledger.OURS,
        ),
    ]


def _judged(held: Any, statistic: Any, passes: Any, **told: Any) -> ledger.Claim:
    """A claim about a statistic of held-out prompts, with its interval over them."""
    if held is None:
        return ledger.Claim(measured=None, holds=None, **told)
    rng = generator(0, "image_concepts")
    draws = [
        statistic(held.iloc[rng.integers(len(held), size=len(held))]) for _ in range(NUM_DRAWS)
    ]
    low, high = map(
        float, pd.Series(draws).quantile(list(LEVELS))
    )  # draws in which all failed or none are left out
    return ledger.Claim(
        measured=statistic(held), holds=passes(low, high), interval=(low, high), **told
    )
