"""What a user's part is hashed by: all the code that it uses, and nothing else."""

import dataclasses
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
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
from recombine.sweeps.code_hash import RELEVANT, files_of, of_class, of_package
from tests.tiny import TINY

MINE = '''
"""My experiment."""
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helper import scaled, shown

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
        """Tell the task."""
        runs = 3
        def inner(x):
            "Inside."
            return x + COUNT
        return inner(scaled(double(task))) + OFFSETS["b"] + runs * LIMIT

def runs(scale):
    return [55, shown(NUMBER)]

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

def shown(x):
    return far.shown(x) + 77
'''
FAR = "def shown(x):\n    return 88\n"
PROJECT = {"mine.py": MINE, "helper.py": HELPER, "far.py": FAR}


def loaded(folder, files, use):
    """Write files, import the first one, and use its class `Part` before everything is forgotten."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        return use(
            importlib.import_module(next(iter(files)).removesuffix(".py").replace("/", ".")).Part
        )
    finally:
        sys.path.remove(str(folder))
        tops = {name.partition("/")[0].removesuffix(".py") for name in files}
        for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
            del sys.modules[name]


def hashed(files):
    with tempfile.TemporaryDirectory() as folder:
        return loaded(Path(folder), files, of_class)


def changed(old, new, files=PROJECT):
    """The project with one text replaced, wherever it stands."""
    assert any(old in text for text in files.values())
    return {name: text.replace(old, new) for name, text in files.items()}


MATTERS = {
    "a method": ("runs * LIMIT", "runs + LIMIT"),
    "a field": ("factor: float = math.pi", "factor: float = math.e"),
    "what a default comes from": ("import math\n", "import cmath as math\n"),
    "a constant": ("FACTOR = 2.0", "FACTOR = 2.5"),
    "a lambda": ("FACTOR * x", "FACTOR - x"),
    "a constant that grows": ("COUNT += 30", "COUNT += 31"),
    "a call that changes a constant": ("OFFSETS.update(b=12)", "OFFSETS.update(b=13)"),
    "the base class": ("depth = 100", "depth = 101"),
    "a decorator": ("cls.mark = 5", "cls.mark = 6"),
    "a decorator less": ("@marked\n", ""),
    "a branch that is always taken": ("LIMIT = 10", "LIMIT = 11"),
    "a function elsewhere": ("x * STEP", "x / STEP"),
    "a constant elsewhere": ("STEP = 4", "STEP = 5"),
    "another function under the same name": (
        "import scaled, shown",
        "import shown as scaled, shown",
    ),
    "a new loop": ("TITLE, NUMBER", "for i in range(2):\n    FACTOR += i\nTITLE, NUMBER"),
    "a new attempt": (
        "TITLE, NUMBER",
        "try:\n    FACTOR = 3.0\nexcept ValueError:\n    pass\nTITLE, NUMBER",
    ),
    "a changed attribute": ("TITLE, NUMBER", "OFFSETS['b'] = 3\nTITLE, NUMBER"),
    "a second definition": ("TITLE, NUMBER", "def double(x): return 9\nTITLE, NUMBER"),
}
DOES_NOT_MATTER = {
    "the sweep": ("[55, ", "[56, "),
    "another class": ("depth = 66", "depth = 67"),
    "a figure": ("{TITLE: runs(rows)}", "{}"),
    "an unused constant": ('"Mine", 7', '"Yours", 8'),
    "an unused function elsewhere": ("+ 77", "+ 78"),
    "what that one uses": ("88", "89"),
    "an unused import": ("scaled, shown", "scaled, shown, STEP as step"),
    "another unused import": ("import sys\n", "import sys\nimport json\n"),
    "the script's part": ('runs("tiny")', 'runs("full")'),
    "what only a type checker reads": (
        "from typing import Any\n",
        "from typing import Any, Final\n",
    ),
    "a comment": ("        runs = 3", "        # Three.\n\n        runs = 3  # three"),
    "layout": ("runs * LIMIT", "(runs  *  LIMIT)"),
    "the file's docstring": ('"""My experiment."""', ""),
    "the class's docstring": ("An encoding of mine.", "An encoding."),
    "the method's docstring": ('        """Tell the task."""\n', ""),
    "an inner docstring": ('"Inside."', '"Within."'),
    "a docstring elsewhere": ("My functions.", "Functions."),
}


@pytest.fixture(scope="module")
def original():
    return hashed(PROJECT)


@pytest.mark.parametrize("change", MATTERS.values(), ids=MATTERS)
def test_what_the_part_uses_matters(change, original):
    assert hashed(changed(*change)) != original


@pytest.mark.parametrize("change", DOES_NOT_MATTER.values(), ids=DOES_NOT_MATTER)
def test_nothing_else_matters(change, original):
    assert hashed(changed(*change)) == original


def test_places_and_names_of_files_do_not_matter(original):
    assert hashed({"yours.py": MINE, "helper.py": HELPER, "far.py": FAR}) == original
    assert hashed({"lab/yours.py": MINE, "helper.py": HELPER, "far.py": FAR}) == original
    renamed = MINE.replace("from helper import", "from functions import")
    assert hashed({"mine.py": renamed, "functions.py": HELPER, "far.py": FAR}) == original
    first, second = MINE.split("class Base:")
    base, second = second.split("@marked")
    assert (
        hashed(PROJECT | {"mine.py": "class Base:" + base + first + "@marked" + second}) == original
    )


numbers = st.lists(st.integers(0, 3), min_size=5, max_size=5)
noise = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20
)


def generated(used, unused, text):
    """A part of five functions in two files, each with a number, beside others that it does not use."""
    chain = [
        f"def f{i}(x):\n    # {text}\n    return f{i + 1}(x) + {n}\n"
        for i, n in enumerate(used[:3])
    ]
    others = [
        f"def g{i}(x):\n    {text!r}\n    return f{i % 3}(x) * {n}\n" for i, n in enumerate(unused)
    ]
    part = f"class Part:\n    value = {used[3]}\n    def go(self): return f0(1)\n"
    mine = f"{text!r}\nfrom helper import f3\n{others[0]}{part}"
    helper = f"{others[1].replace('f1', 'f3')}\n\n\ndef f3(x):\n    return x - {used[4]}\n"
    return {
        "mine.py": "\n".join([mine, others[2].replace("f2", "f0"), *chain, *others[3:]]),
        "helper.py": helper,
    }


@settings(max_examples=30, deadline=None)
@given(numbers, numbers, numbers, numbers, noise, noise)
def test_equal_hashes_mean_equal_code(used, other, unused, others, text, another):
    same = hashed(generated(used, unused, text)) == hashed(generated(other, others, another))
    assert same == (used == other)
    assert hashed(generated(used, unused, text)) == hashed(generated(used, others, another))


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
    one, other = ({"mine.py": mine, "helper.py": f"def f():\n    return {n}\n"} for n in (1, 2))
    assert hashed(one) == hashed(dict(one))
    assert hashed(one) != hashed(other)


def test_a_module_that_is_imported_as_such_counts_as_a_whole():
    part = "class Part:\n    def go(self): return helper.f()\n"
    files = {
        "mine.py": "import helper\n" + part,
        "helper.py": "def f(): return 1\n\ndef g(): return 2\n",
    }
    assert hashed(files) != hashed(changed("return 2", "return 3", files))
    moved = files | {"helper.py": "def g(): return 2\n\ndef f(): return 1\n"}
    assert hashed(files) == hashed(moved)


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
META = "class Meta(type):\n    known = {}\n    def __init__(cls, *rest): Meta.known[cls.__name__] = cls\n"
ORDERS = {
    "of assignments": ("S = 2\nU = S\nS = 3\n", "S = 2\nS = 3\nU = S\n", "U"),
    "of a branch": ("X = 1\nif True:\n    X = 2\n", "if True:\n    X = 2\nX = 1\n", "X"),
}
ACTS = {
    "a decorator that registers": (
        "known = {}\ndef note(f):\n    known[f.__name__] = f\n    return f\n@note\ndef act(x):\n    return 22\n",
        "known['act'](1)",
    ),
    "a subclass that is noted": (BASE + "class A(Base):\n    k = 22\n", "Base.known['A'].k"),
    "a subclass of a subclass": (
        BASE + "class A(Base): pass\nclass B(A):\n    k = 22\n",
        "Base.known['B'].k",
    ),
    "a metaclass": (META + "class A(metaclass=Meta):\n    k = 22\n", "Meta.known['A'].k"),
    "a base elsewhere": (
        "from helper import Base\nclass A(Base):\n    k = 22\n",
        "Base.known['A'].k",
    ),
    "a base of a module elsewhere": (
        "import helper\nclass A(helper.Base):\n    k = 22\n",
        "helper.Base.known['A'].k",
    ),
    "a method that is assigned": ("C = {'k': 1}\n_ = C.update(k=22)\n", "C['k']"),
    "a function that sets": ("K = 1\ndef setup():\n    global K\n    K = 22\nok = setup()\n", "K"),
    "an attribute that is set": ("class C: pass\n_ = setattr(C, 'k', 22)\n", "C.k"),
    "a name inside": ("A = (B := 22)\n", "B"),
    "by name": ("K = 22\n", "vars(__import__('mine'))['K']"),
    "by the module": ("import sys\nK = 22\n", "sys.modules[__name__].K"),
    "by all names": ("K = 22\n", "locals().get('K', globals()['K'])"),
}


@pytest.mark.parametrize(("one", "other", "use"), ORDERS.values(), ids=ORDERS)
def test_the_order_of_what_is_executed_matters(one, other, use):
    assert hashed({"mine.py": one + PART.format(use)}) != hashed(
        {"mine.py": other + PART.format(use)}
    )


@pytest.mark.parametrize(("text", "use"), ACTS.values(), ids=ACTS)
def test_what_changes_something_on_the_way_matters(text, use):
    files = {"mine.py": text + PART.format(use), "helper.py": BASE}
    assert loaded_value(files) == 22
    assert hashed(files) != hashed(changed("22", "33", files))


def loaded_value(files):
    with tempfile.TemporaryDirectory() as folder:
        return loaded(Path(folder), files, lambda cls: cls().go())


def test_what_only_defines_something_does_not_matter():
    text = "import numpy as np\nimport recombine as rc\n@np.vectorize\ndef f(x): return 22\nA = np.arange(22).sum()\n"
    text += (
        "B = rc.Run(num_steps=4 * 22)\nC = ', '.join(map(str, range(22)))\nD = lambda x: f(22)\n"
    )
    text += "class E(rc.MLP):\n    e = 22\nF = rc.Run(model=E(), num_steps=4 * 22)\n"
    files = {"mine.py": text + PART.format("family.modules()")}
    assert hashed(files) == hashed(changed("22", "33", files))


def test_a_class_takes_functions_of_the_same_name():
    files = {"mine.py": "def go(self): return 22\nclass Part:\n    go = go\n"}
    assert hashed(files) != hashed(changed("22", "33", files))


def test_a_file_that_is_imported_for_what_it_does_matters():
    part = "import third\nclass Part:\n    def go(self):\n        import helper\n        return helper.K\n"
    third = "import helper\nhelper.K = 22\ndef unused(): return 44\n"
    files = {"mine.py": part, "helper.py": "K = 1\n", "third.py": third}
    assert loaded_value(files) == 22
    assert hashed(files) != hashed(changed("22", "33", files))
    assert hashed(files) == hashed(changed("44", "55", files))


def test_files_that_import_each_other_come_to_an_end():
    mine = "class Base: pass\nfrom helper import Base\nclass A(Base):\n    k = 22\n" + PART.format(
        "1"
    )
    files = {"mine.py": mine, "helper.py": "from mine import Base\n"}
    assert hashed(files) == hashed(changed("22", "33", files))


def test_a_module_that_is_imported_by_a_call_matters():
    files = {
        "mine.py": "import importlib\nh = importlib.import_module('helper')\n" + PART.format("h.K"),
        "helper.py": "K = 22\n",
    }
    assert hashed(files) != hashed(changed("22", "33", files))


def test_a_file_is_hashed_as_it_was_until_it_is_executed_again(tmp_path):
    def edited(cls):
        first, path = of_class(cls), tmp_path / "helper.py"
        path.write_text("K = 1000\n")  # in an editor, while a sweep runs
        kept = of_class(cls)
        importlib.reload(sys.modules["helper"])
        return first, kept, of_class(cls)

    files = {"mine.py": "import helper\n" + PART.format("helper.K"), "helper.py": "K = 1\n"}
    first, kept, last = loaded(tmp_path, files, edited)
    assert first == kept != last
    assert last == hashed(changed("K = 1", "K = 1000", files))


def test_the_hash_of_a_file_is_remembered(tmp_path, monkeypatch):
    def again(cls):
        first = of_class(cls)
        monkeypatch.setattr(code_hash, "Closure", None)
        return first == of_class(cls)

    assert loaded(tmp_path, PROJECT, again)


def test_packages_and_relative_imports_are_followed(monkeypatch):
    monkeypatch.setenv("LAB", "1")
    first = hashed(PACKAGE)
    for old, new in (
        ("x + 5", "x + 6"),
        ("y = 50", "y = 51"),
        ("x = 60", "x = 61"),
        ("'LAB', '1'", "'LAB', '2'"),
    ):
        assert hashed(changed(old, new, PACKAGE)) != first, old
    assert hashed(changed("return 30", "return 31", PACKAGE)) == first


def test_files_are_those_that_an_import_needs(tmp_path):
    assert loaded(tmp_path / "flat", PROJECT, files_of) == PROJECT
    assert loaded(tmp_path / "deep", PACKAGE, files_of) == PACKAGE
    assert "recombine" not in str(
        loaded(tmp_path / "ours", {"a.py": "from recombine import Run as Part"}, files_of)
    )


def test_a_class_made_by_a_function_is_told_by_what_it_holds():
    def made(factor):
        class Part:
            def go(self):
                return factor

        return Part

    assert of_class(made(1)) == of_class(made(1))
    assert of_class(made(1)) != of_class(made(2))


def test_a_broken_file_is_told_in_one_line(tmp_path):
    def broken(cls):
        (tmp_path / "mine.py").write_text("def (")
        return of_class(cls)

    with pytest.raises(InputError, match=r"mine\.py cannot be read any more"):
        loaded(tmp_path, {"mine.py": "class Part: pass"}, broken)


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
        return [inner() + i for i in range(LIMIT) if i in {90, 91}], WORDS, TABLE, half, np.sin, wrapped
def runs(scale):
    return 100
'''


def typed(text, **known):
    exec(text, known)
    return of_class(known["Part"])


@pytest.mark.parametrize("module", [{}, {"__name__": "__main__"}, {"__name__": "console"}], ids=str)
def test_a_class_typed_into_a_console_is_told_by_its_code(module):
    for number in (*range(10, 100, 10), 11):
        changed = re.sub(rf"\b{number}\b", str(number + 2), TYPED)
        assert changed != TYPED
        assert typed(changed, **module) != typed(TYPED, **module), number


def test_other_changes_in_a_console():
    for old, new in (
        ('"a", "b"', '"a", "z"'),
        ("arange(3)", "arange(4)"),
        ("np.sin", "np.cos"),
        ("i in range", "i in reversed"),
    ):
        assert typed(TYPED.replace(old, new)) != typed(TYPED), old
    quiet = re.sub(r' *("""|")[A-Z]\w+\.("""|")\n', "", TYPED)
    assert quiet.count("\n") == TYPED.count("\n") - 4
    assert typed(quiet) == typed(TYPED)
    assert typed("# Mine.\n\n" + TYPED.replace("100", "101")) == typed(TYPED)


