"""Students that are told the modules outright, and yet do not generalise: do they lose them on the way?

Claim: under the identity encoding the code tells the modules perfectly, but networks that fail to generalise lose them
in deeper layers: to see the parts is not to compose them (arXiv 2507.07207, section 4).

Students of one size differ in nothing but the number of train tasks. What they lose is read layer by layer, from the
code to the output. The contrast are students of the same size that generalise: a layer close to the output may tell
less of the task in them, too. Two decoders: as published, fitted on train tasks and scored on unseen ones, where few
train tasks make a poor decoder as well as a poor student; and one fitted on half of all tasks and scored on the other
half (`TaskInformation`), the same for every student. From both gaps that of the untrained twins is subtracted.

Command:  recombine run information_loss --scale small
Runtime:  3 minutes on 2 busy cores; full: 2.4 minutes on an H200.
Expected: behind the first layer, those that fail (R2 below .5) tell less of the modules than those that generalise (R2
          above .9).
Measured: full (2026-11-16, M=16, 4x1024, 8 seeds; 7 students fail, 32 generalise): read by a decoder of train tasks,
          the four hidden layers tell .90, .54, .29 and .10 of the modules in those that fail, .99, .90, .62 and .20 in
          those that generalise; the mean gap behind the first layer is .25, of untrained twins .08. A decoder of all
          tasks finds the contrary: .99, .92, .81 and .51 in those that fail, .99, .92, .64 and .21 in those that
          generalise. So what fails keeps more, and generalising students move on to the answer. small (2026-11-15, M=8,
          three hidden layers, 3 seeds; 6 students fail, 6 generalise): read by a decoder of train tasks, the last
          hidden layer tells .36 of the modules in those that fail, .63 in those that generalise, the layer before .74
          and .96. But the mean gap (.20) is that of their untrained twins (.21), and a decoder of all tasks finds none
          (-.003): .70 and .62, .92 and .96. So nothing is lost: it is the decoder that lacks train tasks. And those
          that generalise do not keep all modules in the last layer either.
"""

import re
from typing import Any

import pandas as pd

from recombine.basics.statistics import over_seeds
from recombine.experiments import claim as ledger
from recombine.experiments.paper.decodability import by_layer, layers_of, untrained
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.diagnostics.task_information import TaskInformation
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.fast import EARLIER_FAST
from recombine.reporting import figure
from recombine.sweeps.run import Run, paper, sweep

TITLE = (
    "Where the modules are lost: decodability by layer of students that do and do not generalise"
)
SOURCE = "arXiv 2507.07207, section 4"
FRACTIONS = {
    "tiny": (0.3, 0.7),
    "small": (0.125, 0.5, 0.93, 0.95),
    "full": (0.25, 0.5, 0.75, 0.9, 0.95, 0.98),
}
SEEDS = {"tiny": 1, "small": 3, "full": 8}
FAILS, WORKS = 0.5, 0.9  # R2 on unseen tasks: below the one, above the other
DECODERS = {
    "train tasks": "LinearDecodability",
    "all tasks": "TaskInformation",
}  # what they are fitted on


def runs(scale: str) -> list[Run]:
    """Held-out fraction x seed, one student, identity encoding, trained and untrained."""
    bases = {
        "full": paper(
            recipe=EARLIER_FAST, num_tasks=512, num_points=4, num_steps=5000, num_evals=1
        ),
        "small": Run(num_steps=3000, num_evals=1),
        "tiny": Run(
            Hyperteacher(num_modules=5, num_hot=2, d_input=4, d_hidden=4, num_outputs=4),
            model=MLP((8, 8)),
            num_steps=20,
            num_evals=1,
            num_eval_tasks=32,
        ),
    }
    axes = {"frac_test": FRACTIONS[scale], "seed": range(SEEDS[scale])}
    trained = sweep(bases[scale], diagnostics=[(LinearDecodability(), TaskInformation())], **axes)
    return [*trained, *map(untrained, trained)]


def _last(rows) -> Any:
    """The last evaluation; an untrained student is called by what becomes of its trained twin."""
    last = ledger.last(rows)
    last["held out"] = last["frac_test"].map("{:.1%} held out".format)
    last["twin"] = last["recipe.learning_rate"] == 0
    scores = last[~last["twin"]].set_index(["frac_test", "seed"])["test/r2"]
    final = [
        scores.get(pair, float("nan")) for pair in zip(last["frac_test"], last["seed"], strict=True)
    ]
    last["student"] = [
        "fails" if r2 < FAILS else "generalises" if r2 > WORKS else "between" for r2 in final
    ]
    return last


