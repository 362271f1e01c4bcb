"""Verify the results in a folder: `recombine verify`.

Every file is checked as it is (parts of rows, checkpoints, saved networks, the metadata, the status
and the figures), and then the rows as a
whole: complete runs, no contradictions, one version, one kind of machine, no stale code. Nothing is
changed, and no file of the folder is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from recombine.basics.errors import InputError, require
from recombine.basics.suggest import counted
from recombine.storage import parquet, status
from recombine.storage.table import Table
from recombine.training import checkpoint, fitted, machine

MAX_LISTED = 3  # runs or values that one line names
VERSIONS = {
    "version of Recombine": "meta/recombine",
    "version of Recombine's code": "meta/code",
}
ShowStep = Callable[[str, int, int], None]


class Verification(NamedTuple):
    """What was checked, by its name in --json, and what is wrong: a line for each problem."""

    checked: dict[str, int]
    problems: list[str]


def verify(
    path: Path, code_hash: str | None = None, show_step: ShowStep = lambda *_: None
) -> Verification:
    """Verify a folder or `.parquet` file of results.

    Args:
        path: The folder or file of `recombine run --out`.
        code_hash: The hash of the code that makes such rows now. Without it, stale code is not
            looked for.
        show_step: Is called with (text, number, total) during the work.
    """
    table = Table(path)
    parts = table.parts()
    checkpoints = sorted(_checkpoint_folder(table).glob("*.eqx"))
    networks = [] if table.packed else sorted(file.parent for file in path.rglob("run.json"))
    require(
        bool(parts or checkpoints or networks),
        f"{path} holds no results: name the folder or .parquet file of `recombine run --out`",
    )
    problems: list[str] = []
    frames = []
    total = len(parts) + len(checkpoints) + len(networks)
    for number, part in enumerate(parts, start=1):
        show_step("checking parts", number, total)
        try:
            loaded = parquet.load(part)
        except InputError as error:
            problems.append(str(error))
        else:
            frames += [] if loaded is None else [parquet.join([loaded])]
    for number, file in enumerate(checkpoints, start=len(parts) + 1):
        show_step("checking checkpoints", number, total)
        problem = checkpoint.problem_of(file)
        problems += [] if problem is None else [problem]
    for number, folder in enumerate(networks, start=total - len(networks) + 1):
        show_step("checking networks", number, total)
        problems += _network_problems(folder)
    rows = parquet.concat(frames) if frames else pd.DataFrame({"run": []})
    problems += _metadata_problems(table, set(rows["run"]))
    if len(rows):
        problems += _row_problems(rows)
        problems += _origin_problems(rows, code_hash)
    checked = {
        "parts": len(parts),
        "rows": len(rows),
        "runs": len(set(rows["run"])),
        "checkpoints": len(checkpoints),
        "networks": len(networks),
    }
    return Verification(checked, problems)


def _checkpoint_folder(table: Table) -> Path:
    if table.packed:
        return table.path.with_name(f".{table.path.name}.checkpoints")
    return table.path / "checkpoints"


def _network_problems(folder: Path) -> list[str]:
    try:
        has_checksums = fitted.check_folder(folder)
    except InputError as error:
        return [str(error)]
    if not has_checksums:
        return [f"{folder} is a network without checksums (of an older version): save it again"]
    return []


def _metadata_problems(table: Table, written: set[str]) -> Iterator[str]:
    """What is wrong with the files beside the rows, and which runs of the command have no rows."""
    try:
        problems = table.problems_beside_rows()
        status_problem = None if table.packed else status.problem(table.path)
        if status_problem is not None:
            problems.append(status_problem)
        yield from problems
        if problems:
            return
        meta = table.meta()
    except (InputError, OSError, ValueError) as error:
        yield str(error)
        return
    last_runs = meta.get("shown")
    if not isinstance(last_runs, list):
        return
    missing = [str(run) for run in last_runs if run not in written]
    if missing:
        yield (
            f"{len(missing)} of the {counted(len(last_runs), 'run')} of the last command have no "
            f"rows ({_listed(missing)}): run it again"
        )


def _row_problems(rows: Any) -> Iterator[str]:
    """Incomplete runs, and rows that contradict each other."""
    if "step" not in rows:
        yield "the rows have no column 'step'"
        return
    numbers = [name for name in rows if not str(name).startswith("meta/")]
    repeated = rows[rows.duplicated(["run", "step"], keep=False)]
    if len(repeated):
        different = repeated.drop_duplicates(numbers)
        contradicting = different[different.duplicated(["run", "step"], keep=False)]["run"].unique()
        if len(contradicting):
            yield (
                f"{counted(len(contradicting), 'run')} with two different rows of one step "
                f"({_listed(contradicting)}): the part that sorts first counts"
            )
    unwhole = [run for run, own in rows.groupby("run") if not _is_whole(own)]
    if unwhole:
        yield (
            f"evaluations of {counted(len(unwhole), 'run')} are missing ({_listed(unwhole)}): move "
            "the part with these rows away and run the command again"
        )


def _is_whole(own: Any) -> bool:
    """Whether a run has a row for each evaluation, or a cell rows that are numbered from 0."""
    steps = sorted(set(own["step"]))
    first = own.iloc[0]
    if "num_evals" in own and pd.notna(first["num_evals"]):
        distance = int(first["num_steps"]) // int(first["num_evals"])
        return steps == list(range(distance, int(first["num_steps"]) + 1, distance))
    return steps == list(range(len(steps)))


def _origin_problems(rows: Any, code_hash: str | None) -> Iterator[str]:
    """Mixtures of versions and machines, and code that is not the present one."""
    last = rows.drop_duplicates("run", keep="last")
    for word, column in (VERSIONS | machine.COLUMNS).items():
        if column not in last:
            continue
        of_interest = last[last["meta/device"] == "cpu"] if column == "meta/cpu" else last
        counts = of_interest[column].dropna().astype(str).value_counts()
        if len(counts) > 1:
            values = [f"{value}: {counted(num, 'run')}" for value, num in counts.items()]
            yield f"the runs have more than one {word} ({_listed(values, '; ')})"
    if code_hash is not None and "meta/code" in last:
        num_stale = int((last["meta/code"] != code_hash).sum())
        if num_stale:
            yield (
                f"{counted(num_stale, 'run')} were made by other code than the present "
                f"({code_hash}): numbers may differ; train them again with another --out"
            )


def _listed(values: Any, separator: str = ", ") -> str:
    values = list(map(str, values))
    more = len(values) - MAX_LISTED
    return separator.join(values[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
