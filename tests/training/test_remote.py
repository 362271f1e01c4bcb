"""Runs that are sent to a machine that has only the package: they arrive unchanged."""

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import recombine as rc
from recombine.basics import user_files
from recombine.basics.errors import InputError
from recombine.parts.encodings.identity import Identity
from recombine.sweeps.run import Run, identity, structure
from recombine.training.executors import remote
from recombine.training.executors.remote import pack, unpack

PART = '''
from dataclasses import dataclass
import helper
from tools.deep import times

@dataclass(frozen=True)
class Doubled:
    """An encoding of the user's own."""
    factor: float = 2.0
    sizes: tuple[int, ...] = (1, 2)
    def num_tokens(self, family):
        return 0
    def init(self, key, family):
        return ()
    def encode(self, params, key, task, examples):
        from late import shift
        return times(self.factor, task) + helper.ZERO + shift()

@dataclass(frozen=True)
class Halved(Doubled):
    factor: float = 0.5
'''
FILES = {
    "mine.py": PART,
    "helper.py": "ZERO = 0\n",
    "late.py": "def shift():\n    return 0.0\n",
    "tools/__init__.py": "",
    "tools/deep.py": "from . import more\n\ndef times(x, y):\n    return more.product(x, y)\n",
    "tools/more.py": '"""Ünïcode."""\ndef product(x, y):\n    return x * y\n',
}
RECEIVE = """
import json, sys, typer
from recombine.training.executors.remote import unpack
from recombine.sweeps.run import identity, structure
texts = json.load(sys.stdin)
runs = []
codes = []
for text in texts:  # each one is used before the next one is unpacked
    runs.append(unpack(text))
    codes.append([float(run.encoding.encode((), None, 3.0, None)) for run in runs[-1]])
names = [json.loads(text)["names"] for text in texts]
folders = [path for path in sys.path if "recombine-remote" in path]
result = {
    "names": names,
    "identities": [[identity(run) for run in sent] for sent in runs],
    "values": [[repr(run.encoding) for run in sent] for sent in runs],
    "codes": codes,
    "classes": [[id(type(run.encoding)) for run in sent] for sent in runs],
    "folders": folders,
}
typer.echo(json.dumps(result))
"""
ROOT = Path(__file__).parents[2]


def unpack_elsewhere(*texts, folder):
    """Unpack texts in a new process that cannot see the user's files."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RECOMBINE_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", RECEIVE],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        env=env,
        cwd=folder,
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A function that writes the user's files and imports one. Each call makes a new version."""
    known_modules = set(sys.modules)
    path_before = list(sys.path)
    received_before = dict(remote._received_modules)
    (tmp_path / "empty").mkdir()

    def write(files=FILES, name="mine"):
        folder = tmp_path / f"files{len(list(tmp_path.iterdir()))}"
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
            sys.modules.pop(
                path.removesuffix(".py").removesuffix("/__init__").replace("/", "."), None
            )
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    sys.path[:] = path_before
    remote._received_modules.clear()
    remote._received_modules.update(received_before)
    for name in set(sys.modules) - known_modules:
        if name.partition(".")[0] in ("mine", "helper", "late", "tools", "lab", "other"):
            del sys.modules[name]


def runs_of(module):
    return [
        Run(encoding=module.Doubled(3.0)),
        Run(encoding=module.Halved(sizes=(4,)), seed=2),
        Run(encoding=module.Halved()),
    ]


def test_parts_of_ours_need_no_files():
    runs = [*rc.sweep(Run(), seed=range(3)), rc.paper(), Run(diagnostics=())]
    assert json.loads(pack(runs))["parts"] == {}
    assert unpack(pack(runs)) == runs


def test_runs_are_unpacked_without_the_users_files(mine, tmp_path):
    runs = runs_of(mine())
    text = pack(runs)
    assert json.loads(text)["files"] == FILES
    # The second text has other classes with the same code, the third another version of a file.
    again = pack(runs_of(mine()))
    other = pack(
        runs_of(mine(FILES | {"tools/more.py": "def product(x, y):\n    return x * y + 100\n"}))
    )
    result = unpack_elsewhere(text, again, other, text, folder=tmp_path / "empty")
    names = [identity(run) for run in runs]
    assert result["names"][0] == result["identities"][0] == names
    assert result["identities"] == result["names"], "the worker computes the same hashes"
    assert result["names"][1] == result["names"][3] == names
    assert not set(result["names"][2]) & set(names)
    assert result["values"][0] == [repr(run.encoding) for run in runs]
    assert result["codes"] == [
        [9.0, 1.5, 1.5],
        [9.0, 1.5, 1.5],
        [109.0, 101.5, 101.5],
        [9.0, 1.5, 1.5],
    ]
    first, second, third, fourth = result["classes"]
    assert first == second == fourth, "equal code is one class: nothing is compiled again"
    assert not set(first) & set(third)
    assert result["folders"]
    assert not any(Path(folder).exists() for folder in result["folders"]), "nothing is left behind"


