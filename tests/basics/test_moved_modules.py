"""Old module names, which users' files may import."""

import importlib
import subprocess
import sys

import pytest

from recombine.basics.moved_modules import MOVED, new_names_of

# Every old module.
OLD_MODULES = [
    "activity",
    "bench.fidelity",
    "bench.growth",
    "bench.plain",
    "bench.sampling",
    "bench.speed",
    "bench.suite",
    "bootstrap",
    "checkpoint",
    "checks",
    "chunk",
    "claims",
    "closure",
    "conditions",
    "contracts",
    "core",
    "cost",
    "coverage.outlook",
    "coverage.tally",
    "decoder",
    "device",
    "diagnostics.bayes_ceiling",
    "diagnostics.compression",
    "diagnostics.distance",
    "diagnostics.factorization",
    "diagnostics.linear_decodability",
    "diagnostics.module_scores",
    "diagnostics.shuffled_decodability",
    "diagnostics.task_information",
    "encodings.few_shot",
    "encodings.hidden",
    "encodings.identity",
    "encodings.interval_shuffle",
    "encodings.invertible_nn",
    "encodings.language",
    "encodings.orthogonal",
    "engine",
    "episode",
    "estimate",
    "executors",
    "families.goal_grid",
    "families.hyperteacher",
    "families.preference_grid",
    "families.unrelated",
    "figure",
    "files",
    "film",
    "find",
    "fingerprint",
    "fitted",
    "gallery",
    "hint",
    "images.ahead",
    "images.denoise",
    "images.judge",
    "images.rows",
    "images.saved",
    "images.scenes",
    "images.study",
    "images.unet",
    "instructions.grammar",
    "instructions.reading",
    "instructions.student",
    "instrument",
    "khot",
    "laboratory",
    "layer",
    "measure",
    "mirror",
    "models.built",
    "models.hypernetwork",
    "models.mlp",
    "models.modular_oracle",
    "models.transformer",
    "muon",
    "parcel",
    "parquet",
    "perceptron",
    "planner",
    "probe.batch",
    "probe.copies",
    "probe.drawings",
    "probe.extra",
    "probe.failure",
    "probe.files",
    "probe.foretold",
    "probe.inputs",
    "probe.layers",
    "probe.mask",
    "probe.meter",
    "probe.pool",
    "probe.store",
    "program",
    "progress",
    "random",
    "recipe",
    "record",
    "report",
    "run",
    "runner",
    "serve",
    "setting",
    "slurm",
    "spent",
    "squares",
    "status",
    "supports.balanced",
    "supports.disconnected",
    "supports.growing",
    "supports.listed",
    "supports.missing_module",
    "supports.popular",
    "supports.random",
    "supports.unpopular",
    "table",
    "terminal",
    "theory.attack",
    "theory.definitions",
    "theory.theorem_31",
    "theory.theorem_41",
    "trainer",
    "unit_activity",
    "watch",
    "writer",
]


@pytest.mark.parametrize("old", OLD_MODULES)
def test_every_old_module_has_a_new_name(old):
    new_names = new_names_of(f"recombine.{old}")
    assert new_names
    try:
        modules = [importlib.import_module(new_name) for new_name in new_names]
    except ModuleNotFoundError as error:
        if (error.name or "recombine").startswith("recombine"):
            raise  # the new name leads nowhere
        pytest.skip(f"{error.name} is not installed")
    assert [module.__name__ for module in modules] == new_names
    assert all(module.__doc__ for module in modules)


def test_no_other_module_is_in_the_table():
    roots = {name.partition(".")[0] for name in OLD_MODULES} | {"theory", "cli"}
    assert {old.partition(".")[0] for old in MOVED} <= roots


USER_FILE = """
import dataclasses
from recombine.core import Batch, InputError, Knob, check, generator, stream
from recombine import figure
from recombine.experiments import decodability
from recombine.theory import attack, theorem_31
from recombine.families.hyperteacher import Hyperteacher
from recombine.recipe import Fast, Paper
from recombine.run import Run, sweep
import recombine as rc
assert theorem_31.__name__ == "recombine.experiments.theory._theorem_31"
assert rc.Hyperteacher is Hyperteacher and rc.Run is Run
assert rc.Fast is Fast and rc.InputError is InputError
assert isinstance(Run().family, Hyperteacher) and figure.COLOURS
try:
    from recombine.core import nothing
except ImportError as error:
    message = str(error)
assert "recombine.core has no 'nothing'; its names are now in recombine.parts.protocols" in message
"""


def test_a_file_with_old_imports_works_and_warns_with_the_new_names(tmp_path):
    (tmp_path / "mine.py").write_text(USER_FILE)
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "recombine.families is now recombine.parts.families" in done.stderr
    assert "recombine.run is now recombine.sweeps.run" in done.stderr
    assert "nothing is now" not in done.stderr


def test_unknown_names_are_not_found():
    assert new_names_of("recombine.nothing") == []
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("recombine.nothing")
