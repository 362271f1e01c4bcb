"""Theorem 3.1 as networks: built, attacked and counted. Computed, not trained.

Claim: on a compact set a ReLU MLP with O(1/sqrt(eps) + M) neurons is within eps of a hyperteacher
of M modules, while memorizing its tasks takes exponentially many (arXiv 2507.07207, Theorem 3.1 and
section 3).

There are three kinds of cells. `count`: the number of neurons and parameters; nothing is built.
`attack`: the network is built, and its largest error is searched by dense sampling and gradient
ascent. `thin`: the control, a network whose error the search must find to be above eps. It is built
for 16 times the eps (a quarter of the pieces, or two layers fewer). For the construction that is
exact at weights of 0 and 1, it is tested at weights in between. The constants of the bound follow
from the proof and the distribution of the worlds; nothing is fitted.

Errors of networks that were attacked are measurements. Numbers of neurons follow from our formulas
for the construction, so they are no findings: those claims are marked as checks of the
construction, not as reproduced claims of the paper. The whole cube of z, on which any number of
modules may be active at any strength, goes beyond the theorem; both networks are attacked there.

Command:  recombine run theorem_31 --scale small
Runtime:  41 s on 2 cores, 21 s with cached programs; full: 9 minutes on 2 busy cores.
Expected: no error above eps; exponents -1/2 in eps and about 0 in M (1/2 on the whole cube of z,
          for the shallow network; about 0 for the deep one).
"""

import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from recombine.experiments import claim
from recombine.experiments.claim import OURS, Frame, Select, Statistic, final_rows, where
from recombine.experiments.plots import curve, scatter
from recombine.experiments.theory import _attack, _theorem_31
from recombine.parts.families.hyperteacher import Hyperteacher, Teacher
from recombine.parts.prng import new_key
from recombine.reporting.figure import INK

TITLE = "Theorem 3.1: few neurons are enough, built and attacked"
SOURCE = "arXiv 2507.07207, Theorem 3.1"
NUM_HOT = 3
PAPER_SIZE = 16  # modules, inputs, hidden units and outputs of the paper's teacher
ALL_MODULES = (4, 8, PAPER_SIZE, 32, 64, 128, 256, 512)
MODULES = {"tiny": (4, PAPER_SIZE), "small": (4, PAPER_SIZE, 128), "full": ALL_MODULES}
FINE = (0.1, 0.01, 1e-3, 1e-4, 1e-5)
# Here a deep network has more neurons; counted only at the paper's M, to show the crossing.
COARSE = (10.0, 3.0, 1.0, 0.3)
COUNTED_EPS = {"tiny": FINE[:2], "small": FINE, "full": FINE}
BUILT_EPS = {"tiny": FINE[:1], "small": FINE[:4:2], "full": FINE}
SIZES = {"tiny": (2,), "small": (4, 16), "full": (4, 16)}  # inputs = hidden units = outputs
SEEDS = {"tiny": 1, "small": 2, "full": 3}
# Modules of the networks that are attacked, at the smallest size.
ATTACKED_MODULES = {"tiny": (PAPER_SIZE,), "small": (PAPER_SIZE,), "full": (4, PAPER_SIZE, 64)}
MAX_NEURONS = 100_000  # networks whose bound is larger are not built
# Modules all of whose subsets are memorized.
MEMORIZED_MODULES = {"tiny": (4,), "small": (4, 8), "full": (4, 6, 8, 10)}
BUILT = (
    ("shallow", "compact"),
    ("deep", "compact"),
    ("shallow", "cube"),
    ("deep", "cube"),
)
EXACT = (
    ("attack", "exact", "corners"),
    ("thin", "exact", "compact"),
    ("attack", "memorise", "corners"),
)
# Thin networks are built for this multiple of eps. Their error is still several times eps if the
# search finds only a quarter of what the proof allows.
THIN_FACTOR = 16
EXPONENT_TOLERANCE = 0.05
HALFWAY = 0.25  # between exponents of 0 and of 1/2
ROUNDING = 1e-10  # error of sums of thousands of terms in float64
MAX_SHOWN_TABLE = 32  # modules; tables of all subsets of more modules are beyond every axis
POINT_SPACING = 1.3  # factor between neighboring networks in a figure
FIELDS = ("kind", "construction", "where", "size", "num_modules", "num_hot", "eps")


