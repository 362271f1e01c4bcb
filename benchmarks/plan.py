"""Write recombine/planning/plan.json, the scores behind `recombine plan`, from committed tables.

    python benchmarks/plan.py

All scores are of one recipe: the faithful one if both tables show it, otherwise the earlier one.
"""

import json
from pathlib import Path

import pandas as pd

from recombine.experiments.claim import final_rows
from recombine.experiments.ledger import RESULTS, shown
from recombine.experiments.paper.scaling_data import BASES, EARLIER_BASE
from recombine.storage.table import Table
from recombine.sweeps.run import Run

TABLES = ("scaling_data.parquet", "scaling_law.parquet")
STUDENT = "1024x1024x1024x1024"
OUT = Path(__file__).parent.parent / "recombine" / "planning" / "plan.json"
COLUMNS = {
    "family.num_modules": "modules",
    "family.num_hot": "hot",
    "seed": "seed",
    "support/num_train": "support/num_train",
    "test/r2": "r2",
}


def students(rows: pd.DataFrame, base: Run) -> pd.DataFrame:
    """The final rows of 4x1024 MLPs that were trained like `base`.

    The oldest rows have no column `recipe.vector_rate`: they were trained with 1.
    """
    recipe = base.recipe
    vector_rates = rows.reindex(columns=["recipe.vector_rate"]).squeeze(axis=1).fillna(1.0)
    is_student = (
        (rows["model.widths"] == STUDENT)
        & (rows["num_steps"] == base.num_steps)
        & (rows["recipe.learning_rate"] == recipe.learning_rate)
        & (vector_rates == recipe.vector_rate)
    )
    return final_rows(rows[is_student])


def measured(results: Path = RESULTS) -> dict:
    """The runs of the 4x1024 MLP, with rounded scores."""
    tables = [Table(results / name) for name in TABLES]
    is_faithful = all(len(students(shown(table), BASES["full"])) for table in tables)
    base = BASES["full"] if is_faithful else EARLIER_BASE
    rows = pd.concat([students(table.read(), base) for table in tables])
    rows = rows.drop_duplicates("run").rename(columns=COLUMNS)
    rows = rows[[*COLUMNS.values()]].sort_values([*COLUMNS.values()])
    recipe = base.recipe
    trained_by = f"Fast({recipe.learning_rate}, {recipe.weight_decay}, "
    trained_by += f"vector_rate={recipe.vector_rate}), {base.num_steps} steps"
    return {
        "student": f"MLP {STUDENT} on a hyperteacher, random or balanced supports, {trained_by}",
        "num_steps": base.num_steps,
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
