"""The command that checks results: verify."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recombine.basics.console import command_progress
from recombine.cli.options import Folder, Json
from recombine.cli.output import print_result

if TYPE_CHECKING:
    from recombine.storage.table import Table


def verify(
    folder: Folder,
    split: Annotated[
        bool,
        typer.Option(
            "--split",
            help="Also check that no test combination was trained, and report the coverage.",
        ),
    ] = False,
    parts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.py", help="For --split: the file of your own parts, which is executed."
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Check the rows, checkpoints and saved networks of a sweep.

    Looks for damaged files, incomplete runs, rows that contradict each other, mixed
    versions and machines, and stale code. Each problem is one line; the exit code is 1 if there is
    a problem. Nothing is changed.
    """
    from recombine.basics.errors import require
    from recombine.basics.suggest import counted
    from recombine.storage.table import Table
    from recombine.training.verification import verify as verify_results

    require(parts is None or split, "--parts is used by --split only: add --split")
    with command_progress(not json_) as show_step:
        verification = verify_results(folder, _code_hash(Table(folder)), show_step)
        problems = list(verification.problems)
        result: dict[str, Any] = {"folder": str(folder), "checked": verification.checked}
        counts = [f"{number:,} {name}" for name, number in verification.checked.items()]
        lines = [f"checked: {', '.join(counts)}"]
        if split:
            _prove(folder, parts, show_step, problems, result, lines)
    lines += [f"problem: {problem}" for problem in problems]
    lines.append(f"{counted(len(problems), 'problem')} found" if problems else "no problem found")
    print_result(json_, result | {"problems": problems}, lines)
    if problems:
        raise typer.Exit(1)


def _code_hash(table: "Table") -> str | None:
    """The hash of the code that makes the rows of this experiment now. None if it is a user's file
    that computes: its code is part of the identity of its cells.
    """
    from recombine.basics.errors import InputError
    from recombine.experiments.catalogue import built_in_experiment
    from recombine.sweeps.code_hash import hash_of_package
    from recombine.training.computed import experiment_code_hash

    try:
        name = str(table.meta().get("source", ""))
    except InputError:  # is a problem of its own
        return None
    module = built_in_experiment(name)
    if module is not None and hasattr(module, "cells"):
        return experiment_code_hash(Path(module.__file__ or ""))
    is_trained = "programs" not in table.meta() or bool(table.meta()["programs"])
    return hash_of_package() if is_trained else None


def _prove(
    folder: Path,
    parts: Path | None,
    show_step: Any,
    problems: list[str],
    result: dict[str, Any],
    lines: list[str],
) -> None:
    """Add the proof about the splits to the problems, the result and the lines."""
    from recombine.basics import user_files
    from recombine.basics.errors import InputError
    from recombine.storage.table import Table
    from recombine.sweeps import discovery
    from recombine.training.split_verification import prove

    user_parts: list[type] = []
    if parts is not None:
        for classes in discovery.parts_of(user_files.load(parts)).values():
            user_parts += classes.values()
    try:
        proof = prove(Table(folder).read(), user_parts, show_step)
    except InputError as error:
        problems.append(str(error))
        return
    problems += proof.problems
    result["split"] = proof._asdict() | {"disjoint": not proof.problems}
    if not proof.problems:
        lines.append(
            f"no test combination was trained: {proof.num_splits} splits of {proof.num_runs} runs "
            f"computed again, {proof.num_hashed} compared by hash, the others by their columns"
        )
    for k, fraction in proof.coverage.items():
        lines.append(
            f"coverage at {k}: {fraction:.1%} of the {k}-combinations of test tasks occur in "
            "train tasks"
        )
