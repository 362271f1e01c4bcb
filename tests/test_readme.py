"""The README: its examples run (with fewer steps), its commands exist, its links work."""

import dataclasses
import re
from pathlib import Path

import pytest

import recombine as rc
from recombine.cli.main import app
from recombine.training import scheduler

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def shorter(run: rc.Run) -> rc.Run:
    probe = rc.LinearDecodability(num_fit=32, num_seen=32, num_test=32)
    return dataclasses.replace(
        run, num_steps=4, num_tasks=8, num_eval_tasks=16, diagnostics=(probe,)
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example(example, monkeypatch, tmp_path, capsys):
    if "torch" in example or "Diffusion" in example:
        torch = pytest.importorskip("torch", reason="this example needs the extra torch")
        pytest.importorskip("diffusers", reason="this example needs the extra torch")
        torch.set_num_threads(1)  # a tiny network is slower with several threads
    monkeypatch.chdir(tmp_path)
    train, fit, names = scheduler.train, scheduler.fit, {}
    monkeypatch.setattr(
        scheduler, "train", lambda runs, out=None: train(list(map(shorter, runs)), out)
    )
    monkeypatch.setattr(
        scheduler, "fit", lambda run: dataclasses.replace(fit(shorter(run)), run=run)
    )
    exec(compile(example, "README.md", "exec"), names)
    if "rc." in example:
        assert names["rows"]["test/loss"].notna().all()
    assert capsys.readouterr().out, "an example prints something"


def test_the_first_example_is_a_sweep():
    assert len(EXAMPLES) >= 2
    assert "encoding=[rc.Identity(), rc.FewShot()], seed=range(3)" in EXAMPLES[0]


def test_commands_exist():
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert set(re.findall(r"^recombine (\w+)", README, re.MULTILINE)) == known - {"quickstart"}
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", README, re.MULTILINE)) <= targets


def test_the_experiment_in_a_file_has_runs():
    (example,) = re.findall(r"```py\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(compile(example, "README.md", "exec"), names)
    assert {len(names["runs"](scale)) for scale in ("tiny", "small", "full")} == {4}


def anchors(page: Path) -> set[str]:
    """The names with which links refer to the headings of a page."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_links_exist():
    for link in re.findall(r"\]\(([^)]+)\)", README):
        file, _, anchor = link.partition("#")
        page = ROOT / (file or "README.md")
        assert page.exists(), link
        assert not anchor or anchor in anchors(page), link
