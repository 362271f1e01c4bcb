"""What a refactoring must not change: hashes of runs, measured claims, public names.

`python -m tests.pins` rewrites `pins.json`. Run it only if one of these was changed on purpose.
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
from recombine.experiments.ledger import ledger, results_folder
from recombine.sweeps.run import identity
from recombine.training.computed import Cell

FILE = Path(__file__).parent / "pins.json"
SCALES = ("tiny", "small", "full")


def experiments() -> dict[str, Any]:
    """All built-in experiments by name."""
    return {name: catalogue.experiment(name) for name in catalogue.experiment_names()}


def identities() -> dict[str, str]:
    """The number of runs or cells of every experiment and scale, and a hash of their names."""
    identities_of_scale = {}
    for name, module in experiments().items():
        for scale in SCALES:
            try:
                listed = (getattr(module, "cells", None) or module.runs)(scale)
            except rc.InputError:  # it needs the user's own model
                identities_of_scale[f"{name} {scale}"] = "refused"
                continue
            names = [
                Cell(name, item).name if isinstance(item, dict) else identity(item)
                for item in listed
            ]
            digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]
            identities_of_scale[f"{name} {scale}"] = f"{len(names)} {digest}"
    return identities_of_scale


def verdicts(ledger_frame: pd.DataFrame) -> dict[str, Any]:
    """Every claim of a ledger: its measured value, interval and verdict."""
    lines = ledger_frame.to_dict("records")
    return {
        f"{line['experiment']}: {line['name']}": [
            _number(line["measured"]),
            _interval(line),
            line["verdict"],
        ]
        for line in lines
    }


def public_names() -> dict[str, list[str]]:
    """Names that users write: of the library, probe, coverage, commands, experiments, columns."""
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
    """The pinned values."""
    return json.loads(FILE.read_text())


def write() -> None:
    """Pin the present values."""
    ledger_frame = ledger(experiments(), results_folder())
    pins = {"identities": identities(), "verdicts": verdicts(ledger_frame), "names": public_names()}
    FILE.write_text(json.dumps(pins, indent=1) + "\n")


if __name__ == "__main__":
    write()
