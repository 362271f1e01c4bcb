"""Compare the estimates of `recombine cost` with whole sweeps, compilation included.

    python benchmarks/cost.py --out docs/results/cost.parquet

Rows of other devices in that file are kept. docs/scaling.md shows them.
"""

import argparse
import os
import time
from pathlib import Path

import jax
import pandas as pd

import recombine as rc
from recombine.planning.estimate import estimate
from recombine.sweeps.run import Run
from recombine.training import cost, device
from recombine.training.chunk import make_chunks

PRICES = {"NVIDIA H200": 3.5, "cpu": 0.1}  # dollars per hour: assumptions, replace them by yours
HEADER = "| sweep | runs | programs | expected | measured | 1,000 runs | at the price assumed |"


def cells(small: bool) -> dict[str, list[Run]]:
    """Sweeps of several sizes by name; a CPU gets fewer and shorter ones."""
    return _cpu_cells() if small else _gpu_cells()


def _middle() -> Run:
    widths = (512,) * 3
    return rc.Run(
        family=rc.Hyperteacher(), model=rc.MLP(widths=widths), num_steps=2000, num_evals=4
    )


def _cpu_cells() -> dict[str, list[Run]]:
    return {
        "3 x 128, 1,000 steps": rc.sweep(rc.Run(), seed=range(48)),
        "3 x 32, 1,000 steps": rc.sweep(rc.Run(), model__widths=[(32,) * 3], seed=range(96)),
        "3 x 512, M = 16, 200 steps": rc.sweep(_middle(), num_steps=[200], seed=range(8)),
    }


def _gpu_cells() -> dict[str, list[Run]]:
    paper = rc.paper(recipe=rc.Fast(), diagnostics=(), num_steps=5000, num_evals=5)
    mixed = rc.sweep(
        rc.Run(), model__widths=[(n,) * 3 for n in (16, 32, 64, 128, 256)], frac_test=[0.25, 0.5]
    )
    return {
        # The constants for compilation and diagnostics were set after these four sweeps.
        "3 x 128, 1,000 steps": rc.sweep(rc.Run(), seed=range(1024)),
        "3 x 512, M = 16, 2,000 steps": rc.sweep(_middle(), seed=range(128)),
        "4 x 1024, M = 16, 5,000 steps (the paper's quality)": rc.sweep(paper, seed=range(64)),
        "widths 16 to 256, five programs": [
            run for base in mixed for run in rc.sweep(base, seed=range(32))
        ],
        # These two check them.
        "3 x 256, 4,000 steps": rc.sweep(
            rc.Run(),
            model__widths=[(256,) * 3],
            num_steps=[4000],
            recipe__learning_rate=[0.02, 0.04],
            seed=range(128),
        ),
        "2 and 6 x 96, three encodings, six programs": rc.sweep(
            rc.Run(),
            model__widths=[(96,) * 2, (96,) * 6],
            encoding=[rc.Identity(), rc.Orthogonal(), rc.FewShot(num_pairs=10)],
            seed=range(64),
        ),
    }


def measure(name: str, runs: list[Run]) -> dict[str, object]:
    """The expected and the measured seconds of a sweep."""
    expected = estimate(runs, cost.nearest_kind())
    start = time.perf_counter()
    rows = rc.train(runs, progress=False)
    seconds = time.perf_counter() - start
    chunks = make_chunks(runs, 16 if device.on_cpu() else 64)
    return {
        "device": jax.devices()[0].device_kind,
        "cores": device.num_cores(),
        "sweep": name,
        "runs": len(runs),
        "chunks": len(chunks),
        "programs": expected["programs"],
        "expected_seconds": expected["seconds"],
        "measured_seconds": seconds,
        "compile_seconds": float(rows["meta/compile_seconds"].drop_duplicates().sum()),
        "seconds_per_1000_runs": 1000 * seconds / len(runs),
        "jax": jax.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def page(rows: pd.DataFrame) -> str:
    """The rows as the table in docs/scaling.md, with the price of 1,000 runs."""
    lines = [HEADER, "|---|" + "---:|" * 6]
    for kind, rows_of_kind in rows.groupby("device", sort=False):
        price = PRICES[str(kind)]
        lines.append(f"| **{kind}** | | | | | | {price:.2f} dollars an hour |")
        for row in rows_of_kind.itertuples():
            dollars = price * row.seconds_per_1000_runs / 3600
            seconds = (
                f"{row.expected_seconds:.0f} s | {row.measured_seconds:.0f} s"
                f" | {row.seconds_per_1000_runs:,.0f} s"
            )
            lines.append(
                f"| {row.sweep} | {row.runs} | {row.programs} | {seconds} | {dollars:.2f} |"
            )
    return "\n".join(lines)


def _save(row: dict[str, object], out: Path) -> None:
    """Add a row to a file; it replaces the row of the same sweep and device."""
    rows = pd.DataFrame([row])
    if out.exists():
        old = pd.read_parquet(out)
        same = (old["device"] == row["device"]) & (old["sweep"] == row["sweep"])
        rows = pd.concat([old[~same], rows], ignore_index=True)
    rows.to_parquet(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="measure sweeps whose name contains this text")
    options = parser.parse_args()
    os.environ["RECOMBINE_CACHE"] = "off"  # every program is compiled, as the estimate assumes
    for name, runs in cells(device.on_cpu()).items():
        if options.only in name:
            row = measure(name, runs)
            print(pd.Series(row).to_string())
            _save(row, options.out)


if __name__ == "__main__":
    main()
