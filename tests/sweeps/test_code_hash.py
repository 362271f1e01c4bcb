"""The hash of a user's part depends on all the code that the part uses, and on nothing else."""

import dataclasses
import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import grimp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recombine as rc
from recombine.basics import version
from recombine.basics.errors import InputError
from recombine.sweeps import code_hash
from recombine.sweeps.canonical_fields import canonical_fields
from recombine.sweeps.code_hash import RELEVANT, hash_of_class, hash_of_package, source_files_of
from recombine.sweeps.syntax import parse_file, tree_text
from tests.timing import cpu_seconds
from tests.tiny import TINY

MINE = '''
"""My experiment."""
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helper import scaled, plotted

if TYPE_CHECKING:
    from typing import Any
else:
    LIMIT = 10

FACTOR = 2.0
OFFSETS = {"a": 1}
OFFSETS.update(b=12)
double = lambda x: FACTOR * x
TITLE, NUMBER = "Mine", 7
COUNT = 1
COUNT += 30

def marked(cls):
    """A decorator."""
    cls.mark = 5
    return cls

class Base:
    depth = 100

@marked
@dataclass(frozen=True)
class Part(Base):
    """An encoding of mine."""
    factor: float = math.pi

    def encode(self, params, key, task, examples):
        """Encode the task."""
        runs = 3
        def inner(x):
            "Inside."
            return x + COUNT
        return inner(scaled(double(task))) + OFFSETS["b"] + runs * LIMIT

def runs(scale):
    return [55, plotted(NUMBER)]

class Other:
    depth = 66

def figures(rows):
    return {TITLE: runs(rows)}

if __name__ == "__main__":
    sys.exit(runs("tiny"))
'''
HELPER = '''
"""My functions."""
import far

def scaled(x):
    return x * STEP

STEP = 4

def plotted(x):
    return far.plotted(x) + 77
'''
FAR = "def plotted(x):\n    return 88\n"
PROJECT = {"mine.py": MINE, "helper.py": HELPER, "far.py": FAR}


