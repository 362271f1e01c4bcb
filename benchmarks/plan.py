"""Write recombine/planning/plan.json, the scores behind `recombine plan`, from committed tables.

python benchmarks/plan.py
"""

import json
from pathlib import Path

import pandas as pd

from recombine.experiments.claim import final_rows
from recombine.experiments.ledger import RESULTS
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
    """The runs of the 4x1024 MLP, with rounded scores."""
    paths = [RESULTS / name for name in TABLES]
    tables = [final_rows(Table(path).read()) for path in paths if path.exists()]
    rows = pd.concat(tables)
    rows = rows[rows["model.widths"] == STUDENT].drop_duplicates("run").rename(columns=COLUMNS)
    rows = rows[[*COLUMNS.values()]].sort_values([*COLUMNS.values()])
    return {
        "student": f"MLP {STUDENT} on a hyperteacher, random or balanced supports, {RECIPE}",
        "columns": list(rows),
        "runs": [
            [int(modules), int(hot), int(seed), int(num_train), round(float(r2), 5)]
            for modules, hot, seed, num_train, r2 in rows.to_numpy()
        ],
    }


if __name__ == "__main__":
    document = measured()
    runs = ",\n".join(f"  {json.dumps(run)}" for run in document.pop("runs"))
    head = json.dumps(document, indent=1).removesuffix("\n}")
    OUT.write_text(f'{head},\n "runs": [\n{runs}\n ]\n}}\n')