def _lost(last, fitted_on: str, twin: bool = False) -> dict[str, Any]:
    """For students that fail and that generalise (or for their untrained twins), the mean decodability of every
    layer."""
    layers = layers_of(last, DECODERS[fitted_on])
    means = (
        last[last["twin"] == twin].groupby("student")[list(layers)].mean().rename(columns=layers)
    )
    found = {
        student: means.loc[student].dropna()
        for student in ("fails", "generalises")
        if student in means.index
    }
    return {student: told for student, told in found.items() if len(told)}


def _deep(layer: str) -> bool:
    """A hidden layer behind the first, whose input is not the code itself."""
    return bool(re.fullmatch(r"(pre|hidden)[1-9]\d*", layer))


def missing(last, fitted_on: str, twin: bool = False) -> float:
    """How much less those that fail tell of the modules, on average over the hidden layers behind the first."""
    means = _lost(last, fitted_on, twin)
    if len(means) < 2:
        return float("nan")
    layers = [layer for layer in means["fails"].index if _deep(layer)]
    return float((means["generalises"][layers] - means["fails"][layers]).mean())


def learnt(last, fitted_on: str) -> float:
    """The same beyond what is missing in their untrained twins: what training has lost."""
    return missing(last, fitted_on) - missing(last, fitted_on, twin=True)


def summary(rows) -> dict[str, float]:
    """The mean decodability of every layer, of students that fail and that generalise, by both decoders."""
    last = _last(rows)
    counts = last[~last["twin"]]["student"].value_counts()
    found = {f"students: {name}": float(n) for name, n in counts.items()}
    for fitted_on in DECODERS:
        found[f"{fitted_on}: gap"] = missing(last, fitted_on)
        found[f"{fitted_on}: gap of untrained twins"] = missing(last, fitted_on, twin=True)
        for student, means in _lost(last, fitted_on).items():
            found |= {
                f"{fitted_on}: {layer}, {student}": float(value) for layer, value in means.items()
            }
    return found


def figures(rows) -> dict:
    """Decodability by layer and by outcome, with both decoders; layers after their nonlinearity, as those before it
    tell what the layer below does."""
    last = _last(rows)
    last["outcome"] = last["student"] + last["twin"].map({True: ", untrained twin", False: ""})
    drawn = [name for name in last if not re.search(r"/pre\d+/", name)]
    extremes = last.loc[last["student"] != "between", drawn]
    return {
        fitted_on.replace(" ", "_"): figure.lines(
            by_layer(extremes, ["outcome", "run"], probe),
            "layer",
            "decodability r2",
            by="outcome",
            title=f"Modules told by each layer, to a decoder fitted on {told}",
            x_title="layer, from the code to the output",
            y_title="decodability (R²)",
        )
        for (fitted_on, probe), told in zip(
            DECODERS.items(), ("train tasks", "half of all tasks"), strict=True
        )
    }


def claims(rows) -> list:
    """Those that fail lose modules in deeper layers, by both decoders; those that generalise lose none."""
    last = None if rows is None else _last(rows)
    if last is not None:  # few columns: intervals draw from them again and again
        last = last[
            ["run", "seed", "student", "twin", *last.filter(regex=r"^[A-Z]\w+/\w+/test/r2$")]
        ]
    return [*(_claim(last, fitted_on) for fitted_on in DECODERS), _keeps(last)]


def _claim(last, fitted_on: str) -> ledger.Claim:
    measured = interval = None
    if last is not None and learnt(last, fitted_on) == learnt(last, fitted_on):
        measured = learnt(last, fitted_on)
        interval = over_seeds(last, lambda frame: learnt(frame, fitted_on))
    return ledger.Claim(
        name=f"lost by those that fail, decoder of {fitted_on}",
        statement="Told the modules outright, students that fail tell less of them behind their first layer than "
        "students of the same size that generalise (gap in R2, mean over hidden layers, beyond that of their untrained "
        f"twins; decoder fitted on {fitted_on})",
        source=SOURCE,
        published="lost in deeper layers",
        measured=measured,
        holds=None if interval is None else interval[0] > 0.05,
        interval=interval,
        control="untrained twins have a smaller gap",
    )


def _keeps(last) -> ledger.Claim:
    measured = interval = None
    if last is not None and _kept(last) == _kept(last):
        measured, interval = _kept(last), over_seeds(last, _kept)
    return ledger.Claim(
        name="kept by those that generalise",
        statement="Students that generalise keep the modules decodable in every hidden layer (the least of them; "
        "decoder fitted on train tasks)",
        source=SOURCE,
        published="kept",
        measured=measured,
        holds=None if interval is None else interval[0] > 0.9,
        interval=interval,
    )


def _kept(last) -> float:
    """The lowest mean decodability of a hidden layer of students that generalise."""
    means = _lost(last, "train tasks").get("generalises", pd.Series(dtype=float))
    hidden = [
        value for layer, value in means.items() if re.fullmatch(r"(pre|hidden)\d+", str(layer))
    ]
    return float(min(hidden, default=float("nan")))
