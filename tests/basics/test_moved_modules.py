"""Old module names, as users' files import them."""

import importlib
import subprocess
import sys

import pytest

from recombine.basics.moved_modules import MOVED, homes_of

# Every module of the flat layout that is gone.
GONE = [
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
    "probe.extra",
    "probe.meter",
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


@pytest.mark.parametrize("old", GONE)
def test_every_module_that_is_gone_has_a_new_place(old):
    homes = homes_of(f"recombine.{old}")
    assert homes
    try:
        modules = [importlib.import_module(home) for home in homes]
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    assert [module.__name__ for module in modules] == homes
    assert all(module.__doc__ for module in modules)


def test_nothing_else_is_said_to_have_moved():
    roots = {name.partition(".")[0] for name in GONE} | {"theory", "cli"}
    assert {old.partition(".")[0] for old in MOVED} <= roots


FILE = """
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
assert rc.Hyperteacher is Hyperteacher and rc.Run is Run and rc.Fast is Fast and rc.InputError is InputError
assert isinstance(Run().family, Hyperteacher) and figure.COLOURS
try:
    from recombine.core import nothing
except ImportError as error:
    assert "recombine.parts.protocols" in str(error) or "nothing" in str(error)
"""


def test_a_file_with_old_imports_works_and_is_told_the_new_names(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "recombine.families is now recombine.parts.families" in done.stderr
    assert "recombine.run is now recombine.sweeps.run" in done.stderr


def test_other_names_are_not_found():
    assert homes_of("recombine.nothing") == []
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("recombine.nothing")
