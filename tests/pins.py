"""What a rearrangement of the code must leave alone: identities of runs, measured claims, public names.

`python -m tests.pins` writes `pins.json` anew. Do so only where one of them was changed on purpose.
"""

import hashlib
import importlib
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

import recombine as rc
from recombine.cli.main import app
from recombine.experiments import catalogue
from recombine.experiments.claim import ledger, results_folder
from recombine.sweeps.run import identity
from recombine.training.computed import Cell

FILE = Path(__file__).parent / "pins.json"
SCALES = ("tiny", "small", "full")


def experiments() -> dict[str, Any]:
    """Every experiment of ours by name."""
    return {name: catalogue.experiment(name) for name in catalogue.experiment_names()}


def identities() -> dict[str, str]:
    """The runs or cells of every experiment and scale, in their order: how many, and a hash of their names."""
    found = {}
    for name, module in experiments().items():
        for scale in SCALES:
            try:
                listed = (getattr(module, "cells", None) or module.runs)(scale)
            except rc.InputError:  # it needs a model of the user's
                found[f"{name} {scale}"] = "refused"
                continue
            names = [
                Cell(name, one).name if isinstance(one, dict) else identity(one) for one in listed
            ]
            digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]
            found[f"{name} {scale}"] = f"{len(names)} {digest}"
    return found


def verdicts(found: pd.DataFrame) -> dict[str, Any]:
    """Every claim of a ledger: its measured value, interval and verdict."""
    lines = found.to_dict("records")
    return {
        f"{line['experiment']}: {line['name']}": [
            _number(line["measured"]),
            _interval(line),
            line["verdict"],
        ]
        for line in lines
    }


def public_names() -> dict[str, list[str]]:
    """What users write: names of the library, its two instruments, commands, experiments, and columns of one sweep."""
    commands = [
        command.name or command.callback.__name__
        for command in app.registered_commands
        if command.callback
    ]
    rows = rc.train(rc.Run(model=rc.MLP((8, 8)), num_steps=2, num_evals=1), progress=False)
    return {
        "recombine": sorted(set(dir(rc))),
        "recombine.probe": sorted(importlib.import_module("recombine.probe").NAMES),
        "recombine.coverage": sorted(importlib.import_module("recombine.coverage").__all__),
        "commands": sorted(commands),
        "experiments": sorted(experiments()),
        "columns": sorted(rows.columns),
    }


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def _interval(line: dict[str, Any]) -> list[float | None] | None:
    interval = line["interval"]
    return list(map(_number, interval)) if isinstance(interval, tuple) else None


def held() -> dict[str, Any]:
    """What must stay."""
    return json.loads(FILE.read_text())


def write() -> None:
    """Take the present state as what must stay."""
    found = ledger(experiments(), results_folder())
    pins = {"identities": identities(), "verdicts": verdicts(found), "names": public_names()}
    FILE.write_text(json.dumps(pins, indent=1) + "\n")


if __name__ == "__main__":
    write()
