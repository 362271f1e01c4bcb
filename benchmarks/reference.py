"""Make recombine/planning/bench/reference.json, the means of students by the paper's recipe.

    python benchmarks/reference.py

From docs/results/faithful_recipe.parquet. `recombine bench` shows the fast recipe beside them.
"""

import json
from pathlib import Path

from recombine.experiments.claim import RESULTS
from recombine.experiments.paper import faithful_recipe
from recombine.planning.bench import fidelity
from recombine.storage.table import Table

OUT = Path(__file__).parent.parent / "recombine" / "planning" / "bench" / "reference.json"


def measured() -> dict:
    """The means of each student, rounded to what matters."""
    last = faithful_recipe.students(Table(RESULTS / "faithful_recipe.parquet").read())
    last = last[last["trained by"] == faithful_recipe.REFERENCE]
    found = {}
    for student in [name for name in faithful_recipe.STUDENTS if name in set(last["student"])]:
        group = last[last["student"] == student]
        layers = fidelity.layer_means(group)
        found[student] = {
            "recipe": faithful_recipe.recipe_text(group),
            "runs": len(group),
            "seen": round(float(group["seen"].mean()), 5),
            "test": round(float(group["test"].mean()), 5),
            **{
                name: {layer: round(value, 5) for layer, value in of.items()}
                for name, of in layers.items()
            },
        }
    return found


if __name__ == "__main__":
    OUT.write_text(json.dumps(measured(), indent=1) + "\n")
