"""Old module names, as users' files import them."""

import importlib
import subprocess
import sys

import pytest

from recombine.basics.moved_modules import MOVED, homes_of


@pytest.mark.parametrize("old", MOVED)
def test_every_new_place_exists(old):
    for home in homes_of(f"recombine.{old}"):
        importlib.import_module(home)


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
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "recombine.families is now recombine.parts.families" in done.stderr
    assert "recombine.run is now recombine.sweeps.run" in done.stderr


def test_other_names_are_not_found():
    assert homes_of("recombine.nothing") == []
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("recombine.nothing")
