"""Modules that were moved into rooms: an import by the old name still works for one release, and says where it is now.

Users' experiments and parts import some of them (`from recombine.core import check`).
"""

import importlib
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

from recombine.basics.version import PACKAGE

# Old module or folder -> where its names are now.
MOVED: dict[str, tuple[str, ...]] = {
    "activity": ("training.activity",),
    "bench": ("planning.bench",),
    "bootstrap": ("basics.statistics",),
    "checkpoint": ("training.checkpoint",),
    "checks": ("training.validation",),
    "chunk": ("training.chunk",),
    "claims": ("experiments.claim", "basics.statistics"),
    "closure": ("sweeps.closure",),
    "conditions": ("parts.conditions",),
    "contracts": ("training.contracts",),
    "core": (
        "parts.protocols",
        "basics.errors",
        "parts.field_checks",
        "basics.random_streams",
        "parts.prng",
    ),
    "cost": ("training.cost",),
    "decoder": ("parts.decoder",),
    "device": ("training.device",),
    "diagnostics": ("parts.diagnostics",),
    "encodings": ("parts.encodings",),
    "engine": ("training.scheduler",),
    "episode": ("parts.episodes",),
    "estimate": ("planning.estimate",),
    "executors": ("training.executors",),
    "families": ("parts.families",),
    "figure": ("reporting.figure",),
    "files": ("basics.atomic_io",),
    "film": ("reporting.film",),
    "find": ("sweeps.discovery", "basics.user_files", "experiments.catalogue"),
    "fingerprint": ("sweeps.code_hash",),
    "fitted": ("training.fitted",),
    "gallery": ("reporting.gallery",),
    "hint": ("basics.suggest",),
    "images": ("experiments.limits._images",),
    "instructions": ("experiments.instrument._instructions",),
    "instrument": ("cli.instrument",),
    "khot": ("parts.khot",),
    "laboratory": ("training.task_sampler",),
    "layer": ("parts.linear_layer",),
    "measure": ("training.computed",),
    "mirror": ("storage.trackers",),
    "models": ("parts.models",),
    "muon": ("parts.muon",),
    "parcel": ("training.executors.remote",),
    "parquet": ("storage.parquet",),
    "perceptron": ("parts.perceptron",),
    "planner": ("planning.planner",),
    "probe.meter": ("basics.console",),
    "probe.extra": ("basics.optional_deps",),
    "program": ("training.program",),
    "progress": ("training.progress",),
    "random": ("parts.prng",),
    "recipe": ("parts.recipes.fast", "parts.recipes.paper", "parts.precision"),
    "record": ("experiments.record",),
    "report": ("reporting.page",),
    "run": ("sweeps.run",),
    "runner": ("experiments.runner",),
    "serve": ("reporting.serve",),
    "setting": ("sweeps.overrides",),
    "slurm": ("training.executors.slurm",),
    "spent": ("experiments.device_time",),
    "squares": ("parts.relu_products",),
    "status": ("storage.status",),
    "supports": ("parts.supports",),
    "table": ("storage.table",),
    "terminal": ("basics.console",),
    "theory.attack": ("experiments.theory._attack",),
    "theory.definitions": ("experiments.theory._definitions",),
    "theory.theorem_31": ("experiments.theory._theorem_31",),
    "theory.theorem_41": ("experiments.theory._theorem_41",),
    "trainer": ("training.trainer",),
    "unit_activity": ("reporting.unit_activity",),
    "watch": ("reporting.watch",),
    "writer": ("training.row_writer",),
}


def homes_of(name: str) -> list[str]:
    """Where the names of an old module are now; nothing for any other module."""
    if not name.startswith("recombine."):
        return []
    rest = name.removeprefix("recombine.")
    if rest == "theory":  # a folder whose modules are private now: only they are found
        return ["recombine.experiments.theory"]
    for old in (rest, rest.partition(".")[0]):
        if old in MOVED:
            return [f"recombine.{home}{rest.removeprefix(old)}" for home in MOVED[old]]
    folder, _, experiment = rest.partition(".")
    rooms = (
        PACKAGE.glob(f"experiments/*/{experiment}.py")
        if folder == "experiments" and experiment.isidentifier()
        else ()
    )
    return [f"recombine.experiments.{path.parent.name}.{experiment}" for path in rooms]


class Finder(MetaPathFinder, Loader):
    """Finds old names. It comes first: a folder's new place must not be searched under its old name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """An old module as a stand-in for the new one."""
        return (
            importlib.machinery.ModuleSpec(fullname, self, is_package=True)
            if homes_of(fullname)
            else None
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """An ordinary module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Give it the names of the new ones, and say so."""
        homes = homes_of(module.__name__)
        message = f"{module.__name__} is now {' and '.join(homes)}; the old name ends with the next release"
        warnings.warn(message, FutureWarning, stacklevel=2)
        modules = [importlib.import_module(home) for home in homes]
        if module.__name__ == "recombine.theory":
            return  # a stand-in without names of its own: its new place has experiments of the same names
        if len(modules) == 1:
            sys.modules[module.__name__] = modules[0]
            return

        def get(name: str) -> Any:
            for one in modules:
                if hasattr(one, name):
                    return getattr(one, name)
            raise AttributeError(
                f"{module.__name__} has no {name!r}; its names are now in {' and '.join(homes)}"
            )

        vars(module)["__getattr__"] = get


def install() -> None:
    """Find old names from now on."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
