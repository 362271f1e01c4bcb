"""The rules that docs/design.md writes down, checked by a machine."""

import ast
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from recombine.experiments import catalogue

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "recombine").rglob("*.py"))
PART_FOLDERS = ("families", "supports", "encodings", "models", "diagnostics", "recipes")
ROOMS = (
    "basics",
    "parts",
    "storage",
    "sweeps",
    "reporting",
    "probe",
    "coverage",
    "training",
    "planning",
    "experiments",
    "cli",
)
MODULES = {
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "mlflow-skinny": "mlflow",
}  # the module of a library, where the names differ
# import-linter holds the order of the rooms (pyproject.toml, `make lint`).


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "recombine")))
def test_size_and_style(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module opens by saying what it is"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 100, f"{node.name} is too long"
        if isinstance(node, ast.Call):
            assert getattr(node.func, "id", "") != "print", "no print: the command line uses rich"
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "pickle" not in ast.dump(node), "never a pickle"
    assert path.stem not in ("utils", "common", "base", "helpers", "manager")


def test_every_part_and_experiment_has_its_test():
    folders = [f"parts/{folder}" for folder in PART_FOLDERS if folder != "recipes"]
    folders += [f"experiments/{room}" for room in catalogue.ROOMS]
    for folder in folders:
        for path in (ROOT / "recombine" / folder).glob("[!_]*.py"):
            assert (ROOT / "tests" / folder / f"test_{path.stem}.py").exists(), (
                f"{folder}/{path.name} has no test"
            )


def test_every_room_says_what_it_is_and_where_to_start():
    root = {path.name for path in (ROOT / "recombine").iterdir() if path.name != "__pycache__"}
    files = {"__init__.py", "__init__.pyi", "__main__.py", "py.typed"}
    assert root == {*ROOMS, *files}, "the root has rooms, and nothing else"
    for room in ROOMS:
        assert ast.get_docstring(ast.parse((ROOT / "recombine" / room / "__init__.py").read_text()))


def test_slow_tests_exist():
    lines = [
        line
        for line in (ROOT / "tests" / "slow.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert lines
    for line in lines:
        file, _, name = line.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(), (
            f"{line} is gone: take it off the list"
        )


def test_help_answers_in_half_a_second():
    command = [sys.executable, "-m", "recombine", "--help"]
    best = 10.0
    for _ in range(5):  # the fastest of five: a busy machine is not the code's fault
        clock = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        best = min(best, time.perf_counter() - clock)
    assert best < 0.5


def loaded(imports: str) -> set[str]:
    """What a process that runs this has loaded in the end."""
    code = f"import sys; {imports}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("room", ["basics", "storage", "reporting", "probe", "coverage", "cli"])
def test_light_rooms_load_no_jax(room):
    files = sorted((ROOT / "recombine" / room).rglob("*.py"))
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in files
    ]
    if room == "probe":  # what records is imported where torch is used
        modules = [
            f"recombine.probe.{name}"
            for name in ("decodability", "prompts", "command", "page", "files")
        ]
    found = loaded("; ".join(f"import {module}" for module in modules))
    assert "jax" not in found
    assert "torch" not in found
    assert "safetensors" not in found, "it is imported where a file is read or written"


def test_basics_and_the_command_line_load_no_scipy_before_they_use_it():
    found = loaded("import recombine.basics.statistics, recombine.cli.main")
    assert not {"scipy", "sklearn"} & found


def test_every_imported_library_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert extras["probe"] == [], (
        "it needs nothing more, and `pip install 'recombine[probe]'` still works"
    )
    declared = [
        *project["dependencies"],
        *(line for name, lines in extras.items() if name != "dev" for line in lines),
    ]
    known = {re.match(r"[\w-]+", line)[0] for line in declared}
    known = {MODULES.get(name, name) for name in known}
    imported = {name for path in FILES for name in top_level_imports(ast.parse(path.read_text()))}
    assert imported - sys.stdlib_module_names - {"recombine"} <= known


def top_level_imports(tree: ast.Module) -> set[str]:
    """The first name of every module that a file imports by an import statement."""
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.append(node.module)
    return {module.partition(".")[0] for module in modules}


def test_the_library_loads_no_experiment():
    found = loaded("import recombine as rc; rc.Run, rc.train, rc.MLP, dir(rc)")
    assert "recombine.training.scheduler" in found
    assert not [
        name for name in found if name.startswith(("recombine.experiments", "recombine.cli"))
    ]
    assert "torch" not in found


def test_constraints_hold_no_address():
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"https?:|file:|@", text)
    assert re.search(r"^jax==0\.10\S* ; python_full_version < '3\.12'", text, re.MULTILINE)


@pytest.mark.parametrize("name", catalogue.experiment_names())
def test_experiments_say_what_they_claim_cost_and_expect(name):
    text = catalogue.experiment(name).__doc__ or ""
    for label in ("Claim:", "Command:", "Runtime:", "Expected:"):
        found = re.search(rf"{label}\s+(.*)", text)
        assert re.search(r"[a-z]{2}", found[1] if found else ""), f"{name} does not say {label}"