def with_part(folder, files, use):
    """Write files, import the first one, and call `use` with its class `Part`."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    module_name = next(iter(files)).removesuffix(".py").replace("/", ".")
    try:
        return use(importlib.import_module(module_name).Part)
    finally:
        sys.path.remove(str(folder))
        packages = {name.partition("/")[0].removesuffix(".py") for name in files}
        for name in list(sys.modules):
            if name.partition(".")[0] in packages:
                del sys.modules[name]


def hash_of_project(files):
    with tempfile.TemporaryDirectory() as folder:
        return with_part(Path(folder), files, hash_of_class)


def edited(old, new, files=PROJECT):
    """The project with one text replaced in all its files."""
    assert any(old in text for text in files.values())
    return {name: text.replace(old, new) for name, text in files.items()}


MATTERS = {
    "a method": ("runs * LIMIT", "runs + LIMIT"),
    "a field": ("factor: float = math.pi", "factor: float = math.e"),
    "the module of a default value": ("import math\n", "import cmath as math\n"),
    "a constant": ("FACTOR = 2.0", "FACTOR = 2.5"),
    "a lambda": ("FACTOR * x", "FACTOR - x"),
    "a constant that is increased": ("COUNT += 30", "COUNT += 31"),
    "a call that changes a constant": ("OFFSETS.update(b=12)", "OFFSETS.update(b=13)"),
    "the base class": ("depth = 100", "depth = 101"),
    "a decorator": ("cls.mark = 5", "cls.mark = 6"),
    "a removed decorator": ("@marked\n", ""),
    "a branch that an import executes": ("LIMIT = 10", "LIMIT = 11"),
    "a function of another file": ("x * STEP", "x / STEP"),
    "a constant of another file": ("STEP = 4", "STEP = 5"),
    "another function under the same name": (
        "import scaled, plotted",
        "import plotted as scaled, plotted",
    ),
    "a new loop": ("TITLE, NUMBER", "for i in range(2):\n    FACTOR += i\nTITLE, NUMBER"),
    "a new try statement": (
        "TITLE, NUMBER",
        "try:\n    FACTOR = 3.0\nexcept ValueError:\n    pass\nTITLE, NUMBER",
    ),
    "a changed item": ("TITLE, NUMBER", "OFFSETS['b'] = 3\nTITLE, NUMBER"),
    "a second definition": ("TITLE, NUMBER", "def double(x): return 9\nTITLE, NUMBER"),
}
DOES_NOT_MATTER = {
    "the sweep": ("[55, ", "[56, "),
    "another class": ("depth = 66", "depth = 67"),
    "a figure": ("{TITLE: runs(rows)}", "{}"),
    "an unused constant": ('"Mine", 7', '"Yours", 8'),
    "an unused function of another file": ("+ 77", "+ 78"),
    "code that only that function uses": ("88", "89"),
    "an unused import": ("scaled, plotted", "scaled, plotted, STEP as step"),
    "another unused import": ("import sys\n", "import sys\nimport json\n"),
    "code that only a script executes": ('runs("tiny")', 'runs("full")'),
    "code for type checkers only": (
        "from typing import Any\n",
        "from typing import Any, Final\n",
    ),
    "a comment": ("        runs = 3", "        # Three.\n\n        runs = 3  # three"),
    "layout": ("runs * LIMIT", "(runs  *  LIMIT)"),
    "the file's docstring": ('"""My experiment."""', ""),
    "the class's docstring": ("An encoding of mine.", "An encoding."),
    "the method's docstring": ('        """Encode the task."""\n', ""),
    "an inner docstring": ('"Inside."', '"Within."'),
    "a docstring of another file": ("My functions.", "Functions."),
}


@pytest.fixture(scope="module")
def original():
    return hash_of_project(PROJECT)


@pytest.mark.parametrize("change", MATTERS.values(), ids=MATTERS)
def test_the_hash_depends_on_the_code_that_the_part_uses(change, original):
    assert hash_of_project(edited(*change)) != original


@pytest.mark.parametrize("change", DOES_NOT_MATTER.values(), ids=DOES_NOT_MATTER)
def test_the_hash_depends_on_nothing_else(change, original):
    assert hash_of_project(edited(*change)) == original


def test_names_of_files_and_the_order_of_definitions_do_not_matter(original):
    assert hash_of_project({"yours.py": MINE, "helper.py": HELPER, "far.py": FAR}) == original
    assert hash_of_project({"lab/yours.py": MINE, "helper.py": HELPER, "far.py": FAR}) == original
    renamed = MINE.replace("from helper import", "from functions import")
    assert hash_of_project({"mine.py": renamed, "functions.py": HELPER, "far.py": FAR}) == original
    first, second = MINE.split("class Base:")
    base, second = second.split("@marked")
    assert (
        hash_of_project(PROJECT | {"mine.py": "class Base:" + base + first + "@marked" + second})
        == original
    )


numbers = st.lists(st.integers(0, 3), min_size=5, max_size=5)
noise = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20
)


def generated(used, unused, text):
    """A part that uses five numbers in two files, among functions that it does not use."""
    chain = [
        f"def f{i}(x):\n    # {text}\n    return f{i + 1}(x) + {n}\n"
        for i, n in enumerate(used[:3])
    ]
    unused_functions = [
        f"def g{i}(x):\n    {text!r}\n    return f{i % 3}(x) * {n}\n" for i, n in enumerate(unused)
    ]
    first, second, third, *rest = unused_functions
    part = f"class Part:\n    value = {used[3]}\n    def go(self): return f0(1)\n"
    mine = f"{text!r}\nfrom helper import f3\n{first}{part}"
    helper = f"{second.replace('f1', 'f3')}\n\n\ndef f3(x):\n    return x - {used[4]}\n"
    return {
        "mine.py": "\n".join([mine, third.replace("f2", "f0"), *chain, *rest]),
        "helper.py": helper,
    }


@settings(max_examples=30, deadline=None)
@given(numbers, numbers, numbers, numbers, noise, noise)
def test_equal_hashes_mean_equal_code(used_1, used_2, unused_1, unused_2, text_1, text_2):
    hash_1 = hash_of_project(generated(used_1, unused_1, text_1))
    hash_2 = hash_of_project(generated(used_2, unused_2, text_2))
    assert (hash_1 == hash_2) == (used_1 == used_2)
    assert hash_1 == hash_of_project(generated(used_1, unused_2, text_2))


IMPORTS = {
    "import helper": "helper.f()",
    "import helper as h": "h.f()",
    "from helper import *": "f()",
    "from helper import f as g": "g()",
    "try:\n    from helper import f\nexcept ImportError:\n    f = None": "f()",
    "": "__import__('math') and globals()['late']()",
    "pass": "late()",
}


@pytest.mark.parametrize(("line", "use"), IMPORTS.items(), ids=map(repr, IMPORTS))
def test_every_way_to_import_is_followed(line, use):
    late = "def late():\n    from helper import f\n    return f()\n"
    mine = f"{line}\n{late}class Part:\n    def go(self):\n        return {use}\n"
    files = {"mine.py": mine, "helper.py": "def f():\n    return 1\n"}
    assert hash_of_project(files) == hash_of_project(dict(files))
    assert hash_of_project(files) != hash_of_project(edited("return 1", "return 2", files))


def test_importing_a_module_makes_all_of_it_count():
    part = "class Part:\n    def go(self): return helper.f()\n"
    files = {
        "mine.py": "import helper\n" + part,
        "helper.py": "def f(): return 1\n\ndef g(): return 2\n",
    }
    assert hash_of_project(files) != hash_of_project(edited("return 2", "return 3", files))
    moved = files | {"helper.py": "def g(): return 2\n\ndef f(): return 1\n"}
    assert hash_of_project(files) == hash_of_project(moved)


PACKAGE = {
    "lab/parts.py": "from .tools import f\nfrom . import far\nimport lab.deep.more\n"
    "class Part:\n    def go(self): return f() + far.x + lab.deep.more.y\n",
    "lab/__init__.py": "import os\nos.environ.setdefault('LAB', '1')\nz = 7\n",
    "lab/tools.py": "from lab.deep import f\ndef g(): return 30\n",
    "lab/deep/__init__.py": "from ..far import x\ndef f(): return x + 5\ndef h(): return 40\n",
    "lab/deep/more.py": "y = 50\n",
    "lab/far.py": "x = 60\n",
}


PART = "class Part:\n    def go(self): return {}\n"
BASE = (
    "class Base:\n    known = {}\n    def __init_subclass__(cls): Base.known[cls.__name__] = cls\n"
)
META = """class Meta(type):
    known = {}
    def __init__(cls, *rest): Meta.known[cls.__name__] = cls
