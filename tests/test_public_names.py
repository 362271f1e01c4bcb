"""The stub `recombine/__init__.pyi`, which editors and type checkers read."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import recombine as rc
from benchmarks import public_names

ROOT = Path(__file__).parent.parent
PYRIGHT = Path(sys.executable).with_name("pyright")
USER_FILE = """\
import recombine as rc

reveal_type(rc.Run())
reveal_type(rc.train(rc.Run()))
reveal_type(rc.MLP((8,)))
rc.Run(num_step=3)
rc.Transformr
"""


def test_stub_is_up_to_date():
    committed = public_names.STUB.read_text()
    assert committed == public_names.stub(), (
        "the stub is out of date: run python benchmarks/public_names.py"
    )


def test_stub_has_every_public_name_and_its_module():
    modules = {}
    for statement in ast.parse(public_names.STUB.read_text()).body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                assert alias.asname == alias.name, (
                    f"{alias.name} is private without `as {alias.name}`"
                )
                modules[alias.name] = statement.module
    assert {*modules, "__version__"} == set(dir(rc))
    for name, module in modules.items():
        assert getattr(importlib.import_module(module), name) is getattr(rc, name)


@pytest.mark.skipif(not PYRIGHT.exists(), reason=f"there is no pyright at {PYRIGHT}")
def test_pyright_knows_the_types_and_reports_mistakes(tmp_path):
    (tmp_path / "user.py").write_text(USER_FILE)
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"include": ["user.py"], "extraPaths": [str(ROOT)]})
    )
    command = [PYRIGHT, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    # 0: no errors, 1: errors in user.py, others: pyright failed
    assert done.returncode in (0, 1), done.stdout + done.stderr
    reports = json.loads(done.stdout)["generalDiagnostics"]
    assert [(report["severity"], report["message"]) for report in reports] == [
        ("information", 'Type of "rc.Run()" is "Run"'),
        ("information", 'Type of "rc.train(rc.Run())" is "DataFrame"'),
        ("information", 'Type of "rc.MLP((8, ))" is "MLP"'),
        ("error", 'No parameter named "num_step"'),
        ("error", '"Transformr" is not a known attribute of module "recombine"'),
    ]
