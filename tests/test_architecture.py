"""Checks of the rules in docs/design.md."""

import ast
import re
import resource
import subprocess
import sys
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
# Library -> the module that it installs, where the names differ.
MODULE_NAMES = {"pillow": "PIL", "scikit-learn": "sklearn", "mlflow-skinny": "mlflow"}
# import-linter checks the order of the rooms (pyproject.toml, `make lint`).


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "recombine")))
def test_size_and_style(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module needs a docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} is too long"
        if isinstance(node, ast.Call):
            assert getattr(node.func, "id", "") != "print", "use basics.console instead of print"
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "pickle" not in ast.dump(node), "pickle is not allowed: unpickling runs code"
    assert path.stem not in ("utils", "common", "base", "helpers", "manager")


def test_every_part_and_experiment_has_its_test():
    folders = [f"parts/{folder}" for folder in PART_FOLDERS if folder != "recipes"]
    folders += [f"experiments/{room}" for room in catalogue.EXPERIMENT_FOLDERS]
    for folder in folders:
        for path in (ROOT / "recombine" / folder).glob("[!_]*.py"):
            assert (ROOT / "tests" / folder / f"test_{path.stem}.py").exists(), (
                f"{folder}/{path.name} has no test"
            )


def test_every_room_has_a_docstring_and_the_root_has_only_rooms():
    root = {path.name for path in (ROOT / "recombine").iterdir() if path.name != "__pycache__"}
    files = {"__init__.py", "__init__.pyi", "__main__.py", "py.typed"}
    assert root == {*ROOMS, *files}, "the root has only rooms"
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
            f"there is no test {line}: remove it from slow.txt"
        )


def test_help_answers_in_half_a_second():
    command = [sys.executable, "-m", "recombine", "--help"]
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.5, "CPU time, which other processes do not change much"


def loaded_modules(statements: str) -> set[str]:
    """The modules that a new process has loaded after these statements."""
    code = f"import sys; {statements}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def modules_of(room: str) -> list[str]:
    """The modules of a room that may not load jax; of `probe`, those that need no torch."""
    if room == "probe":
        names = ("decodability", "prompts", "command", "page", "file_readers")
        return [f"recombine.probe.{name}" for name in names]
    files = sorted((ROOT / "recombine" / room).rglob("*.py"))
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in files
    ]


def test_light_rooms_load_no_jax():
    # One process imports the rooms, and the claims of experiments, one after another: a new one for
    # each would take seven times as long. `safetensors` is imported where it is used.
    rooms = ["basics", "storage", "reporting", "probe", "coverage", "cli", "claims"]
    lines = ["import sys"]
    for room in rooms:
        modules = ["recombine.experiments.claim"] if room == "claims" else modules_of(room)
        lines += [f"import {module}" for module in modules]
        heavy = "sorted({'jax', 'torch', 'safetensors'} & set(sys.modules))"
        lines.append(f"print({room!r}, {heavy})")
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{room} []" for room in rooms]


def test_basics_and_the_command_line_load_no_scipy_before_they_use_it():
    loaded = loaded_modules("import recombine.basics.statistics, recombine.cli.main")
    assert not {"scipy", "sklearn"} & loaded


def test_every_imported_library_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert extras["probe"] == [], (
        "it has no requirements, but `pip install 'recombine[probe]'` still works"
    )
    declared = [
        *project["dependencies"],
        *(line for name, lines in extras.items() if name != "dev" for line in lines),
    ]
    known = {re.match(r"[\w-]+", line)[0] for line in declared}
    known = {MODULE_NAMES.get(name, name) for name in known}
    imported = {name for path in FILES for name in top_level_imports(ast.parse(path.read_text()))}
    assert imported - sys.stdlib_module_names - {"recombine"} <= known


def top_level_imports(tree: ast.Module) -> set[str]:
    """The top-level name of every module that a file imports."""
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.append(node.module)
    return {module.partition(".")[0] for module in modules}


def test_the_library_loads_no_experiment():
    loaded = loaded_modules("import recombine as rc; rc.Run, rc.train, rc.MLP, dir(rc)")
    assert "recombine.training.scheduler" in loaded
    assert not [
        name for name in loaded if name.startswith(("recombine.experiments", "recombine.cli"))
    ]
    assert "torch" not in loaded


def test_constraints_contain_no_addresses():
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"https?:|file:|@", text)
    assert re.search(r"^jax==0\.10\S* ; python_full_version < '3\.12'", text, re.MULTILINE)


@pytest.mark.parametrize("name", catalogue.experiment_names())
def test_experiments_say_what_they_claim_cost_and_expect(name):
    text = catalogue.experiment(name).__doc__ or ""
    for label in ("Claim:", "Command:", "Runtime:", "Expected:"):
        match = re.search(rf"{label}\s+(.*)", text)
        assert re.search(r"[a-z]{2}", match[1] if match else ""), f"{name} does not say {label}"


def test_every_promise_names_a_test_that_exists():
    file = ""
    named = re.findall(r"`([^`]*test_[^`]*)`", (ROOT / "docs" / "promises.md").read_text())
    assert len(named) > 20
    for name in named:
        path, _, test = name.partition("::")
        file = file if path == "…" else path
        text = (ROOT / file).read_text()
        assert not test or f"def {test}(" in text, f"docs/promises.md names {name}: no such test"
