"""Make recombine/planning/plan.json, what `recombine plan` knows, of the committed scaling tables.

python benchmarks/plan.py
"""

import json
from pathlib import Path

import pandas as pd

from recombine.experiments.claim import RESULTS, last
from recombine.storage.table import Table

TABLES = ("scaling_data.parquet", "scaling_law.parquet")
STUDENT = "1024x1024x1024x1024"
RECIPE = "Fast(0.05, 0.02, vector_rate=1.0), 5000 steps"
OUT = Path(__file__).parent.parent / "recombine" / "planning" / "plan.json"
COLUMNS = {
    "family.num_modules": "modules",
    "family.num_hot": "hot",
    "seed": "seed",
    "support/num_train": "support/num_train",
    "test/r2": "r2",
}


def measured() -> dict:
    """The runs of the 4x1024 MLP, rounded to what matters."""
    rows = pd.concat(
        [last(Table(RESULTS / name).read()) for name in TABLES if (RESULTS / name).exists()]
    )
    rows = rows[rows["model.widths"] == STUDENT].drop_duplicates("run").rename(columns=COLUMNS)
    rows = rows[[*COLUMNS.values()]].sort_values([*COLUMNS.values()])
    return {
        "student": f"MLP {STUDENT} on a hyperteacher, random or balanced supports, {RECIPE}",
        "columns": list(rows),
        "runs": [
            [int(m), int(k), int(seed), int(n), round(float(r2), 5)]
            for m, k, seed, n, r2 in rows.to_numpy()
        ],
    }


if __name__ == "__main__":
    found = measured()
    lines = ",\n".join(f"  {json.dumps(run)}" for run in found.pop("runs"))
    OUT.write_text(json.dumps(found, indent=1)[:-2] + f',\n "runs": [\n{lines}\n ]\n}}\n')
