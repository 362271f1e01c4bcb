import atexit
import os
import shutil
import sys
import tempfile
import typing
from pathlib import Path

import pytest
from beartype import beartype
from jaxtyping import install_import_hook

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")

if not WORKER:
    # All workers, and the processes that tests start, share one cache of compiled programs. It is
    # removed at the end, unless RECOMBINE_TEST_CACHE names a folder to keep (faster reruns).
    kept = os.environ.get("RECOMBINE_TEST_CACHE")
    os.environ["RECOMBINE_CACHE"] = kept or tempfile.mkdtemp(prefix="recombine-tests-")
    if not kept:
        atexit.register(shutil.rmtree, os.environ["RECOMBINE_CACHE"], ignore_errors=True)
elif hasattr(os, "sched_setaffinity"):
    # Workers divide the cores, like the worker processes of a sweep: thread pools do not compete.
    cores = sorted(os.sched_getaffinity(0))
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    if 1 < workers <= len(cores):
        os.sched_setaffinity(0, cores[int(WORKER.removeprefix("gw")) :: workers])


def typecheck(function):
    # Not a part's __init__: invalid fields must raise the part's own InputError, in tests too.
    return function if function.__name__ == "__init__" else beartype(function)


# Must run before any test imports a part: shapes and types in these folders are checked at every
# call.
CHECKED_FOLDERS = ("families", "encodings", "models", "diagnostics")
install_import_hook(
    [f"recombine.parts.{folder}" for folder in CHECKED_FOLDERS], f"{__name__}.typecheck"
)

from recombine.__main__ import main  # noqa: E402
from recombine.parts import protocols  # noqa: E402

# The checker calls isinstance(value, Family), which works only for runtime-checkable protocols.
for protocol in (
    protocols.Family,
    protocols.Support,
    protocols.Encoding,
    protocols.Model,
    protocols.Lab,
    protocols.Diagnostic,
    protocols.Recipe,
):
    typing.runtime_checkable(protocol)


SLOW = {
    line
    for line in (Path(__file__).parent / "slow.txt").read_text().splitlines()
    if not line.startswith("#")
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `slow.txt` lists."""
    for item in items:
        if item.nodeid in SLOW or item.nodeid.partition("[")[0] in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """Call the command line in a temporary folder: arguments -> exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["recombine", *args])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def chromium():
    """A Chromium browser; tests that need it are skipped if there is none."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="the browser tests need playwright"
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        pytest.skip(f"the browser tests need one of these programs: {', '.join(names)}")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()
