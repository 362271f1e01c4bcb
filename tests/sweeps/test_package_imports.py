"""Searching for imports as text finds what parsing finds."""

import ast

from recombine.basics.version import PACKAGE
from recombine.sweeps.package_imports import (
    imported_files,
    named_data_files,
    needed_files,
    package_file,
)


def parsed_imports(text):
    """The files of the modules that any import statement of this text names."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {package_file(name) for name in names} - {None}


def test_no_import_in_any_file_is_missed():
    num_imports = 0
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        parsed = parsed_imports(text)
        num_imports += len(parsed)
        assert parsed <= imported_files(text), path
    assert num_imports > 1000


def test_imports_are_followed_and_packages_are_included(tmp_path):
    package = tmp_path / "recombine"
    texts = {
        "a.py": "def f():\n    from recombine.room import (\n        b as other,\n    )\n",
        "room/__init__.py": "",
        "room/b.py": "import recombine.c, json\nRows = read('rows.parquet')\n",
        "room/d.py": "",
        "c.py": "from recombine.lazy import Name",
        "lazy/__init__.py": "",
        "lazy/inner.py": "",
        "unrelated.py": "import recombine.a",
    }
    for name, text in texts.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    needed = {
        path.relative_to(package).as_posix() for path in needed_files([package / "a.py"], package)
    }
    expected = {
        "a.py",
        "room/__init__.py",
        "room/b.py",
        "c.py",
        "lazy/__init__.py",
        "lazy/inner.py",
    }
    assert needed == expected
    table = package / "rows.parquet"
    assert named_data_files(package / "room" / "b.py", [package]) == []
    table.write_bytes(b"")
    assert named_data_files(package / "room" / "b.py", [package]) == [table]
    assert named_data_files(package / "a.py", [package]) == []
