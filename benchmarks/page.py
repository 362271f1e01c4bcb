"""Write docs/results/bench.md from the committed tables that `recombine bench --out` wrote."""

from pathlib import Path

import pandas as pd

from recombine.planning.bench.suite import markdown

RESULTS = Path(__file__).parent.parent / "docs" / "results"
FRAMES = [pd.read_parquet(RESULTS / f"bench-{name}.parquet") for name in ("h200", "cpu")]

if __name__ == "__main__":
    (RESULTS / "bench.md").write_text(markdown(*FRAMES))
