"""Kills one sweep again and again, with SIGKILL, and lets it go on: nothing may be lost, repeated or changed.

    python benchmarks/kills.py --kills 50 --out results/kills.json

Half of the kills come at a random moment, the others while a file is being written: rows, a checkpoint or the notes.
Chunks are short and parts are compacted often, so that kills fall into everything that a sweep does. The reference is
the same sweep, left alone; rows are compared bit for bit, apart from the columns about time and machine (meta/*).
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
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.basics.atomic_io import holder
from recombine.storage import status
from recombine.storage.table import Table

SWEEP = """
import recombine as rc
from recombine import writer

writer.MAX_PARTS = 3

BASE = rc.Run(
    family=rc.Hyperteacher(num_modules=6, num_hot=2, d_input=4, d_hidden=4, num_outputs=3),
    diagnostics=(rc.LinearDecodability(num_fit=32, num_seen=32, num_test=32),),
    num_steps={num_steps}, num_evals=2, num_tasks=16, num_eval_tasks=32,
)

def runs(scale):
    return rc.sweep(BASE, model__widths=[(16, 16), (24, 24), (32, 32)], frac_test=[0.3, 0.5], seed=range({num_seeds}))
"""


def survive(
    folder: Path, kills: int, sweep: str, delay: float = 2, tell: Any = print
) -> dict[str, Any]:
    """Kill a sweep so many times, let it finish, compare it with one that was left alone; the counts.

    A sweep that is over before all kills are done is begun once more, in a new folder.
    """
    rng, experiment, whole = random.Random(0), folder / "sweep.py", folder / "whole"
    experiment.write_text(sweep)
    assert _start(experiment, whole).wait() == 0, "the sweep itself fails"
    counts: Counter[str] = Counter(kills=0, random=0, writing=0, rows=0, checkpoints=0, notes=0)
    counts |= Counter(with_rows=0, resumed=0, sweeps=0)
    while not counts["sweeps"] or counts["kills"] < kills:
        counts["sweeps"] += 1
        out = folder / f"killed-{counts['sweeps']}"
        while True:
            kind = (
                min(("random", "writing"), key=lambda kind: counts[kind])
                if counts["kills"] < kills
                else "never"
            )
            process = _start(experiment, out)
            hit = _kill(
                process, kind, out, rng.uniform(0, delay), rng.choice(["rows", "checkpoints", ""])
            )
            if hit is None:
                break
            finished = len(Table(out).finished())
            counts.update(["kills", hit, *(["writing"] if hit != "random" else [])])
            counts["with_rows"] += finished > 0
            counts["resumed"] += any(out.glob("checkpoints/*.eqx"))
            tell(
                f"{counts['kills']} kills, the last at {hit}, {finished} runs finished in sweep {counts['sweeps']}"
            )
        counts.update(_compared(whole, out))
    return dict(counts)


def _start(experiment: Path, out: Path) -> subprocess.Popen:
    environment = {"RECOMBINE_CHECKPOINT": "0.2"} | os.environ
    if not out.exists():
        Table(out).note(
            max_width=4
        )  # runs in a chunk: what was begun with a width is finished with it
    command = [
        sys.executable,
        "-m",
        "recombine",
        "run",
        str(experiment),
        "--out",
        str(out),
        "--json",
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=environment, start_new_session=True, **quiet)


def _kill(
    process: subprocess.Popen, kind: str, out: Path, seconds: float, target: str
) -> str | None:
    """Kill a process some seconds after it began to train, or then in the middle of its next writing (of one kind of
    file, if one comes within two seconds); what it was doing, or None if it had finished."""
    begun = None
    while process.poll() is None:
        if begun is None and _trains(process, out):
            begun = time.perf_counter()
        waited = 0 if begun is None or kind == "never" else time.perf_counter() - begun - seconds
        unfinished = (
            _unfinished(out, *([target] if waited < 2 else ["rows", "checkpoints", ""]))
            if waited > 0
            else ""
        )
        if waited > 0 and (kind == "random" or unfinished):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return (unfinished or "random") if process.wait() == -signal.SIGKILL else None
        time.sleep(0.0005)
    assert process.returncode == 0, f"the sweep ended with {process.returncode}"
    return None


def _trains(process: subprocess.Popen, out: Path) -> bool:
    if (holder(out) or {}).get("pid") != process.pid:
        return False
    told = status.read(out) or {"now": []}
    return (
        any(chunk["phase"] != "compiling" for chunk in told["now"])
        and (out / status.NAME).stat().st_mtime > 0
    )


def _unfinished(out: Path, *targets: str) -> str:
    """Which kind of file is being written, of these kinds."""
    found = (target for target in targets if any((out / target).glob(".*.tmp")))
    return next(("notes" if target == "" else target for target in found), "")


def _compared(whole: Path, killed: Path) -> dict[str, int]:
    """Compare two tables: rows lost, strange, repeated and changed."""
    expected, found = (Table(path).read() for path in (whole, killed))
    numbers = [name for name in expected if not name.startswith("meta/")]
    keys = [set(zip(rows["run"], rows["step"], strict=True)) for rows in (expected, found)]
    raw = pd.concat(
        [pd.read_parquet(part) for part in sorted((killed / "rows").glob("part-*.parquet"))]
    )
    same = len(keys[0] ^ keys[1]) == 0 and expected[numbers].equals(found[numbers])
    left = [
        path.name
        for path in killed.rglob("*")
        if path.name.endswith(".tmp") or path.name == "checkpoints"
    ]
    return {
        "rows_expected": len(expected),
        "rows_lost": len(keys[0] - keys[1]),
        "rows_strange": len(keys[1] - keys[0]),
        "rows_repeated": int(raw.duplicated(["run", "step"]).sum()),
        "sweeps_changed": int(not same),
        "files_left": len(left),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument(
        "--delay",
        type=float,
        default=2,
        help="the longest time from the start of training to a kill",
    )
    parser.add_argument("--sweep", type=Path, help="an experiment file of your own")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sweep = (
            given.sweep.read_text()
            if given.sweep
            else SWEEP.format(num_steps=given.steps, num_seeds=given.seeds)
        )
        counts = survive(Path(folder), given.kills, sweep, given.delay)
    print(json.dumps(counts))
    if given.out is not None:
        given.out.write_text(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