def cells(scale: str) -> list[dict[str, Any]]:
    """The networks that are counted, then those that are built and attacked."""
    return [
        dict(zip(FIELDS, values, strict=True)) | {"seed": seed}
        for values in (*_counted(scale), *_tables(scale), *_attacked(scale))
        for seed in range(SEEDS[scale])
    ]


def _counted(scale: str) -> list[tuple]:
    listed = []
    for size, num_modules in itertools.product(SIZES[scale], MODULES[scale]):
        coarse = COARSE if num_modules == PAPER_SIZE else ()
        for (construction, region), eps in itertools.product(BUILT, coarse + COUNTED_EPS[scale]):
            listed.append(("count", construction, region, size, num_modules, NUM_HOT, eps))
    return listed


def _tables(scale: str) -> list[tuple]:
    listed = []
    for size, num_modules in itertools.product(SIZES[scale], MODULES[scale]):
        tables = (("exact", NUM_HOT), ("memorise", NUM_HOT), ("memorise", num_modules))
        for construction, num_hot in tables:
            listed.append(("count", construction, "corners", size, num_modules, num_hot, 0.0))
    return listed


def _attacked(scale: str) -> list[tuple]:
    smallest = min(SIZES[scale])
    listed = []
    for eps in BUILT_EPS[scale]:
        for size in SIZES[scale] if scale == "full" else (smallest,):
            if _constants(size)[0] / math.sqrt(eps) > MAX_NEURONS:
                continue
            for num_modules in ATTACKED_MODULES[scale] if size == smallest else (PAPER_SIZE,):
                networks = _attacked_networks(
                    num_modules, has_thin=scale == "full" or eps == FINE[0]
                )
                listed += [(*network, size, num_modules, NUM_HOT, eps) for network in networks]
    for num_modules in MEMORIZED_MODULES[scale]:
        listed += [(*network, smallest, num_modules, num_modules, 0.0) for network in EXACT]
    return listed


def _attacked_networks(num_modules: int, has_thin: bool) -> list[tuple]:
    """Kind, construction and region: all at the paper's M, fewer at others."""
    if num_modules != PAPER_SIZE:
        return [("attack", construction, "compact") for construction in ("shallow", "deep")]
    kinds = ("attack", "thin") if has_thin else ("attack",)
    return [(kind, *network) for network in BUILT for kind in kinds]


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
    """Neurons and parameters of one network; if it is built, the largest error that is found."""
    family = _family(size, num_modules, num_hot)
    world = _world(family, seed)
    if kind == "thin":
        eps = THIN_FACTOR * eps
    is_cube = where == "cube"
    widths = _theorem_31.widths(construction, family, world, eps, is_cube)
    layers = itertools.pairwise((num_modules + size, *widths, size))
    num_parameters = sum((d_in + 1) * d_out for d_in, d_out in layers)
    row = {"neurons": float(sum(widths)), "parameters": float(num_parameters)}
    if construction == "deep":
        row["crossing"] = _theorem_31.crossing(family, world)
    if kind != "count":
        with jax.enable_x64(True):
            world = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), world)
            build = _theorem_31.plan(construction, family, world, eps, is_cube)
            net = jax.jit(build)(world)
            row["sup_error"] = _attack.sup_error(net, family, world, new_key(seed), where)
    return row


def _family(size: int, num_modules: int, num_hot: int) -> Hyperteacher:
    # No task is drawn from its table, which may be too long to list.
    return Hyperteacher(num_modules, num_hot, size, size, size, max_tasks=1)


def _constants(size: int) -> tuple[float, float]:
    return _theorem_31.constants(_family(size, NUM_HOT, NUM_HOT))  # the same for every M


@functools.lru_cache(maxsize=8)
def _world(family: Hyperteacher, seed: int) -> Teacher:
    with jax.enable_x64(False):  # trained students have float32 worlds, too
        return family.init(new_key(seed))


