"""Checks what `recombine cost` tells against whole sweeps: seconds expected and taken, compilation included.

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
from recombine.training.chunk import cut

PRICES = {
    "NVIDIA H200": 3.5,
    "cpu": 0.1,
}  # dollars an hour: assumptions, to be replaced by one's own


def cells(small: bool) -> dict[str, list[Run]]:
    """Sweeps of several sizes; a CPU gets fewer and shorter ones."""
    paper = rc.paper(recipe=rc.Fast(), diagnostics=(), num_steps=5000, num_evals=5)
    middle = rc.Run(
        family=rc.Hyperteacher(), model=rc.MLP(widths=(512,) * 3), num_steps=2000, num_evals=4
    )
    quick = rc.Run()
    if small:
        return {
            "3 x 128, 1,000 steps": rc.sweep(quick, seed=range(48)),
            "3 x 32, 1,000 steps": rc.sweep(quick, model__widths=[(32,) * 3], seed=range(96)),
            "3 x 512, M = 16, 200 steps": rc.sweep(middle, num_steps=[200], seed=range(8)),
        }
    # The constants for compilation and diagnostics were set after the first four; the others check them.
    mixed = rc.sweep(
        quick, model__widths=[(n,) * 3 for n in (16, 32, 64, 128, 256)], frac_test=[0.25, 0.5]
    )
    return {
        "3 x 128, 1,000 steps": rc.sweep(quick, seed=range(1024)),
        "3 x 512, M = 16, 2,000 steps": rc.sweep(middle, seed=range(128)),
        "4 x 1024, M = 16, 5,000 steps (the paper's quality)": rc.sweep(paper, seed=range(64)),
        "widths 16 to 256, five programs": [
            run for one in mixed for run in rc.sweep(one, seed=range(32))
        ],
        "3 x 256, 4,000 steps": rc.sweep(
            quick,
            model__widths=[(256,) * 3],
            num_steps=[4000],
            recipe__learning_rate=[0.02, 0.04],
            seed=range(128),
        ),
        "2 and 6 x 96, three encodings, six programs": rc.sweep(
            quick,
            model__widths=[(96,) * 2, (96,) * 6],
            encoding=[rc.Identity(), rc.Orthogonal(), rc.FewShot(num_pairs=10)],
            seed=range(64),
        ),
    }


def measure(name: str, runs: list[Run]) -> dict[str, object]:
    """One sweep, expected and measured."""
    expected = estimate(runs, cost.known_kind())
    clock = time.perf_counter()
    rows = rc.train(runs, progress=False)
    seconds = time.perf_counter() - clock
    chunks = cut(runs, 16 if device.on_cpu() else 64)
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
    """The rows as the table in docs/scaling.md, with the price of 1,000 runs at the prices assumed there."""
    heads = "| sweep | runs | programs | expected | measured | 1,000 runs | at the price assumed |"
    lines = [heads, "|---|" + "---:|" * 6]
    for kind, of_kind in rows.groupby("device", sort=False):
        lines.append(f"| **{kind}** | | | | | | {PRICES[str(kind)]:.2f} dollars an hour |")
        for row in of_kind.itertuples():
            dollars = PRICES[str(kind)] * row.seconds_per_1000_runs / 3600
            seconds = f"{row.expected_seconds:.0f} s | {row.measured_seconds:.0f} s | {row.seconds_per_1000_runs:,.0f} s"
            lines.append(
                f"| {row.sweep} | {row.runs} | {row.programs} | {seconds} | {dollars:.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="sweeps whose name holds this")
    given = parser.parse_args()
    os.environ["RECOMBINE_CACHE"] = "off"  # every program is compiled, as the model expects
    out = given.out
    for name, runs in [cell for cell in cells(device.on_cpu()).items() if given.only in cell[0]]:
        row = measure(name, runs)
        print(
            {
                key: round(value, 1) if isinstance(value, float) else value
                for key, value in row.items()
            }
        )
        rows = pd.read_parquet(out) if out.exists() else pd.DataFrame()
        kept = (
            rows[(rows["device"] != row["device"]) | (rows["sweep"] != name)] if len(rows) else rows
        )
        pd.concat([kept, pd.DataFrame([row])], ignore_index=True).to_parquet(out)


if __name__ == "__main__":
    main()
