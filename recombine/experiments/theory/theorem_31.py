"""Theorem 3.1 as networks: built, attacked and counted. Computed, not trained.

Claim: on a compact set a ReLU MLP with O(1/sqrt(eps) + M) neurons is within eps of a hyperteacher of M modules, while
to memorise its tasks takes a number that is exponential (arXiv 2507.07207, Theorem 3.1 and section 3).

Cells of three kinds. `count`: neurons and parameters, nothing is built. `attack`: the network is built and its largest
error searched for, by dense sampling and gradient ascent. `thin`: the control, which the search must find guilty: a
network made for 16 times the eps (a quarter of the pieces, or two layers less), and weights between for the one that is
exact at 0 and 1. The constants of the bound follow from the proof and the law of the worlds; nothing is fitted.

Command:  recombine run theorem_31 --scale small
Runtime:  41 s on 2 cores, 21 s where its programs are kept; full: 9 minutes on 2 busy cores.
Expected: no error above eps; exponents -1/2 in eps and about 0 in M (1/2 on the whole cube of z).
Measured: full (2026-11-16): errors up to .94 of eps (size 16: .35); 68% of the bound; exponents -.500 in eps, .10 in M
          (.03 from M = 64 on; cube .47); deep is smaller below eps = .93, and a table of M = 16 has 1,048,560 neurons.
"""

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from recombine.experiments import claim as ledger
from recombine.experiments.theory import _attack, _theorem_31
from recombine.parts.families.hyperteacher import Hyperteacher, Teacher
from recombine.parts.prng import new_key
from recombine.reporting import figure

TITLE = "Theorem 3.1: few neurons are enough, built and attacked"
SOURCE = "arXiv 2507.07207, Theorem 3.1"
NUM_HOT = 3
PAPER = 16  # modules
MODULES = {
    "tiny": (4, PAPER),
    "small": (4, PAPER, 128),
    "full": (4, 8, PAPER, 32, 64, 128, 256, 512),
}
FINE = (0.1, 0.01, 1e-3, 1e-4, 1e-5)
COARSE = (
    10.0,
    3.0,
    1.0,
    0.3,
)  # where a deep network does not pay yet: only to show the crossing, at the paper's M
PRECISIONS = {"tiny": FINE[:2], "small": FINE, "full": FINE}
TRIED = {"tiny": FINE[:1], "small": FINE[:4:2], "full": FINE}  # of networks that are built
SIZES = {"tiny": (2,), "small": (4, 16), "full": (4, 16)}  # I = H = O; the paper's is 16
SEEDS = {"tiny": 1, "small": 2, "full": 3}
ATTACKED = {
    "tiny": (PAPER,),
    "small": (PAPER,),
    "full": (4, PAPER, 64),
}  # modules, at the smallest size
MOST = 100_000  # neurons that are built: the bound decides which
LISTED = {
    "tiny": (4,),
    "small": (4, 8),
    "full": (4, 6, 8, 10),
}  # modules all of whose subsets are memorised
BUILT = (("shallow", "compact"), ("deep", "compact"), ("shallow", "cube"))
EXACT = (
    ("attack", "exact", "corners"),
    ("thin", "exact", "compact"),
    ("attack", "memorise", "corners"),
)
THIN = 16  # times the eps: still several times eps where the search finds but a quarter of what the proof allows
NEAR = 0.05  # of an exponent
HALFWAY = 0.25  # between an exponent of 0 and one of 1/2
SPREAD = 1.3  # from one network to the next in a picture
ROUNDING = 1e-10  # what float64 may leave of sums of thousands of terms
FIELDS = ("kind", "construction", "where", "size", "num_modules", "num_hot", "eps")


def cells(scale: str) -> list[dict[str, Any]]:
    """What is counted, then what is built and attacked."""
    counted = [
        ("count", construction, where, size, num_modules, NUM_HOT, eps)
        for size in SIZES[scale]
        for num_modules in MODULES[scale]
        for construction, where in BUILT
        for eps in (*(COARSE if num_modules == PAPER else ()), *PRECISIONS[scale])
    ]
    tables = [
        ("count", construction, "corners", size, num_modules, num_hot, 0.0)
        for size in SIZES[scale]
        for num_modules in MODULES[scale]
        for construction, num_hot in (
            ("exact", NUM_HOT),
            ("memorise", NUM_HOT),
            ("memorise", num_modules),
        )
    ]
    return [
        dict(zip(FIELDS, cell, strict=True)) | {"seed": seed}
        for cell in (*counted, *tables, *_attacked(scale))
        for seed in range(SEEDS[scale])
    ]