def prepare(rows: Frame) -> Frame:
    """The rows with errors relative to eps, neurons relative to the bound, and logarithms."""
    final = final_rows(rows)
    final = final.reindex(columns=final.columns.union(["sup_error", "crossing"]))
    eps = final["eps"].where(final["eps"] > 0)
    c1, c2 = np.transpose([_constants(size) for size in final["size"]])
    final["bound"] = c1 / np.sqrt(eps) + c2 * final["num_modules"]
    final["excess"] = final["sup_error"] / eps
    final["share"] = final["neurons"] / final["bound"]
    final["log eps"] = np.log2(eps)
    final["log M"] = np.log2(final["num_modules"])
    final["log neurons"] = np.log2(final["neurons"])
    final["log log"] = np.log2(-final["log eps"].where(eps < 1))
    is_cube = final["where"] == "cube"
    final["network"] = final["construction"] + np.where(is_cube, ", whole cube", "")
    return final


def slope(x: str, alike: str) -> Statistic:
    """The slope of log neurons against x: the mean over sizes, worlds and values of `alike`.

    NaN if x never varies.
    """

    def statistic(rows: Frame) -> float:
        groups = [group for _, group in rows.groupby(["size", "seed", alike])]
        groups = [group for group in groups if group[x].nunique() > 1]
        if not groups:
            return math.nan
        slopes = [np.polyfit(group[x], group["log neurons"], 1)[0] for group in groups]
        return float(np.average(slopes, weights=list(map(len, groups))))

    return statistic


EXPONENT_IN_EPS = slope("log eps", "num_modules")
EXPONENT_IN_M = slope("log M", "eps")
POWER_OF_LOG = slope("log log", "num_modules")
BITS_PER_MODULE = slope("num_modules", "eps")


def fine(construction: str, region: str = "compact") -> Select:
    """Select the counted networks of one construction at fine eps."""
    return where({"kind": "count", "construction": construction, "where": region, "eps": FINE})


def crossing(final: Frame) -> float:
    """The mean eps below which the deep network is smaller, for the largest teacher."""
    selected = {"kind": "count", "num_modules": PAPER_SIZE, "size": final["size"].max()}
    return float(where(selected)(final)["crossing"].mean())


def summary(rows: Frame) -> dict[str, float]:
    """Exponents and errors of every construction, and the eps where two of them cross."""
    final = prepare(rows)
    values = {}
    for construction, region in BUILT:
        name = f"{construction}, {region}"
        counted = fine(construction, region)(final)
        values[f"{name}: exponent in eps"] = EXPONENT_IN_EPS(counted)
        values[f"{name}: exponent in M"] = EXPONENT_IN_M(counted)
        attacked = {"kind": "attack", "construction": construction, "where": region}
        for size, own in where(attacked)(final).groupby("size"):
            values[f"{name}, size {size}: largest error / eps"] = float(own["excess"].max())
    return values | {"crossing, eps": crossing(final)}


def size_difference(rows: Frame) -> float:
    """The neurons of the shallow network minus those of the deep one."""
    return float(rows.groupby("construction")["neurons"].mean().diff().min())


class Expected(NamedTuple):
    """A statistic of selected rows, and the range in which it is expected."""

    rows: Select
    statistic: Statistic
    range: tuple[float, float]


def near(exponent: float) -> tuple[float, float]:
    """The range around an exponent."""
    return exponent - EXPONENT_TOLERANCE, exponent + EXPONENT_TOLERANCE


def above(value: float) -> tuple[float, float]:
    """The range above a value."""
    return value, math.inf


def _claim(
    name: str,
    statement: str,
    published: str,
    expected: Expected,
    control: str,
    control_expected: Expected,
    source: str = "",
) -> claim.DeclaredClaim:
    """The interval of the statistic and the value of the control must be in their ranges."""

    def control_value(final: Frame) -> float:
        return control_expected.statistic(control_expected.rows(final))

    def control_fails(measurement: claim.Measurement) -> bool:
        low, high = control_expected.range
        return low < control_value(measurement.all_rows) < high

    return claim.reproduces(
        name,
        statement,
        published=published,
        rows=lambda final: None if math.isnan(control_value(final)) else expected.rows(final),
        statistic=expected.statistic,
        passes=claim.within(*expected.range),
        threshold_published=name == "error",
        control=control,
        control_fails=control_fails,
        source=source,
    )