"""
ORDERS = {
    "of assignments": ("S = 2\nU = S\nS = 3\n", "S = 2\nS = 3\nU = S\n", "U"),
    "of a branch": ("X = 1\nif True:\n    X = 2\n", "if True:\n    X = 2\nX = 1\n", "X"),
}
SIDE_EFFECTS = {
    "a decorator that registers": (
        "known = {}\ndef register(f):\n    known[f.__name__] = f\n    return f\n"
        "@register\ndef act(x):\n    return 22\n",
        "known['act'](1)",
    ),
    "a subclass that is registered": (BASE + "class A(Base):\n    k = 22\n", "Base.known['A'].k"),
    "a subclass of a subclass": (
        BASE + "class A(Base): pass\nclass B(A):\n    k = 22\n",
        "Base.known['B'].k",
    ),
    "a metaclass": (META + "class A(metaclass=Meta):\n    k = 22\n", "Meta.known['A'].k"),
    "a base class of another file": (
        "from helper import Base\nclass A(Base):\n    k = 22\n",
        "Base.known['A'].k",
    ),
    "a base class by its module": (
        "import helper\nclass A(helper.Base):\n    k = 22\n",
        "helper.Base.known['A'].k",
    ),
    "an assigned method call": ("C = {'k': 1}\n_ = C.update(k=22)\n", "C['k']"),
    "a function that sets a global": (
        "K = 1\ndef setup():\n    global K\n    K = 22\nok = setup()\n",
        "K",
    ),
    "an attribute set by setattr": ("class C: pass\n_ = setattr(C, 'k', 22)\n", "C.k"),
    "an assignment expression": ("A = (B := 22)\n", "B"),
    "access by vars": ("K = 22\n", "vars(__import__('mine'))['K']"),
    "access by sys.modules": ("import sys\nK = 22\n", "sys.modules[__name__].K"),
    "access by locals and globals": ("K = 22\n", "locals().get('K', globals()['K'])"),
}


@pytest.mark.parametrize(("first", "second", "use"), ORDERS.values(), ids=ORDERS)
def test_the_order_of_executed_statements_matters(first, second, use):
    part = PART.format(use)
    assert hash_of_project({"mine.py": first + part}) != hash_of_project({"mine.py": second + part})


@pytest.mark.parametrize(("text", "use"), SIDE_EFFECTS.values(), ids=SIDE_EFFECTS)
def test_definitions_with_side_effects_matter(text, use):
    files = {"mine.py": text + PART.format(use), "helper.py": BASE}
    assert value_of_part(files) == 22
    assert hash_of_project(files) != hash_of_project(edited("22", "33", files))


def value_of_part(files):
    with tempfile.TemporaryDirectory() as folder:
        return with_part(Path(folder), files, lambda cls: cls().go())


def test_unused_definitions_without_side_effects_do_not_matter():
    text = """
