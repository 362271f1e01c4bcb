"""A sweep as Slurm jobs, one of them cancelled on the way, against the same sweep trained here: equal bit for bit."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd

import recombine as rc
from recombine.training.executors import opened

RUN = rc.Run(model=rc.MLP(widths=(32, 32)), diagnostics=(), num_steps=2000)
CHUNKS = 6


def queue() -> list[str]:
    command = ["squeue", "--me", "--noheader", "--format=%i %T %P %M"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def cancel_one() -> None:
    """Wait until a job runs, show the queue, and cancel that job behind the driver's back."""
    while not (running := [line for line in queue() if "RUNNING" in line]):
        time.sleep(0.2)
    print("squeue:", *queue(), sep="\n  ")
    job = running[0].split()[0]
    print(f"scancel {job}", flush=True)
    subprocess.run(["scancel", job], check=True)


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[sorted(name for name in rows.columns if not name.startswith("meta/"))]


def main(out: Path) -> None:
    runs = rc.sweep(RUN, seed=range(2 * CHUNKS))
    clock = time.perf_counter()
    with opened("slurm", "partition=bench,cpus_per_task=1,timeout_min=10", out) as executor:
        threading.Thread(target=cancel_one, daemon=True).start()
        rows = rc.train(runs, out, executor=executor, max_width=2)
    print(
        f"{rows['run'].nunique()} runs, {len(rows)} rows from Slurm in {time.perf_counter() - clock:.1f} s"
    )
    here = rc.train(runs, max_width=2)
    pd.testing.assert_frame_equal(numbers(rows), numbers(here), check_exact=True)
    print("equal, bit for bit, to the rows trained here")
    print("squeue after:", queue())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
