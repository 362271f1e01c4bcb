"""Write recombine/planning/bench/reference.json: means of students with the paper's recipe.

    python benchmarks/reference.py

It reads docs/results/faithful_recipe.parquet. `recombine bench` compares the fast recipe with it.
"""

import json
from pathlib import Path

from recombine.experiments.ledger import RESULTS, recipes_of
from recombine.experiments.paper import faithful_recipe
from recombine.planning.bench import fidelity
from recombine.storage.table import Table

OUT = Path(__file__).parent.parent / "recombine" / "planning" / "bench" / "reference.json"


def measured() -> dict:
    """The rounded means of each student."""
    final = faithful_recipe.prepare(Table(RESULTS / "faithful_recipe.parquet").read())
    references = final[final["trained by"] == faithful_recipe.REFERENCE]
    means = {}
    for student in faithful_recipe.STUDENTS:
        runs = references[references["student"] == student]
        if not len(runs):
            continue
        means[student] = {
            "recipe": recipes_of(runs),
            "runs": len(runs),
            "device": ", ".join(sorted(runs["meta/device"].unique())),
            "seconds": round(float(runs["meta/seconds"].mean()), 5),
            "seen": round(float(runs["seen"].mean()), 5),
            "test": round(float(runs["test"].mean()), 5),
        }
        for name, by_layer in fidelity.layer_means(runs).items():
            means[student][name] = {layer: round(value, 5) for layer, value in by_layer.items()}
    return means


if __name__ == "__main__":
    OUT.write_text(json.dumps(measured(), indent=1) + "\n")
