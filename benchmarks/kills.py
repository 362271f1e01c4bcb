"""Kill a sweep many times with SIGKILL and resume it: no row may be lost, repeated or changed.

    python benchmarks/kills.py --kills 50 --out results/kills.json

Half of the kills are at a random time. The others are while a file is written: rows, a checkpoint
or metadata. Chunks are short and parts are compacted often, so that kills hit every operation of a
sweep. The reference is the same sweep without kills. Rows are compared bit for bit, except for the
columns about time and machine (meta/*).
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from recombine.basics.atomic_io import lock_owner
from recombine.storage import status
from recombine.storage.table import Table

SWEEP = """
import recombine as rc
from recombine.training import row_writer

row_writer.MAX_PARTS = 3

BASE = rc.Run(
    family=rc.Hyperteacher(num_modules=6, num_hot=2, d_input=4, d_hidden=4, num_outputs=3),
    diagnostics=(rc.LinearDecodability(num_fit=32, num_seen=32, num_test=32),),
    num_steps={num_steps}, num_evals=2, num_tasks=16, num_eval_tasks=32,
)

def runs(scale):
    widths = [(16, 16), (24, 24), (32, 32)]
    return rc.sweep(BASE, model__widths=widths, frac_test=[0.3, 0.5], seed=range({num_seeds}))
"""
COUNTS = (
    "kills",
    "random",  # kills at a random time
    "writing",  # kills while a file was written: one of the next three
    "rows",
    "checkpoints",
    "notes",  # metadata
    "with_rows",  # kills after which some runs were finished
    "resumed",  # kills that left a checkpoint
    "sweeps",
)
MAX_WIDTH = 4  # runs in a chunk
FOLDERS = ("rows", "checkpoints", "")  # where files are written; "" has the metadata
MAX_WAIT = 2  # seconds for a file in one of these folders, before any file counts
POLL_SECONDS = 0.0005


def survive(
    folder: Path, kills: int, sweep: str, delay: float = 2, log: Callable[[str], None] = print
) -> dict[str, int]:
    """Kill a sweep so many times, let it finish, and compare it with one without kills.

    A sweep that finishes before all kills are done is started again in a new folder. Returns
    counts.
    """
    rng = random.Random(0)
    experiment = folder / "sweep.py"
    experiment.write_text(sweep)
    reference = folder / "whole"
    assert _start(experiment, reference).wait() == 0, "the sweep itself fails"
    counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
    while not counts["sweeps"] or counts["kills"] < kills:
        counts["sweeps"] += 1
        out = folder / f"killed-{counts['sweeps']}"
        _kill_until_finished(experiment, out, kills, delay, rng, counts, log)
        counts.update(_compare(reference, out))
    return dict(counts)


def _kill_until_finished(
    experiment: Path,
    out: Path,
    kills: int,
    delay: float,
    rng: random.Random,
    counts: Counter[str],
    log: Callable[[str], None],
) -> None:
    """Start the sweep again and again until it finishes. Updates the counts."""
    while True:
        kind = "never"
        if counts["kills"] < kills:
            kind = "random" if counts["random"] <= counts["writing"] else "writing"
        process = _start(experiment, out)
        hit = _kill(process, kind, out, rng.uniform(0, delay), rng.choice(FOLDERS))
        if hit is None:
            return
        counts["kills"] += 1
        counts[hit] += 1
        if hit != "random":
            counts["writing"] += 1
        num_finished = len(Table(out).finished())
        counts["with_rows"] += num_finished > 0
        counts["resumed"] += any(out.glob("checkpoints/*.eqx"))
        log(
            f"{counts['kills']} kills, the last one at {hit}; "
            f"{num_finished} runs finished in sweep {counts['sweeps']}"
        )


def _start(experiment: Path, out: Path) -> subprocess.Popen:
    if not out.exists():
        # A sweep that was begun with this width is finished with it.
        Table(out).note(max_width=MAX_WIDTH)
    arguments = ["run", str(experiment), "--out", str(out), "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "recombine", *arguments],
        env={"RECOMBINE_CHECKPOINT": "0.2"} | os.environ,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _kill(
    process: subprocess.Popen, kind: str, out: Path, seconds: float, folder: str
) -> str | None:
    """Kill a process some seconds after it began to train.

    The kind is "random", "writing" (wait until a file in this folder is being written) or "never".
    Returns what the process was writing or "random", or None if it had finished.
    """
    start = None
    while process.poll() is None:
        if start is None and _is_training(process, out):
            start = time.perf_counter()
        waited = -1.0
        if start is not None and kind != "never":
            waited = time.perf_counter() - start - seconds
        if waited > 0:
            unfinished = _unfinished_file(out, [folder] if waited < MAX_WAIT else FOLDERS)
            if kind == "random" or unfinished:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                was_killed = process.wait() == -signal.SIGKILL
                return (unfinished or "random") if was_killed else None
        time.sleep(POLL_SECONDS)
    assert process.returncode == 0, f"the sweep ended with {process.returncode}"
    return None


def _is_training(process: subprocess.Popen, out: Path) -> bool:
    if (lock_owner(out) or {}).get("pid") != process.pid:
        return False
    document = status.read(out) or {"now": []}
    is_past_compilation = any(chunk["phase"] != "compiling" for chunk in document["now"])
    return is_past_compilation and (out / status.NAME).stat().st_mtime > 0


def _unfinished_file(out: Path, folders: Sequence[str]) -> str:
    """The kind of file that is being written in one of these folders; empty if there is none."""
    for folder in folders:
        if any((out / folder).glob(".*.tmp")):
            return folder or "notes"
    return ""


def _compare(reference: Path, killed: Path) -> dict[str, int]:
    """Count the rows of a killed sweep that are lost, strange (not in the reference) or repeated.

    Also whether any row changed, and the files that were left behind.
    """
    expected = Table(reference).read()
    rows = Table(killed).read()
    expected_keys = set(zip(expected["run"], expected["step"], strict=True))
    keys = set(zip(rows["run"], rows["step"], strict=True))
    columns = [name for name in expected if not name.startswith("meta/")]
    is_same = keys == expected_keys and expected[columns].equals(rows[columns])
    parts = sorted((killed / "rows").glob("part-*.parquet"))
    raw_rows = pd.concat([pd.read_parquet(part) for part in parts])
    left_behind = [
        path
        for path in killed.rglob("*")
        if path.name.endswith(".tmp") or path.name == "checkpoints"
    ]
    return {
        "rows_expected": len(expected),
        "rows_lost": len(expected_keys - keys),
        "rows_strange": len(keys - expected_keys),
        "rows_repeated": int(raw_rows.duplicated(["run", "step"]).sum()),
        "sweeps_changed": int(not is_same),
        "files_left": len(left_behind),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument(
        "--delay", type=float, default=2, help="longest time from the start of training to a kill"
    )
    parser.add_argument("--sweep", type=Path, help="your own experiment file")
    parser.add_argument("--out", type=Path, help="file for the counts")
    options = parser.parse_args()
    if options.sweep:
        sweep = options.sweep.read_text()
    else:
        sweep = SWEEP.format(num_steps=options.steps, num_seeds=options.seeds)
    with tempfile.TemporaryDirectory() as folder:
        counts = survive(Path(folder), options.kills, sweep, options.delay)
    print(json.dumps(counts))
    if options.out is not None:
        options.out.write_text(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