def test_a_class_that_is_already_imported_is_used(mine):
    module = mine()
    runs = unpack(pack(runs_of(module)))
    assert runs == runs_of(module)
    assert type(runs[0].encoding) is module.Doubled
    assert {structure(run) for run in runs} == {structure(run) for run in runs_of(module)}


def test_an_imported_class_with_other_code_is_not_used(mine):
    text = pack(runs_of(mine()))
    changed = mine(FILES | {"helper.py": "ZERO = 1\n"})
    runs = unpack(text)
    assert type(runs[0].encoding) is not changed.Doubled
    assert runs[0].encoding.encode((), None, 1.0, None) == 3.0
    assert not {identity(run) for run in runs} & {identity(run) for run in runs_of(changed)}


def test_packages_and_files_of_any_name_are_sent(mine, tmp_path):
    files = {f"lab/{name}": text for name, text in FILES.items()}
    files["lab/mine.py"] = PART.replace("import helper", "from . import helper").replace(
        "from late", "from .late"
    )
    files["lab/mine.py"] = files["lab/mine.py"].replace("from tools", "from lab.tools")
    files["lab/__init__.py"] = "NAME = 'lab'\n"
    packaged = pack(runs_of(mine(files, "lab.mine")))
    assert json.loads(packaged)["files"] == files
    plain = PART.replace(
        "import helper\nfrom tools.deep import times\n", "times = lambda x, y: x * y\n"
    )
    plain = plain.replace("        from late import shift\n", "").replace(
        "+ helper.ZERO + shift()", "+ 7"
    )
    (tmp_path / "my-own parts.py").write_text(plain)
    loaded = pack(runs_of(user_files.load(tmp_path / "my-own parts.py")))
    result = unpack_elsewhere(packaged, loaded, folder=tmp_path / "empty")
    assert result["codes"] == [[9.0, 1.5, 1.5], [16.0, 8.5, 8.5]]
    assert result["identities"] == result["names"]


def test_the_classes_of_a_script_are_sent(tmp_path):
    plain = PART.replace("import helper\nfrom tools.deep import times\n", "").replace(
        "times(self.factor, task)", "5"
    )
    plain = plain.replace("        from late import shift\n", "").replace(
        "+ helper.ZERO + shift()", "+ 6"
    )
    plain += "\nif __name__ == '__main__':\n    import typer\n"
    plain += "    from recombine.training.executors.remote import pack\n"
    plain += "    from recombine.sweeps.run import Run\n"
    plain += "    typer.echo(pack([Run(encoding=Doubled())]), nl=False)\n"
    (tmp_path / "my.script.py").write_text(plain)
    (tmp_path / "empty").mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, tmp_path / "my.script.py"],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    result = unpack_elsewhere(done.stdout, folder=tmp_path / "empty")
    assert result["codes"] == [[11.0]]
    assert result["identities"] == result["names"]


def test_another_version_is_refused():
    content = json.loads(pack([Run()]))
    code = content["code"]
    for change in ({"code": "0123456789abcdef"}, {"numerics": 1}):
        with pytest.raises(
            InputError,
            match=rf"another version of recombine \(code {code}\) than the driver .*update",
        ):
            unpack(json.dumps(content | change))


def test_two_classes_of_one_name_are_refused(mine):
    first = mine()
    identity(Run(encoding=first.Doubled()))  # before another class has its name
    second = mine(FILES | {"helper.py": "ZERO = 1\n"})
    with pytest.raises(
        InputError, match="there are two different classes Doubled, in mine and in mine"
    ):
        pack([Run(encoding=first.Doubled()), Run(encoding=second.Doubled())])
    ours = mine(FILES | {"mine.py": PART.replace("Doubled", "Identity")})
    with pytest.raises(InputError, match="two different classes Identity"):
        pack([Run(encoding=ours.Identity()), Run(encoding=Identity())])
    runs = unpack(pack([Run(encoding=ours.Identity())]))
    assert type(runs[0].encoding) is ours.Identity


def test_a_class_in_no_file_is_refused(mine):
    known = {"__name__": "console"}
    exec(PART.replace("import helper\nfrom tools.deep import times\n", ""), known)

    @dataclasses.dataclass(frozen=True)
    class Local(Identity):
        pass

    for part, name in ((known["Doubled"](), "Doubled"), (Local(), "Local")):
        with pytest.raises(InputError, match=f"put the class {name} at the top level of a file"):
            pack([Run(encoding=part)])