import numpy as np
import recombine as rc
@np.vectorize
def f(x): return 22
A = np.arange(22).sum()
B = rc.Run(num_steps=4 * 22)
C = ', '.join(map(str, range(22)))
D = lambda x: f(22)
class E(rc.MLP):
    e = 22
F = rc.Run(model=E(), num_steps=4 * 22)
"""
    files = {"mine.py": text + PART.format("family.modules()")}
    assert hash_of_project(files) == hash_of_project(edited("22", "33", files))


def test_a_class_attribute_may_be_a_function_of_the_same_name():
    files = {"mine.py": "def go(self): return 22\nclass Part:\n    go = go\n"}
    assert hash_of_project(files) != hash_of_project(edited("22", "33", files))


def test_a_file_that_is_imported_for_its_side_effects_matters():
    part = """
import third
class Part:
    def go(self):
        import helper
        return helper.K
"""
    third = "import helper\nhelper.K = 22\ndef unused(): return 44\n"
    files = {"mine.py": part, "helper.py": "K = 1\n", "third.py": third}
    assert value_of_part(files) == 22
    assert hash_of_project(files) != hash_of_project(edited("22", "33", files))
    assert hash_of_project(files) == hash_of_project(edited("44", "55", files))


def test_files_may_import_each_other():
    mine = "class Base: pass\nfrom helper import Base\nclass A(Base):\n    k = 22\n" + PART.format(
        "1"
    )
    files = {"mine.py": mine, "helper.py": "from mine import Base\n"}
    assert hash_of_project(files) == hash_of_project(edited("22", "33", files))


def test_a_module_that_is_imported_by_a_call_matters():
    files = {
        "mine.py": "import importlib\nh = importlib.import_module('helper')\n" + PART.format("h.K"),
        "helper.py": "K = 22\n",
    }
    assert hash_of_project(files) != hash_of_project(edited("22", "33", files))


def test_an_edited_file_counts_once_it_is_executed_again(tmp_path):
    def hashes(cls):
        first = hash_of_class(cls)
        (tmp_path / "helper.py").write_text("K = 1000\n")  # in an editor, while a sweep runs
        after_edit = hash_of_class(cls)
        importlib.reload(sys.modules["helper"])
        return first, after_edit, hash_of_class(cls)

    files = {"mine.py": "import helper\n" + PART.format("helper.K"), "helper.py": "K = 1\n"}
    first, after_edit, after_reload = with_part(tmp_path, files, hashes)
    assert first == after_edit != after_reload
    assert after_reload == hash_of_project(edited("K = 1", "K = 1000", files))


def test_the_hash_of_a_file_is_cached(tmp_path, monkeypatch):
    def again(cls):
        first = hash_of_class(cls)
        monkeypatch.setattr(code_hash, "dependencies_of", None)
        return first == hash_of_class(cls)

    assert with_part(tmp_path, PROJECT, again)


def test_packages_and_relative_imports_are_followed(monkeypatch):
    monkeypatch.setenv("LAB", "1")
    first = hash_of_project(PACKAGE)
    for old, new in (
        ("x + 5", "x + 6"),
        ("y = 50", "y = 51"),
        ("x = 60", "x = 61"),
        ("'LAB', '1'", "'LAB', '2'"),
    ):
        assert hash_of_project(edited(old, new, PACKAGE)) != first, old
    assert hash_of_project(edited("return 30", "return 31", PACKAGE)) == first


def test_source_files_are_those_that_an_import_needs(tmp_path):
    assert with_part(tmp_path / "flat", PROJECT, source_files_of) == PROJECT
    assert with_part(tmp_path / "deep", PACKAGE, source_files_of) == PACKAGE
    files = {"a.py": "from recombine import Run as Part"}
    assert "recombine" not in str(with_part(tmp_path / "built_in", files, source_files_of))


def test_the_hash_of_a_class_made_by_a_function_depends_on_its_values():
    def make_class(factor):
        class Part:
            def go(self):
                return factor

        return Part

    assert hash_of_class(make_class(1)) == hash_of_class(make_class(1))
    assert hash_of_class(make_class(1)) != hash_of_class(make_class(2))


def test_the_message_for_a_broken_file_is_one_line(tmp_path):
    def broken(cls):
        (tmp_path / "mine.py").write_text("def (")
        return hash_of_class(cls)

    with pytest.raises(
        InputError, match=r"cannot parse .*mine\.py: .*line 1\)\. Fix the file and run"
    ):
        with_part(tmp_path, {"mine.py": "class Part: pass"}, broken)


TYPED = '''
import contextlib, dataclasses, functools
import numpy as np
LIMIT = 10
WORDS = {"a", "b", "c"}
TABLE = np.arange(3)
def helper(x):
    """Help."""
    return x + 20
half = functools.partial(helper, 30)
@contextlib.contextmanager
def wrapped():
    yield 11
class Base:
    depth = 40
@dataclasses.dataclass(frozen=True)
class Part(Base):
    """Typed."""
    factor: float = 50.0
    @property
    def doubled(self):
        return 60
    @staticmethod
    def go(x, y=70):
        """Go."""
        def inner():
            "Inside."
            return helper(x) + 80
        numbers = [inner() + i for i in range(LIMIT) if i in {90, 91}]
        return numbers, WORDS, TABLE, half, np.sin, wrapped
def runs(scale):
    return 100
'''


def typed(text, **known):
    exec(text, known)
    return hash_of_class(known["Part"])


@pytest.mark.parametrize("module", [{}, {"__name__": "__main__"}, {"__name__": "console"}], ids=str)
def test_the_hash_of_a_class_from_a_console_depends_on_its_code(module):
    for number in (*range(10, 100, 10), 11):
        other = re.sub(rf"\b{number}\b", str(number + 2), TYPED)
        assert other != TYPED
        assert typed(other, **module) != typed(TYPED, **module), number


def test_other_changes_of_a_class_from_a_console():
    for old, new in (
        ('"a", "b"', '"a", "z"'),
        ("arange(3)", "arange(4)"),
        ("np.sin", "np.cos"),
        ("i in range", "i in reversed"),
    ):
        assert typed(TYPED.replace(old, new)) != typed(TYPED), old
    without_docstrings = re.sub(r' *("""|")[A-Z]\w+\.("""|")\n', "", TYPED)
    assert without_docstrings.count("\n") == TYPED.count("\n") - 4
    assert typed(without_docstrings) == typed(TYPED)
    assert typed("# Mine.\n\n" + TYPED.replace("100", "101")) == typed(TYPED)


