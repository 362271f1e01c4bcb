"""Old module names, which can still be imported for one release.

Users' experiments and parts import some of them (`from recombine.core import check`). The import
prints a warning with the new name.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

from recombine.basics.version import PACKAGE

# Old module or folder -> the modules that hold its content now.
MOVED: dict[str, tuple[str, ...]] = {
    "activity": ("training.activity",),
    "bench.plain": ("planning.bench.plain_loop",),
    "bench": ("planning.bench",),
    "bootstrap": ("basics.statistics",),
    "checkpoint": ("training.checkpoint",),
    "checks": ("training.validation",),
    "chunk": ("training.chunk",),
    "claims": (
        "experiments.claim",
        "experiments.ledger",
        "experiments.trend",
        "basics.statistics",
    ),
    "closure": ("sweeps.dependencies", "sweeps.source_files", "sweeps.syntax"),
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
    "coverage.outlook": ("coverage.expected_drop",),
    "coverage.tally": ("coverage.combinations",),
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
    "fingerprint": ("sweeps.code_hash", "sweeps.canonical_fields", "sweeps.memory_hash"),
    "fitted": ("training.fitted",),
    "gallery": ("reporting.gallery",),
    "hint": ("basics.suggest",),
    "images": ("experiments.limits._images",),
    "images.ahead": ("experiments.limits._images.compilation",),
    "images.rows": ("experiments.limits._images.scores",),
    "images.saved": ("experiments.limits._images.network_io",),
    "instructions": ("experiments.instrument._instructions",),
    "instructions.reading": ("experiments.instrument._instructions.probing",),
    "instrument": ("cli.instrument", "cli.planning"),
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
    "probe.batch": ("probe.batching",),
    "probe.copies": ("probe.device_transfer",),
    "probe.drawings": ("probe.image_cache",),
    "probe.extra": ("basics.optional_deps",),
    "probe.failure": ("probe.failure_ranking",),
    "probe.files": ("probe.file_readers",),
    "probe.foretold": ("probe.failure_prediction",),
    "probe.inputs": ("probe.input_validation",),
    "probe.layers": ("probe.layer_selection",),
    "probe.mask": ("probe.attention_masks",),
    "probe.meter": ("basics.console",),
    "probe.pool": ("probe.pooling",),
    "probe.store": ("probe.activation_store",),
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


def new_names_of(name: str) -> list[str]:
    """The modules that now hold the content of an old module; empty for any other name."""
    package, _, old_path = name.partition(".")
    if package != "recombine" or not old_path:
        return []
    if old_path == "theory":  # the folder itself: only its modules have new names
        return ["recombine.experiments.theory"]
    top_level = old_path.partition(".")[0]
    for old in (old_path, top_level):
        if old in MOVED:
            rest = old_path.removeprefix(old)
            return [f"recombine.{new}{rest}" for new in MOVED[old]]
    return _moved_experiments(old_path)


def _moved_experiments(old_path: str) -> list[str]:
    """`experiments.NAME` is now `experiments.FOLDER.NAME`."""
    folder, _, experiment = old_path.partition(".")
    if folder != "experiments" or not experiment.isidentifier():
        return []
    paths = PACKAGE.glob(f"experiments/*/{experiment}.py")
    return [f"recombine.experiments.{path.parent.name}.{experiment}" for path in paths]


class OldNameFinder(MetaPathFinder, Loader):
    """Imports old module names.

    It is the first finder: Python would otherwise search a folder's new location under its old
    name, and load its modules twice.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of an old module; None for any other name."""
        if not new_names_of(fullname):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Use Python's default."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and give the old module the names of the new ones."""
        new_names = list(filter(_is_module, new_names_of(module.__name__)))
        if not new_names:  # `from recombine.core import x` looks for a module x at last
            parent, _, name = module.__name__.rpartition(".")
            raise ImportError(_message_of_missing(parent, name), name=module.__name__)
        message = (
            f"{module.__name__} is now {' and '.join(new_names)}; "
            "the next release removes the old name"
        )
        warnings.warn(message, FutureWarning, stacklevel=2)
        new_modules = [importlib.import_module(new_name) for new_name in new_names]
        if module.__name__ == "recombine.theory":
            return  # left empty: the new folder holds experiments with the same module names
        if len(new_modules) == 1:
            sys.modules[module.__name__] = new_modules[0]
            return

        def get_attribute(name: str) -> Any:
            for new_module in new_modules:
                if hasattr(new_module, name):
                    return getattr(new_module, name)
            raise AttributeError(_message_of_missing(module.__name__, name))

        vars(module)["__getattr__"] = get_attribute


def _is_module(name: str) -> bool:
    """Whether a module can be imported; its parent may be a plain module, which has no others."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _message_of_missing(old_module: str, name: str) -> str:
    new_text = " and ".join(new_names_of(old_module))
    return f"{old_module} has no {name!r}; its names are now in {new_text}"


def install() -> None:
    """Make old module names importable from now on."""
    if not any(isinstance(finder, OldNameFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNameFinder())