def test_a_cell_that_is_run_again_changes_the_hash():
    known, told = {}, []
    exec("def helper(): return 0\n" + PART.format("helper()"), known)
    for number in (1, 2, 1):
        exec(f"def helper(): return {number}", known)
        told.append(of_class(known["Part"]))
    assert told[0] == told[2] != told[1]


def test_a_program_is_compiled_again_when_a_cell_is():
    known, told = {"__name__": "console"}, []
    exec("import dataclasses\nfrom recombine.parts.encodings.identity import Identity", known)
    body = "    def encode(self, params, key, task, examples):\n        return helper(task)\n"
    exec("@dataclasses.dataclass(frozen=True)\nclass Part(Identity):\n" + body, known)
    run = dataclasses.replace(TINY, encoding=known["Part"]())
    for number in (1, 50):
        exec(f"def helper(x): return {number} * x", known)
        told.append(rc.train(run)["seen/loss"].iloc[-1])
    assert told[1] == rc.train(run)["seen/loss"].iloc[-1]
    assert told[0] != told[1]


def test_containers_in_a_console():
    text = "def f(): return 1\ndef g(): return 2\nT = {f: 10, g: 20}\nS = {f, g}\nL = [30]\nL.append(L)\nT['l'] = L\n"
    text += PART.format("T, S, L, f, g")
    told = typed(text)
    assert all(typed(f"pad = [object() for _ in range({n})]\n{text}") == told for n in range(5)), (
        "no addresses"
    )
    assert len({told, *(typed(text.replace(str(n), str(n + 1))) for n in (10, 20, 30))}) == 4
    assert typed(text.replace("L.append(L)", "L.append([L])")) != told