def _check(
    name: str, statement: str, expected: Expected, control: str, control_expected: Expected
) -> claim.DeclaredClaim:
    """A check of the construction: its number follows from our own formulas."""
    return _claim(
        name,
        f"Check of the construction: {statement}",
        OURS,
        expected,
        control,
        control_expected,
        source="check of the construction",
    )


C1, C2 = _constants(PAPER_SIZE)
CUBE = {"construction": "deep", "where": "cube"}
TABLES_OF_FEW = {"construction": "memorise", "kind": "count", "num_hot": NUM_HOT}
CLAIMS = [
    _claim(
        "error",
        "Every network that was built is within its eps of the teacher (largest error found / eps)",
        "at most 1",
        Expected(where({"kind": "attack"}), claim.max_of("excess"), (0, 1)),
        f"the error of each network built for {THIN_FACTOR} eps must exceed eps",
        Expected(where({"kind": "thin"}), claim.min_of("excess"), above(1)),
    ),
    _claim(
        "error, deep, whole cube",
        "Beyond the theorem: on the whole cube of z, every deep network is within its eps of the "
        "teacher (largest error found / eps)",
        OURS,
        Expected(where({"kind": "attack"} | CUBE), claim.max_of("excess"), (0, 1)),
        f"the error of each deep network built for {THIN_FACTOR} eps must exceed eps",
        Expected(where({"kind": "thin"} | CUBE), claim.min_of("excess"), above(1)),
    ),
    _check(
        "bound",
        "the number of neurons is at most c1/sqrt(eps) + c2 M (largest share of the bound; size "
        f"{PAPER_SIZE}: c1 = {C1:.0f}, c2 = {C2:g}; the theorem: O(1/sqrt(eps) + M))",
        Expected(fine("shallow"), claim.max_of("share"), (0, 1)),
        "on the whole cube more neurons must be needed",
        Expected(fine("shallow", "cube"), claim.max_of("share"), above(1)),
    ),
    _check(
        "exponent in eps",
        "the number of neurons grows as 1/sqrt(eps) (exponent of eps; the theorem: at most -1/2)",
        Expected(fine("shallow"), EXPONENT_IN_EPS, near(-0.5)),
        "that of the deep network must grow more slowly",
        Expected(fine("deep"), EXPONENT_IN_EPS, (-HALFWAY, 0)),
    ),
    _check(
        "exponent in M",
        "on the compact set the number of neurons hardly grows with M (exponent of M; the theorem: "
        "at most linear, added)",
        Expected(fine("shallow"), EXPONENT_IN_M, (-HALFWAY, HALFWAY)),
        "on the whole cube it must be a multiple of sqrt(M)",
        Expected(fine("shallow", "cube"), EXPONENT_IN_M, near(0.5)),
    ),
    _check(
        "exponent in M, deep, whole cube",
        "on the whole cube the neurons of the deep network hardly grow with M (exponent of M)",
        Expected(fine("deep", "cube"), EXPONENT_IN_M, (-HALFWAY, HALFWAY)),
        "those of the shallow network must grow as sqrt(M)",
        Expected(fine("shallow", "cube"), EXPONENT_IN_M, near(0.5)),
    ),
    _check(
        "deep",
        "the neurons of the deep network grow at most as log(1/eps) (power of the logarithm)",
        Expected(fine("deep"), POWER_OF_LOG, (0, 1)),
        "those of the shallow network must grow faster",
        Expected(fine("shallow"), POWER_OF_LOG, above(1)),
    ),
    _check(
        "crossing",
        f"the deep network is smaller at all eps up to {FINE[0]:g} (the largest such eps)",
        Expected(lambda final: final, crossing, above(FINE[0])),
        f"it must be larger at eps = {COARSE[0]:g}",
        Expected(where({"where": "compact", "eps": COARSE[0]}), size_difference, (-math.inf, 0)),
    ),
    _claim(
        "exact",
        "Beyond the theorem: for weights of 0 and 1, I M + 2 H neurons are exact, and so is a "
        "table (largest error found)",
        OURS,
        Expected(where({"kind": "attack", "eps": 0.0}), claim.max_of("sup_error"), (0, ROUNDING)),
        "for weights in between, they must not be exact",
        Expected(where({"kind": "thin", "eps": 0.0}), claim.min_of("sup_error"), above(FINE[0])),
    ),
    _check(
        "memorise",
        "a table of all subsets grows exponentially with M (factors of two per module; the paper: "
        "exponential)",
        Expected(where({"construction": "memorise", "kind": "attack"}), BITS_PER_MODULE, near(1)),
        f"with at most {NUM_HOT} active modules it must grow as a power of M",
        Expected(where(TABLES_OF_FEW), BITS_PER_MODULE, (0, HALFWAY)),
    ),
]


