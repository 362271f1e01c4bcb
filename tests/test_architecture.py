"""The rules that docs/design.md writes down, checked by a machine."""

import ast
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "recombine").rglob("*.py"))
PART_FOLDERS = ("families", "supports", "encodings", "models", "diagnostics")
# One-way order: a module may import what stands before it, never what stands after.
ORDER = [
    "core",
    "hint",
    "closure",
    "fingerprint",
    "files",
    "random",
    "conditions",
    "khot",
    "episode",
    "layer",
    "perceptron",
    "activity",
    "squares",
    "muon",
    "recipe",
    "decoder",
    *PART_FOLDERS,
    "run",
    "laboratory",
    "device",
    "program",
    "checkpoint",
    "trainer",
    "cost",
    "find",
    "parcel",
    "fitted",
    "parquet",
    "table",
    "status",
    "progress",
    "checks",
    "chunk",
    "writer",
    "engine",
    "measure",
    "estimate",
    "slurm",
    "executors",
    "mirror",
    "bench",
    "contracts",
    "setting",
    "bootstrap",
    "figure",
    "film",
    "gallery",
    "unit_activity",
    "report",
    "coverage",
    "probe",
    "instructions",
    "watch",
    "serve",
    "claims",
    "planner",
    "theory",
    "images",
    "experiments",
    "runner",
    "spent",
    "record",
    "terminal",
    "instrument",
    "cli",
    "__main__",
]


def module_of(path: Path) -> str:
    return path.relative_to(ROOT / "recombine").parts[0].removesuffix(".py")


def imports(path: Path, top_level: bool = False) -> set[str]:
    """The package's own modules that a file imports (`find` may be imported lazily from anywhere above it)."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "recombine":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("recombine.")}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "recombine")))
def test_imports_go_one_way(path):
    own = module_of(path)
    if own == "__init__":
        return
    for name in imports(path, top_level=True):
        assert name in ORDER, f"{name} has no place in the order"
        assert ORDER.index(name) <= ORDER.index(own), f"{own} must not import {name}"
        friends = own in ("experiments", "bench", "theory", "coverage", "probe", "images", "instructions")
        assert name != own or friends, f"the files of {own}/ must not import each other"
    if own in PART_FOLDERS:
        allowed = {"core", "conditions", "khot", "episode", "layer", "perceptron", "squares", "decoder"}
        assert imports(path) <= allowed, f"a part imports only {allowed}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "recombine")))
def test_size_and_style(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module opens by saying what it is"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} is too long"
        if isinstance(node, ast.Call):
            assert getattr(node.func, "id", "") != "print", "no print: the command line uses rich"
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "pickle" not in ast.dump(node), "never a pickle"
    assert path.stem not in ("utils", "common", "base", "helpers", "manager")


def test_every_part_and_experiment_has_its_test():
    for folder in (*PART_FOLDERS, "experiments", "theory"):
        for path in (ROOT / "recombine" / folder).glob("*.py"):
            if path.stem != "__init__":
                assert (ROOT / "tests" / folder / f"test_{path.stem}.py").exists(), f"{folder}/{path.name} has no test"


def test_help_answers_in_half_a_second():
    command = [sys.executable, "-m", "recombine", "--help"]
    best = 10.0
    for _ in range(5):  # the fastest of five: a busy machine is not the code's fault
        clock = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        best = min(best, time.perf_counter() - clock)
    assert best < 0.5


LIGHT = [
    "recombine",
    "recombine.cli",
    "recombine.probe",
    "recombine.report",
    "recombine.table",
    "recombine.unit_activity",
    "recombine.watch",
    "recombine.serve",
]


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_do_not_import_jax(module):
    code = f"import sys, {module}; sys.exit('jax' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_constraints_hold_no_address():
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"https?:|file:|@", text)
    assert re.search(r"^jax==0\.10\S* ; python_full_version < '3\.12'", text, re.MULTILINE)


def test_experiments_say_what_they_claim_cost_and_expect():
    for path in (ROOT / "recombine" / "experiments").glob("*.py"):
        if path.stem != "__init__":
            told = ast.get_docstring(ast.parse(path.read_text()))
            for label in ("Claim:", "Command:", "Runtime:", "Expected:"):
                found = re.search(rf"{label}\s+(.*)", told)
                assert re.search(r"[a-z]{2}", found[1] if found else ""), f"{path.name} does not say {label}"
