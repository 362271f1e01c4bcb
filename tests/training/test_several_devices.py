"""Several devices in one machine share the runs of a program.

XLA simulates four devices on the host. This needs a new process, because XLA reads the setting when
it starts.
"""

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
from recombine.training import device, trainer
from tests.tiny import TINY

assert device.num_devices() == 4
folder = Path(sys.argv[1])
runs = rc.sweep(TINY, recipe__learning_rate=[0.01, 0.02, 0.03], seed=range(2))
ready = trainer.prepare(runs, 6)
carry = ready.program.start(ready.shared, ready.lanes[0])[1]
leaves = jax.tree.leaves(carry)
code = "".join(function.as_text() for function in ready.program)
measured = {
    "lanes": len(ready.lanes),
    "num_shards": [len(leaf.addressable_shards) for leaf in leaves],
    "runs_per_shard": sorted({leaf.addressable_shards[0].data.shape[0] for leaf in leaves}),
    "communication": sorted(set(re.findall(r"all-[a-z]+|collective[a-z-]*|reduce-scatter", code))),
}

class Killed(BaseException):
    pass

def kill_before_end(progress):
    if progress.phase == "training" and progress.step < 20:
        raise Killed

try:
    trainer.train_chunk(runs, 6, kill_before_end, None, folder)
except Killed:
    measured["checkpoints"] = len(list(folder.iterdir()))
steps = []
trained = trainer.train_chunk(runs, 6, lambda p: steps.append((p.phase, p.step)), None, folder)
measured["steps"] = steps
measured["losses"] = [[float(row["test/loss"]) for row in rows] for rows in trained.rows]
measured["runs_per_weight"] = [leaf.shape[0] for leaf in jax.tree.leaves(trained.net)]
table = rc.train(runs)
measured["table"] = table["test/loss"].tolist()
measured["width"] = int(table["meta/width"].iloc[0])
sys.stdout.write(json.dumps(measured))
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "RECOMBINE_CHECKPOINT": "0"}
    command = [sys.executable, "-c", CHILD, str(tmp_path_factory.mktemp("checkpoints"))]
    done = subprocess.run(
        command, env=os.environ | flags, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_device_has_its_share_without_communication(measured):
    assert measured["lanes"] == 1
    assert set(measured["num_shards"]) == {4}
    assert measured["runs_per_shard"] == [2], "six runs and two of padding on four devices"
    assert measured["communication"] == []


def test_rows_equal_those_of_each_run_alone(measured):
    runs = rc.sweep(TINY, recipe__learning_rate=[0.01, 0.02, 0.03], seed=range(2))
    alone = rc.train(runs)["test/loss"].to_numpy()
    np.testing.assert_allclose(np.ravel(measured["losses"]), alone, rtol=1e-4)
    np.testing.assert_allclose(measured["table"], alone, rtol=1e-4)
    assert set(measured["runs_per_weight"]) == {6}, "the padding is removed"
    assert measured["width"] == 6


def test_a_resumed_checkpoint_is_divided_among_the_devices(measured):
    assert measured["checkpoints"] == 1
    assert measured["steps"][-1] == ["training", 20]
    assert ["training", 10] not in measured["steps"], "the first half was not trained again"