def _counted_largest(final: Frame) -> Frame:
    """The counted networks for the largest teacher."""
    return where({"kind": "count", "size": final["size"].max()})(final)


def _with_bound(final: Frame) -> Frame:
    """Neurons at the paper's M on the compact set, and the bound for eps up to 1."""
    compact = where({"where": "compact", "num_modules": PAPER_SIZE})(_counted_largest(final))
    bound = compact[(compact["construction"] == "shallow") & (compact["eps"] <= 1)]
    bound = bound.assign(network="bound, c1/√eps", neurons=bound["bound"])
    return pd.concat([compact, bound])


def _by_modules(final: Frame) -> Frame:
    """Neurons at eps = 0.01, and those of the exact construction and of tables."""
    counted = _counted_largest(final)
    is_table = counted["construction"] == "memorise"
    has_all_subsets = is_table & (counted["num_hot"] == counted["num_modules"])
    names = counted["network"].mask(is_table, f"memorise, K = {NUM_HOT}")
    names = names.mask(has_all_subsets, "memorise, all subsets")
    is_off_scale = has_all_subsets & (counted["num_modules"] > MAX_SHOWN_TABLE)
    is_shown = counted["eps"].isin([0.0, 0.01]) & ~is_off_scale
    return counted.assign(network=names)[is_shown]


def _errors(final: Frame) -> Frame:
    """The errors found, with points of different networks side by side."""
    built = final[final["excess"].notna()]
    names = built["network"] + np.where(built["kind"] == "thin", ", too thin", "")
    order = sorted(names.unique())
    shift = [POINT_SPACING ** (order.index(name) - (len(order) - 1) / 2) for name in names]
    return built.assign(network=names, shifted_eps=built["eps"] * shift)


def _log_axes(figure: Any, _: Frame) -> None:
    log_axis = {"type": "log", "dtick": 1, "exponentformat": "power"}
    figure.update_xaxes(log_axis).update_yaxes(log_axis)


def _draw_limit(figure: Any, rows: Frame) -> None:
    figure.add_hline(1, line={"color": INK, "dash": "dash"})
    _log_axes(figure, rows)


FIGURES = [
    curve(
        "neurons",
        against="eps",
        color="network",
        rows=_with_bound,
        name="precision",
        title=f"Neurons by precision (M = {PAPER_SIZE}): the deep network is smaller at small eps",
        x_title="eps, the largest error allowed",
        log_x=True,
        finish=_log_axes,
    ),
    curve(
        "neurons",
        against="num_modules",
        color="network",
        rows=_by_modules,
        name="modules",
        title="Neurons by modules (eps = 0.01): memorizing is exponential in M",
        x_title="modules M",
        log_x=True,
        finish=_log_axes,
    ),
    scatter(
        "excess",
        against="shifted_eps",
        color="network",
        rows=_errors,
        name="attack",
        title="Largest error found over eps: above 1 only for networks that are too thin",
        x_title="eps, the error that the proof allows",
        y_title="largest error / eps",
        finish=_draw_limit,
    ),
]