def _attacked(scale: str) -> list[tuple]:
    least = min(SIZES[scale])
    found = [
        (kind, construction, where, size, num_modules, NUM_HOT, eps)
        for eps in TRIED[scale]
        for size in (SIZES[scale] if scale == "full" else (least,))
        for num_modules in (ATTACKED[scale] if size == least else (PAPER,))
        for construction, where in BUILT
        for kind in (("attack", "thin") if scale == "full" or eps == FINE[0] else ("attack",))
        if num_modules == PAPER or (kind, where) == ("attack", "compact")
        if _constants(size)[0] / math.sqrt(eps) <= MOST
    ]
    return found + [(*what, least, num, num, 0.0) for num in LISTED[scale] for what in EXACT]


def measure(
    kind: str,
    construction: Any,
    where: Any,
    size: int,
    num_modules: int,
    num_hot: int,
    eps: float,
    seed: int,
) -> dict[str, float]:
    """Neurons and parameters of one network; where it is built, the largest error that is found too."""
    family = _family(size, num_modules, num_hot)
    world, asked = _world(family, seed), THIN * eps if kind == "thin" else eps
    widths = _theorem_31.widths(construction, family, world, asked, where == "cube")
    layers = itertools.pairwise((num_modules + size, *widths, size))
    row = {
        "neurons": float(sum(widths)),
        "parameters": float(sum((d_in + 1) * d_out for d_in, d_out in layers)),
    }
    if construction == "deep":
        row["crossing"] = _theorem_31.crossing(family, world)
    if kind != "count":
        with jax.enable_x64(True):
            world = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), world)
            net = jax.jit(_theorem_31.plan(construction, family, world, asked, where == "cube"))(
                world
            )
            row["sup_error"] = _attack.sup_error(net, family, world, new_key(seed), where)
    return row


def _family(size: int, num_modules: int, num_hot: int) -> Hyperteacher:
    # Nothing is drawn from its table, which may be too long to list.
    return Hyperteacher(num_modules, num_hot, size, size, size, max_tasks=1)


def _constants(size: int) -> tuple[float, float]:
    return _theorem_31.constants(_family(size, NUM_HOT, NUM_HOT))  # the same for every M


@functools.lru_cache(maxsize=8)
def _world(family: Hyperteacher, seed: int) -> Teacher:
    with jax.enable_x64(False):  # the lab's own worlds are drawn in float32
        return family.init(new_key(seed))


def _last(rows) -> Any:
    """The rows with what is judged: errors against eps, neurons against c1/sqrt(eps) + c2 M, and logarithms."""
    last = ledger.last(rows)
    last = last.reindex(columns=last.columns.union(["sup_error", "crossing"]))
    eps = last["eps"].where(last["eps"] > 0)
    c1, c2 = np.transpose([_constants(size) for size in last["size"]])
    last["bound"] = c1 / np.sqrt(eps) + c2 * last["num_modules"]
    last["excess"], last["share"] = last["sup_error"] / eps, last["neurons"] / last["bound"]
    last["log eps"], last["log M"], last["log neurons"] = map(
        np.log2, (eps, last["num_modules"], last["neurons"])
    )
    last["log log"] = np.log2(-last["log eps"].where(eps < 1))
    return last


def _pick(frame, **values: Any) -> Any:
    for name, value in values.items():
        frame = frame[frame[name] == value]
    return frame


def _slope(frame, x: str, alike: str) -> float:
    """By how much log neurons grow with x, the mean over worlds of one size and one `alike`; NaN where no x varies."""
    groups = [one for _, one in frame.groupby(["size", "seed", alike]) if one[x].nunique() > 1]
    slopes = [np.polyfit(one[x], one["log neurons"], 1)[0] for one in groups]
    return float(np.average(slopes, weights=list(map(len, groups)))) if groups else math.nan