def test_an_import_error_on_the_worker_is_one_line(mine):
    content = json.loads(pack(runs_of(mine())))
    content["files"]["mine.py"] = "import a_package_that_is_nowhere\n" + PART
    before = list(sys.path)
    with pytest.raises(
        InputError,
        match=r"mine cannot be imported on the worker: ModuleNotFoundError: .*\(line 1\)",
    ):
        unpack(json.dumps(content))
    assert sys.path == before


FLAGGED = PART.replace("factor: float = 2.0", "factor: float = 2.0\n    flag: bool | None = True")


def test_values_keep_their_types(mine):
    module = mine(
        FILES | {"mine.py": FLAGGED.replace("sizes: tuple[int, ...] = (1, 2)", "sizes: object = 0")}
    )
    for sizes in (1.0, 1, True, (1, 2.0, (False,)), "1", None, np.float64(2), np.int8(3)):
        for flag in (True, None, False):
            (run,) = unpack(pack([Run(encoding=module.Doubled(3, flag, sizes))]))
            plain = sizes.item() if isinstance(sizes, np.generic) else sizes
            assert repr(run.encoding) == repr(module.Doubled(3, flag, plain))


def test_a_file_that_changes_while_the_sweep_starts_is_an_error(mine, tmp_path):
    module = mine()
    run = Run(encoding=module.Doubled())
    name = identity(run)
    Path(module.__file__).write_text(PART.replace("times(self.factor, task)", "300"))
    text = pack([run])
    assert json.loads(text)["names"] == [name]
    result = unpack_elsewhere(text, folder=tmp_path / "empty")
    assert "the class Doubled of mine differs on the worker: one of the files mine.py, " in result
    assert "was changed while the sweep started. Start it again" in result


def test_a_part_whose_hash_differs_on_the_worker_is_an_error(mine):
    grown = PART.replace(
        "    def num_tokens",
        "    def __post_init__(self):\n        self.__dict__['factor'] += 1\n{}",
        1,
    )
    module = mine(FILES | {"mine.py": grown.format("    def num_tokens")})
    with pytest.raises(
        InputError,
        match="differs on the worker: __post_init__ of Doubled must not change values",
    ):
        unpack(pack([Run(encoding=module.Doubled())]))


TOGETHER = """
from dataclasses import dataclass
import recombine as rc
from mine import Doubled

@dataclass(frozen=True)
class Own(rc.MLP):
    def knows(self, encoding):
        return isinstance(encoding, Doubled)
"""


def test_parts_that_are_sent_together_share_their_modules(mine, tmp_path):
    files = FILES | {"other.py": TOGETHER}
    other = mine(files, "other")
    text = pack([Run(encoding=sys.modules["mine"].Halved(), model=other.Own(widths=(8,)))])
    assert json.loads(text)["files"] == files
    mine(FILES | {"mine.py": "", "other.py": ""})  # without the classes, so that they are received
    (run,) = unpack(text)
    assert not isinstance(run.model, other.Own)
    assert run.model.knows(run.encoding)


def test_two_files_of_one_name_are_refused(mine):
    first = mine()
    runs = [Run(encoding=first.Doubled())]
    pack(runs)
    other = mine(FILES | {"other.py": TOGETHER, "helper.py": "ZERO = 5\n"}, "other")
    with pytest.raises(
        InputError, match=r"two different files are called helper\.py: rename one of them"
    ):
        pack([*runs, Run(model=other.Own(widths=(8,)))])


def test_a_method_imports_the_file_that_was_sent_with_it(mine, tmp_path):
    texts = [
        pack(runs_of(mine(FILES | {"late.py": f"def shift():\n    return {n}\n"}))) for n in (1, 2)
    ]
    result = unpack_elsewhere(*texts, *texts, folder=tmp_path / "empty")
    assert result["codes"] == [[10.0, 2.5, 2.5], [11.0, 3.5, 3.5]] * 2
    assert result["classes"][:2] == result["classes"][2:]


def test_a_file_that_only_a_figure_needs_may_fail_to_import(mine, tmp_path):
    figures = "\ndef figures(rows):\n    import other\n"
    files = FILES | {"mine.py": PART + figures, "other.py": "import a_package_that_is_nowhere\n"}
    assert unpack_elsewhere(pack(runs_of(mine(files))), folder=tmp_path / "empty")["codes"] == [
        [9.0, 1.5, 1.5]
    ]


@pytest.mark.parametrize(
    "name", ["../outside.py", "/tmp/recombine-outside.py", "a/../../outside.py", "data.txt"]
)
def test_a_file_outside_the_folder_of_the_worker_is_refused(name):
    content = json.loads(remote.pack([rc.Run()]))
    content["files"] = {name: "raise SystemExit"}
    with pytest.raises(InputError, match="no Python file inside its folder: the runs are refused"):
        remote.unpack(json.dumps(content))