def test_a_cell_that_is_run_again_changes_the_hash():
    console = {}
    hashes = []
    exec("def helper(): return 0\n" + PART.format("helper()"), console)
    for number in (1, 2, 1):
        exec(f"def helper(): return {number}", console)
        hashes.append(hash_of_class(console["Part"]))
    assert hashes[0] == hashes[2] != hashes[1]


def test_a_program_is_compiled_again_when_a_cell_is():
    console = {"__name__": "console"}
    losses = []
    exec("import dataclasses\nfrom recombine.parts.encodings.identity import Identity", console)
    body = "    def encode(self, params, key, task, examples):\n        return helper(task)\n"
    exec("@dataclasses.dataclass(frozen=True)\nclass Part(Identity):\n" + body, console)
    run = dataclasses.replace(TINY, encoding=console["Part"]())
    for number in (1, 50):
        exec(f"def helper(x): return {number} * x", console)
        losses.append(rc.train(run)["seen/loss"].iloc[-1])
    assert losses[1] == rc.train(run)["seen/loss"].iloc[-1]
    assert losses[0] != losses[1]


def test_containers_in_a_console():
    text = """
def f(): return 1
def g(): return 2
T = {f: 10, g: 20}
S = {f, g}
L = [30]
L.append(L)
T['l'] = L
""" + PART.format("T, S, L, f, g")
    original = typed(text)
    for n in range(5):
        padded = f"pad = [object() for _ in range({n})]\n{text}"
        assert typed(padded) == original, "no addresses"
    hashes = [typed(text.replace(str(n), str(n + 1))) for n in (10, 20, 30)]
    assert len({original, *hashes}) == 4
    assert typed(text.replace("L.append(L)", "L.append([L])")) != original