def _fine(frame, construction: str, where: str = "compact") -> Any:
    found = _pick(frame, kind="count", construction=construction, where=where)
    return found[found["eps"] <= FINE[0]]


def _crossing(frame) -> float:
    return _pick(frame, kind="count", num_modules=PAPER, size=frame["size"].max())[
        "crossing"
    ].mean()


def summary(rows) -> dict[str, float]:
    """Exponents and errors of every construction, and where two of them cross."""
    last, found = _last(rows), {}
    for construction, where in BUILT:
        name, built = (
            f"{construction}, {where}",
            _pick(last, construction=construction, where=where),
        )
        found[f"{name}: exponent in eps"] = _slope(
            _fine(built, construction, where), "log eps", "num_modules"
        )
        found[f"{name}: exponent in M"] = _slope(_fine(built, construction, where), "log M", "eps")
        for size, one in _pick(built, kind="attack").groupby("size"):
            found[f"{name}, size {size}: largest error / eps"] = one["excess"].max()
    return {name: float(value) for name, value in found.items()} | {
        "crossing, eps": _crossing(last)
    }


def figures(rows) -> dict:
    """Neurons by precision and by modules, and what the search found."""
    last = _last(rows)
    last["network"] = last["construction"] + np.where(last["where"] == "cube", ", whole cube", "")
    shown = _pick(last, size=last["size"].max(), kind="count")
    drawn = {
        "precision": _by_precision(shown),
        "modules": _by_modules(shown),
        "attack": _found(last),
    }
    log: Any = {"type": "log", "dtick": 1, "exponentformat": "power"}
    return {name: one.update_xaxes(log).update_yaxes(log) for name, one in drawn.items()}


def _by_precision(shown) -> Any:
    compact = _pick(shown, where="compact", num_modules=PAPER)
    bound = _pick(compact, construction="shallow").assign(network="bound, c1/√eps")
    bound = bound[bound["eps"] <= 1].assign(neurons=bound["bound"])
    title = (
        f"Neurons by precision (M = {PAPER}): deep is smaller below eps = {_crossing(shown):.2g}"
    )
    told: Any = {"title": title, "x_title": "eps, the largest error allowed", "y_title": "neurons"}
    return figure.lines(
        pd.concat([compact, bound]), "eps", "neurons", by="network", log_x=True, **told
    )


def _by_modules(shown) -> Any:
    memorise, subsets = (
        shown["construction"] == "memorise",
        shown["num_hot"] == shown["num_modules"],
    )
    names = shown["network"].mask(memorise, f"memorise, K = {NUM_HOT}")
    names = names.mask(memorise & subsets, "memorise, all subsets")
    kept = shown["eps"].isin([0.0, 0.01]) & ~(
        memorise & subsets & (shown["num_modules"] > 32)
    )  # off every scale
    title = "Neurons by modules (eps = 0.01): to memorise all subsets is exponential"
    told: Any = {"title": title, "x_title": "modules M", "y_title": "neurons"}
    return figure.lines(
        shown.assign(network=names)[kept],
        "num_modules",
        "neurons",
        by="network",
        log_x=True,
        **told,
    )


def _found(last) -> Any:
    built = last[last["excess"].notna()]
    built = built.assign(
        network=built["network"] + np.where(built["kind"] == "thin", ", too thin", "")
    )
    names = sorted(
        built["network"].unique()
    )  # side by side, or points of one eps would hide each other
    place = [SPREAD ** (names.index(name) - (len(names) - 1) / 2) for name in built["network"]]
    title = "The largest error found, over eps: below 1, unless too thin"
    told: Any = {
        "title": title,
        "x_title": "eps, the error that the proof allows",
        "y_title": "largest error / eps",
    }
    drawn = figure.scatter(
        built.assign(place=built["eps"] * place), "place", "excess", by="network", **told
    )
    return drawn.add_hline(1, line={"color": figure.INK, "dash": "dash"})


def claims(rows) -> list:
    """The theorem, and what lies beyond it: of each what is measured, where its interval must lie, and its control."""
    last = None if rows is None else _last(rows)
    return [_claim(last, *told) for told in (*_theorem(), *_beyond())]


