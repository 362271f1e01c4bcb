"""Train a sweep as Slurm jobs, cancel one of them, and compare with the same sweep trained here.

The rows must be equal bit for bit. `benchmarks/slurm.sh` starts Slurm and runs this script.
"""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd

import recombine as rc
from recombine.training.executors import open_executor

RUN = rc.Run(model=rc.MLP(widths=(32, 32)), diagnostics=(), num_steps=2000)
NUM_CHUNKS = 6
CHUNK_WIDTH = 2  # runs
OPTIONS = "partition=bench,cpus_per_task=1,timeout_min=10"


def queue() -> list[str]:
    """The jobs of this user, a line for each."""
    command = ["squeue", "--me", "--noheader", "--format=%i %T %P %M"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def cancel_one() -> None:
    """Wait until a job runs, print the queue, and cancel that job without telling the driver."""
    while not (running := [line for line in queue() if "RUNNING" in line]):
        time.sleep(0.2)
    print("squeue:", *queue(), sep="\n  ")
    job = running[0].split()[0]
    print(f"scancel {job}", flush=True)
    subprocess.run(["scancel", job], check=True)


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without the columns about time and machine."""
    return rows[sorted(name for name in rows.columns if not name.startswith("meta/"))]


def main(out: Path) -> None:
    runs = rc.sweep(RUN, seed=range(CHUNK_WIDTH * NUM_CHUNKS))
    start = time.perf_counter()
    with open_executor("slurm", OPTIONS, out) as executor:
        threading.Thread(target=cancel_one, daemon=True).start()
        rows = rc.train(runs, out, executor=executor, max_width=CHUNK_WIDTH)
    seconds = time.perf_counter() - start
    print(f"{rows['run'].nunique()} runs, {len(rows)} rows from Slurm in {seconds:.1f} s")
    expected = rc.train(runs, max_width=CHUNK_WIDTH)
    pd.testing.assert_frame_equal(numbers(rows), numbers(expected), check_exact=True)
    print("equal, bit for bit, to the rows trained here")
    print("squeue after:", queue())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
