"""Several devices in one machine share the runs of a program. XLA plays four devices on the host for this, in a process
of its own, because it must be told before it starts."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import recombine as rc
from tests.tiny import TINY

CHILD = """
import json, re, sys
from pathlib import Path
import jax
import recombine as rc
from recombine import device, trainer
from tests.tiny import TINY

assert device.num_devices() == 4
runs = rc.sweep(TINY, recipe__learning_rate=[0.01, 0.02, 0.03], seed=range(2))
ready = trainer.prepare(runs, 6)
carry = ready.program.start(ready.shared, ready.lanes[0])[1]
told = {
    "lanes": len(ready.lanes),
    "places": [len(leaf.addressable_shards) for leaf in jax.tree.leaves(carry)],
    "shares": sorted({leaf.addressable_shards[0].data.shape[0] for leaf in jax.tree.leaves(carry)}),
    "talks": sorted(set(re.findall(r"all-[a-z]+|collective[a-z-]*|reduce-scatter", "".join(
        program.as_text() for program in ready.program)))),
}

class Killed(BaseException):
    pass

def watch(progress):
    if progress.phase == "training" and progress.step < 20:
        raise Killed

try:
    trainer.train_chunk(runs, 6, watch, None, Path(sys.argv[1]))
except Killed:
    told["checkpoints"] = len(list(Path(sys.argv[1]).iterdir()))
steps = []
found = trainer.train_chunk(runs, 6, lambda p: steps.append((p.phase, p.step)), None, Path(sys.argv[1]))
told["steps"] = steps
told["losses"] = [[float(row["test/loss"]) for row in rows] for rows in found.rows]
told["weights"] = [leaf.shape[0] for leaf in jax.tree.leaves(found.net)]
table = rc.train(runs)
told["table"] = table["test/loss"].tolist()
told["width"] = int(table["meta/width"].iloc[0])
sys.stdout.write(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "RECOMBINE_CHECKPOINT": "0"}
    command = [sys.executable, "-c", CHILD, str(tmp_path_factory.mktemp("checkpoints"))]
    done = subprocess.run(
        command, env=os.environ | flags, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_device_has_its_share_and_none_talks_to_another(told):
    assert told["lanes"] == 1
    assert set(told["places"]) == {4}
    assert told["shares"] == [2], "six runs and two empty places on four devices"
    assert told["talks"] == []


def test_rows_are_those_of_each_run_alone(told):
    runs = rc.sweep(TINY, recipe__learning_rate=[0.01, 0.02, 0.03], seed=range(2))
    alone = rc.train(runs)["test/loss"].to_numpy()
    np.testing.assert_allclose(np.ravel(told["losses"]), alone, rtol=1e-4)
    np.testing.assert_allclose(told["table"], alone, rtol=1e-4)
    assert set(told["weights"]) == {6}, "the empty places are gone"
    assert told["width"] == 6


def test_checkpoints_are_spread_out_again(told):
    assert told["checkpoints"] == 1
    assert told["steps"][-1] == ["training", 20]
    assert ["training", 10] not in told["steps"], "the first half was not trained again"