def _theorem() -> list[tuple]:
    (c1, c2), shallow = _constants(PAPER), functools.partial(_fine, construction="shallow")
    return [
        (
            ("error", "at most 1"),
            "Every network that was built is within its eps of the teacher (largest error found / eps)",
            (lambda frame: _pick(frame, kind="attack")["excess"].max(), 0, 1),
            f"each of those made for {THIN} eps is not",
            (lambda frame: _pick(frame, kind="thin")["excess"].min(), 1, math.inf),
        ),
        (
            ("bound", "O(1/sqrt(eps) + M)"),
            f"Neurons are at most c1/sqrt(eps) + c2 M (largest share of it; size {PAPER}: c1 = {c1:.0f}, c2 = {c2:g})",
            (lambda frame: shallow(frame)["share"].max(), 0, 1),
            "more on the whole cube",
            (lambda frame: shallow(frame, where="cube")["share"].max(), 1, math.inf),
        ),
        (
            ("exponent in eps", "-1/2"),
            "Neurons grow as 1/sqrt(eps) (exponent of eps)",
            (
                lambda frame: _slope(shallow(frame), "log eps", "num_modules"),
                -0.5 - NEAR,
                -0.5 + NEAR,
            ),
            "the deep network's do not",
            (lambda frame: _slope(_fine(frame, "deep"), "log eps", "num_modules"), -HALFWAY, 0),
        ),
        (
            ("exponent in M", "at most linear, added"),
            "On the compact set neurons hardly grow with M (exponent of M)",
            (lambda frame: _slope(shallow(frame), "log M", "eps"), -HALFWAY, HALFWAY),
            "on the whole cube as sqrt(M), multiplied",
            (
                lambda frame: _slope(shallow(frame, where="cube"), "log M", "eps"),
                0.5 - NEAR,
                0.5 + NEAR,
            ),
        ),
    ]


def _beyond() -> list[tuple]:
    memorise = functools.partial(_pick, construction="memorise")
    coarse = functools.partial(_pick, where="compact", eps=COARSE[0])
    return [
        (
            ("deep", ledger.OURS),
            "Beyond: neurons of the deep network grow at most as log(1/eps) (power of it)",
            (lambda frame: _slope(_fine(frame, "deep"), "log log", "num_modules"), 0, 1),
            "the shallow network's grow faster",
            (lambda frame: _slope(_fine(frame, "shallow"), "log log", "num_modules"), 1, math.inf),
        ),
        (
            ("crossing", ledger.OURS),
            f"Beyond: the deep network is the smaller one at all eps up to {FINE[0]:g} (up to which it is)",
            (_crossing, FINE[0], math.inf),
            f"the larger one at eps = {COARSE[0]:g}",
            (
                lambda frame: coarse(frame).groupby("construction")["neurons"].mean().diff().min(),
                -math.inf,
                0,
            ),
        ),
        (
            ("exact", ledger.OURS),
            "Beyond: for weights of 0 and 1, I M + 2 H neurons are exact, and so is a table (largest error found)",
            (lambda frame: _pick(frame, kind="attack", eps=0.0)["sup_error"].max(), 0, ROUNDING),
            "not for weights between",
            (
                lambda frame: _pick(frame, kind="thin", eps=0.0)["sup_error"].min(),
                FINE[0],
                math.inf,
            ),
        ),
        (
            ("memorise", "exponential"),
            "A table of all subsets is exponential in M (powers of two for each module)",
            (
                lambda frame: _slope(memorise(frame, kind="attack"), "num_modules", "eps"),
                1 - NEAR,
                1 + NEAR,
            ),
            f"with at most {NUM_HOT} active it is a power of M",
            (
                lambda frame: _slope(
                    memorise(frame, kind="count", num_hot=NUM_HOT), "num_modules", "eps"
                ),
                0,
                HALFWAY,
            ),
        ),
    ]


def _claim(
    last, names: tuple, statement: str, found: tuple, control: str, other: tuple
) -> ledger.Claim:
    (statistic, least, most), (against, above, below) = found, other

    def passes(low: float, high: float) -> bool:
        return least <= low <= high <= most and above < against(last) < below

    known = last is not None and not math.isnan(statistic(last)) and not math.isnan(against(last))
    told = dict(zip(("name", "published"), names, strict=True)) | {
        "statement": statement,
        "control": control,
    }
    return ledger.judged(last if known else None, statistic, passes, source=SOURCE, **told)