def test_a_class_in_a_console_is_not_confused_with_the_next_object():
    text = "class A: pass\ndef f(): pass\nL = [A, f, A]\n" + PART.format("L")
    assert typed(text) != typed(text.replace("[A, f, A]", "[A, f, f]"))


def output_of(command, **environment):
    """What a Python process prints that imports this copy of the package."""
    env = {**os.environ, "PYTHONPATH": str(version.PACKAGE.parent), **environment}
    command = [sys.executable, *command]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return done.stdout


def test_hashes_are_the_same_in_every_process(tmp_path):
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    code = f"""{TYPED}
import mine, rich
from recombine.sweeps.code_hash import hash_of_class, hash_of_package
rich.print(hash_of_class(Part), hash_of_class(mine.Part), hash_of_package())
"""
    path = os.pathsep.join([str(tmp_path), str(version.PACKAGE.parent)])
    outputs = [output_of(["-c", code], PYTHONHASHSEED=seed, PYTHONPATH=path) for seed in ("1", "2")]
    assert outputs[0] == outputs[1]
    console, mine, package = outputs[0].split()
    assert (mine, package) == (hash_of_project(PROJECT), hash_of_package())
    assert console != mine


def test_a_script_is_hashed_like_a_module(tmp_path, original):
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    last = "from recombine.sweeps.code_hash import hash_of_class; import rich; "
    last += "rich.print(hash_of_class(Part))"
    (tmp_path / "mine.py").write_text(MINE.replace('sys.exit(runs("tiny"))', last))
    assert output_of([tmp_path / "mine.py"]).strip() == original


def test_our_own_code_is_hashed_where_results_depend_on_it(tmp_path, monkeypatch):
    copy = tmp_path / "recombine"
    shutil.copytree(version.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code_hash, "PACKAGE", copy)
    hash_of_copy = hash_of_package.__wrapped__  # without its cache

    def hash_after_edit(name, old, new):
        text = (copy / name).read_text()
        assert old in text
        (copy / name).write_text(text.replace(old, new, 1))
        result = hash_of_copy()
        (copy / name).write_text(text)
        return result

    assert hash_of_copy() == hash_of_package()
    assert hash_after_edit("parts/muon.py", '"""', '"""Once more: ') == hash_of_package()
    assert (
        hash_after_edit("parts/muon.py", "import jax", "# A comment.\nimport jax")
        == hash_of_package()
    )
    assert (
        hash_after_edit("reporting/page.py", "def ", "def new(): pass\ndef ") == hash_of_package()
    )
    assert hash_after_edit("parts/muon.py", "def ", "def new(): pass\ndef ") != hash_of_package()
    assert (
        hash_after_edit("parts/supports/balanced.py", "import", "import sys\nimport")
        != hash_of_package()
    )


def test_the_hash_of_our_code_is_cheap():
    sources = [path.read_bytes() for path in version.PACKAGE.rglob("*.py")]

    def compile_package() -> None:
        for source in sources:
            compile(source, "<source>", "exec")

    assert cpu_seconds(hash_of_package.__wrapped__, 7) < cpu_seconds(compile_package)


