"""A day in one sweep: kill workers and the driver, fill the disk once, and compare every row.

    python -m benchmarks.day --runs 3000 --worker-seconds 20 --driver-kills 3 --out day.json

The sweep trains on `processes:2`. A worker process is killed with SIGKILL every 20 seconds, if
runs have finished since the last kill: a chunk whose process dies three times fails by design. The
driver is killed three times, and the same command continues the sweep. The disk is full once for
some seconds: the results are on a small file system in memory, if this process may mount one. The
reference is the same sweep without failures. Rows are compared bit for bit, except for the columns
about time and machine (meta/*).
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
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import kills
from recombine.storage import status
from recombine.storage.table import Table

SWEEP = """
import recombine as rc
from recombine.training import row_writer

row_writer.MAX_PARTS = 8

BASE = rc.Run(
    family=rc.Hyperteacher(num_modules=6, num_hot=2, d_input=4, d_hidden=4, num_outputs=3),
    model=rc.MLP(widths=(8, 8)), diagnostics=(), num_steps={num_steps}, num_evals=2,
    num_tasks=8, num_points=4, num_eval_tasks=16, num_eval_points=4,
)

def runs(scale):
    return rc.sweep(BASE, frac_test=[0.3, 0.5], seed=range({num_seeds}))
"""
COUNTS = ("worker_kills", "driver_kills", "full_disks")
DISK_MEGABYTES = 64
FULL_SECONDS = 5.0  # how long the disk stays full
POLL_SECONDS = 0.05
Log = Callable[[str], None]


class Day:
    """One sweep with its failures. `counts` has the number of each kind."""

    def __init__(self, experiment: Path, out: Path, num_runs: int, log: Log):
        self.experiment = experiment
        self.out = out
        self.num_runs = num_runs
        self.log = log
        self.rng = random.Random(0)
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.num_finished = 0
        self.num_at_last_kill = 0

    def survive(
        self,
        worker_seconds: float,
        driver_kills: int,
        has_small_disk: bool,
        full_seconds: float = FULL_SECONDS,
    ) -> None:
        """Run the command until it ends by itself, after all failures."""
        next_kill = time.monotonic() + worker_seconds
        full_until = float("inf")
        process = _start(self.experiment, self.out)
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                now = time.monotonic()
                fraction = self._fraction_finished()
                # Only after progress: a chunk whose process dies three times fails, by design.
                has_progress = self.num_finished > self.num_at_last_kill
                if now > next_kill and has_progress and self._kill_worker(process.pid):
                    next_kill = now + worker_seconds
                if has_small_disk and fraction > 0.5 and not self.counts["full_disks"]:
                    self._count("full_disks")
                    _fill(self.out.parent)
                    full_until = now + full_seconds
                if now > full_until:
                    _ballast(self.out.parent).unlink()
                    full_until = float("inf")
                is_full = full_until < float("inf")  # a driver refuses to start on a full disk
                if not is_full and fraction > (self.counts["driver_kills"] + 1) / (
                    driver_kills + 1
                ):
                    process.kill()
                    if process.wait() == -signal.SIGKILL:
                        self._count("driver_kills")
                    process = _start(self.experiment, self.out)
        finally:
            process.kill()
            process.wait()
        reasons = (status.read(self.out) or {}).get("failures")
        assert process.returncode == 0, f"the sweep ended with {process.returncode}: {reasons}"

    def _fraction_finished(self) -> float:
        document = status.read(self.out) or {}
        self.num_finished = max(self.num_finished, document.get("finished", 0))
        return self.num_finished / self.num_runs

    def _kill_worker(self, driver: int) -> bool:
        """Kill a worker process. False if there is none at this moment."""
        workers = _workers(driver)
        if not workers:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.rng.choice(workers), signal.SIGKILL)
            self.num_at_last_kill = self.num_finished
            self._count("worker_kills")
        return True

    def _count(self, name: str) -> None:
        self.counts[name] += 1
        self.log(f"{name}: {self.counts[name]}; {self.num_finished} of {self.num_runs} finished")


def compare_with_quiet(
    folder: Path,
    num_runs: int,
    num_steps: int,
    worker_seconds: float,
    driver_kills: int,
    full_seconds: float = FULL_SECONDS,
    log: Log = print,
) -> dict[str, int]:
    """Train the sweep once in peace and once with failures. Returns counts and differences."""
    experiment = folder / "sweep.py"
    experiment.write_text(SWEEP.format(num_steps=num_steps, num_seeds=num_runs // 2))
    quiet = folder / "quiet"
    assert _start(experiment, quiet).wait() == 0, "the sweep itself fails"
    log("the quiet sweep is finished")
    with _small_disk(folder / "disk") as has_small_disk:
        day = Day(experiment, folder / "disk" / "out", num_runs, log)
        day.survive(worker_seconds, driver_kills, has_small_disk, full_seconds)
        return dict(day.counts) | kills._compare(quiet, day.out)


def _start(experiment: Path, out: Path) -> subprocess.Popen:
    if not out.exists():
        Table(out).note(max_width=kills.MAX_WIDTH)
    command = ["run", str(experiment), "--out", str(out), "--executor", "processes:2", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "recombine", *command],
        env={"RECOMBINE_CHECKPOINT": "0.5"} | os.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _workers(driver: int) -> list[int]:
    """The worker processes of a driver."""
    workers = []
    with contextlib.suppress(OSError):
        for children in Path(f"/proc/{driver}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                # multiprocessing also starts a resource tracker, which is no worker.
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    workers.append(child)
    return workers


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system in memory. False where that is not possible."""
    folder.mkdir()
    options = f"size={DISK_MEGABYTES}m"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _ballast(disk: Path) -> Path:
    return disk / "ballast"


def _fill(disk: Path) -> None:
    with contextlib.suppress(OSError), _ballast(disk).open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3000, help="an even number")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--worker-seconds", type=float, default=20, help="time between two kills of a worker"
    )
    parser.add_argument("--driver-kills", type=int, default=3)
    parser.add_argument("--out", type=Path, help="file for the counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = compare_with_quiet(
            Path(folder),
            options.runs,
            options.steps,
            options.worker_seconds,
            options.driver_kills,
        )
    print(json.dumps(counts))
    if options.out is not None:
        options.out.write_text(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
