"""The README's examples run as they stand, only with fewer steps; its commands exist and its links lead somewhere."""

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
        torch.set_num_threads(
            1
        )  # threads of a tiny network wait for each other longer than they work
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
    assert capsys.readouterr().out, "an example shows something"


def test_the_api_example_is_the_promised_one():
    assert len(EXAMPLES) >= 2
    assert "encoding=[rc.Identity(), rc.FewShot()], seed=range(3)" in EXAMPLES[0]


def test_commands_exist():
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert set(re.findall(r"^recombine (\w+)", README, re.MULTILINE)) == known - {"quickstart"}
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", README, re.MULTILINE)) <= targets


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).exists(), link
