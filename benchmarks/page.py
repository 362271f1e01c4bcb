"""Write docs/results/bench.md from the committed tables of `recombine bench --out`."""

from pathlib import Path

import pandas as pd

from recombine.planning.bench.suite import markdown

RESULTS = Path(__file__).parent.parent / "docs" / "results"
MACHINES = ("h200", "cpu")

if __name__ == "__main__":
    frames = [pd.read_parquet(RESULTS / f"bench-{name}.parquet") for name in MACHINES]
    (RESULTS / "bench.md").write_text(markdown(*frames))