def test_hashes_are_the_same_in_every_process(tmp_path):
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    code = f"{TYPED}\nimport mine\nfrom recombine.sweeps.code_hash import of_class, of_package\n"
    code += "import rich\nrich.print(of_class(Part), of_class(mine.Part), of_package())"
    command = [sys.executable, "-c", code]
    path = os.pathsep.join([str(tmp_path), str(version.PACKAGE.parent)])
    told = [
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    console, mine, ours = told[0].split()
    assert (mine, ours) == (hashed(PROJECT), of_package())
    assert console != mine


def test_a_script_is_hashed_like_a_module(tmp_path, original):
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    last = (
        "from recombine.sweeps.code_hash import of_class; import rich; rich.print(of_class(Part))"
    )
    (tmp_path / "mine.py").write_text(MINE.replace('sys.exit(runs("tiny"))', last))
    env = {**os.environ, "PYTHONPATH": str(version.PACKAGE.parent)}
    told = subprocess.run(
        [sys.executable, tmp_path / "mine.py"], check=True, capture_output=True, text=True, env=env
    )
    assert told.stdout.strip() == original


def test_our_own_code_is_hashed_where_results_depend_on_it(tmp_path, monkeypatch):
    copy = tmp_path / "recombine"
    shutil.copytree(version.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code_hash, "PACKAGE", copy)
    again = of_package.__wrapped__

    def edited(name, old, new):
        text = (copy / name).read_text()
        assert old in text
        (copy / name).write_text(text.replace(old, new, 1))
        found = again()
        (copy / name).write_text(text)
        return found

    assert again() == of_package()
    assert edited("parts/muon.py", '"""', '"""Once more: ') == of_package()
    assert edited("parts/muon.py", "import jax", "# A comment.\nimport jax") == of_package()
    assert edited("reporting/page.py", "def ", "def new(): pass\ndef ") == of_package()
    assert edited("parts/muon.py", "def ", "def new(): pass\ndef ") != of_package()
    assert edited("parts/supports/balanced.py", "import", "import sys\nimport") != of_package()


def test_the_hash_of_our_code_is_cheap():
    best = 10.0
    for _ in range(7):  # the fastest: a busy machine is not the code's fault
        clock = time.process_time()
        of_package.__wrapped__()
        best = min(best, time.process_time() - clock)
    assert best < 0.3  # 0.07 on a machine that has nothing else to do


def test_no_code_that_training_uses_is_forgotten():
    # These decide where and when something is computed, or what a message says, not what is computed.
    without_effect = {f"basics.{name}" for name in ("errors", "suggest", "version", "atomic_io")}
    without_effect |= {
        "training.device",
        "training.checkpoint",
        "sweeps.code_hash",
        "sweeps.closure",
    }
    graph = grimp.build_graph("recombine", exclude_type_checking_imports=True)
    parts = [name for name in graph.modules if name.startswith("recombine.parts")]
    needed, waiting = set(), {"recombine.training.trainer", *parts}
    while waiting:
        name = waiting.pop()
        needed.add(name)
        found = graph.find_modules_directly_imported_by(name) - {
            f"recombine.{other}" for other in without_effect
        }
        waiting |= found - needed
    listed = {file for name in RELEVANT for file in (f"{name}.py", *_files_in(name))}
    assert {_file_of(name) for name in needed} == {
        file for file in listed if (version.PACKAGE / file).exists()
    }


def _files_in(folder):
    return [
        path.relative_to(version.PACKAGE).as_posix()
        for path in (version.PACKAGE / folder).glob("*.py")
    ]


def _file_of(module):
    path = module.removeprefix("recombine.").replace(".", "/")
    return f"{path}/__init__.py" if (version.PACKAGE / path).is_dir() else f"{path}.py"


def test_fields_have_one_form():
    @dataclasses.dataclass(frozen=True)
    class Part:
        x: float | None = None
        n: int = 0
        flag: bool = False
        free: object = None
        sizes: tuple[float, ...] = ()
        rate: rc.Knob = 0.0
        maybe: bool | None = None

    one = Part(
        maybe=True, x=1, n=True, flag=1, free=2.0, sizes=[1, np.float32(0.5)], rate=np.int64(3)
    )
    assert repr(code_hash.fields(one)) == repr(
        {"x": 1.0, "n": 1, "flag": True, "free": 2, "sizes": (1.0, 0.5), "rate": 3.0, "maybe": True}
    )
    for value in (2**60 + 1, 0.3, "text", None, float("inf")):
        assert code_hash.fields(Part(free=value))["free"] == value
    assert repr(code_hash.fields(Part(x=-0.0))["x"]) == "0.0"
    assert code_hash.fields(Part(x=2**60 + 1)) != code_hash.fields(Part(x=2**60))