def hashed_files() -> set[str]:
    listed = {file for name in RELEVANT for file in (f"{name}.py", *_files_in(name))}
    return {file for file in listed if (version.PACKAGE / file).exists()}


def test_every_part_and_all_that_it_imports_is_hashed():
    # These find code and say what is wrong. They compute nothing.
    ignored = {"recombine.basics.suggest", "recombine.basics.version"}
    graph = grimp.build_graph("recombine", exclude_type_checking_imports=True)
    needed = set()
    queue = {name for name in graph.modules if name.startswith("recombine.parts")}
    while queue:
        name = queue.pop()
        needed.add(name)
        queue |= graph.find_modules_directly_imported_by(name) - ignored - needed
    assert {_file_of(name) for name in needed} <= hashed_files()


TRACED = """
import sys, tempfile, threading
from pathlib import Path
import recombine as rc
from recombine.basics.version import PACKAGE
from recombine.sweeps import discovery
from recombine.training.chunk import remote_chunk_rows
from recombine.training.executors import local, remote
from tests.tiny import TINY

discovery.parts()
packed = remote.pack(rc.sweep(TINY, seed=range(2)))
files = set()

def note(frame, event, argument):
    files.add(frame.f_code.co_filename)

folder = tempfile.mkdtemp()
threading.setprofile(note)
sys.setprofile(note)
local.keep_to_share(0, 1)
remote_chunk_rows(packed, 2, folder, folder + "/checkpoints")
sys.setprofile(None)
ours = [Path(file).relative_to(PACKAGE) for file in files if file.startswith(str(PACKAGE))]
sys.stdout.write(" ".join(file.as_posix() for file in ours))
"""


def test_every_file_that_training_executes_is_hashed():
    executed = set(output_of(["-c", TRACED]).split())
    assert {"training/trainer.py", "training/device.py", "parts/models/mlp.py"} <= executed
    assert executed - hashed_files() <= {"basics/moved_modules.py"}, "it only imports old names"


def test_a_change_of_any_hashed_file_changes_the_hash(tmp_path, monkeypatch):
    copy = tmp_path / "recombine"
    shutil.copytree(version.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code_hash, "PACKAGE", copy)
    # A file is parsed again only when it has changed.
    trees = functools.cache(lambda path, text: tree_text(parse_file(path)))
    monkeypatch.setattr(code_hash, "parse_file", lambda path: trees(path, path.read_text()))
    seen = {hash_of_package.__wrapped__()}
    for name in sorted(hashed_files()):
        text = (copy / name).read_text()
        (copy / name).write_text(text + "\nNEW = 1\n")
        seen.add(hash_of_package.__wrapped__())
        (copy / name).write_text(text)
    assert len(seen) == len(hashed_files()) + 1


def _files_in(folder):
    return [
        path.relative_to(version.PACKAGE).as_posix()
        for path in (version.PACKAGE / folder).glob("*.py")
    ]


def _file_of(module):
    path = module.removeprefix("recombine.").replace(".", "/")
    return f"{path}/__init__.py" if (version.PACKAGE / path).is_dir() else f"{path}.py"


def test_equal_fields_have_one_canonical_form():
    @dataclasses.dataclass(frozen=True)
    class Part:
        x: float | None = None
        n: int = 0
        flag: bool = False
        free: object = None
        sizes: tuple[float, ...] = ()
        rate: rc.Knob = 0.0
        maybe: bool | None = None

    part = Part(
        maybe=True, x=1, n=True, flag=1, free=2.0, sizes=[1, np.float32(0.5)], rate=np.int64(3)
    )
    assert repr(canonical_fields(part)) == repr(
        {"x": 1.0, "n": 1, "flag": True, "free": 2, "sizes": (1.0, 0.5), "rate": 3.0, "maybe": True}
    )
    for value in (2**60 + 1, 0.3, "text", None, float("inf")):
        assert canonical_fields(Part(free=value))["free"] == value
    assert repr(canonical_fields(Part(x=-0.0))["x"]) == "0.0"
    assert canonical_fields(Part(x=2**60 + 1)) != canonical_fields(Part(x=2**60))
