"""Commands that train, and what they can train: quickstart, list, run, check."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recombine.cli.options import Experiment, Json, MoreSettings, Scale, Seeds, Set, joined
from recombine.cli.output import print_result, print_sweep

if TYPE_CHECKING:
    from recombine.experiments.runner import Request

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Folder for the results, or one FILE.parquet. Finished runs in it are reused. "
        "Default: results/EXPERIMENT-SCALE.",
    ),
]
Executor = Annotated[
    str,
    typer.Option(
        "--executor",
        help="Where to train: here, processes:N, dask-local:N, dask://HOST:PORT or slurm.",
    ),
]
Slurm = Annotated[
    str,
    typer.Option(
        "--slurm",
        metavar="KEY=VALUE,...",
        help="Job options for --executor slurm, e.g. partition=gpu,gres=gpu:1,timeout_min=60.",
    ),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="TRACKER",
        help="Also send the results to wandb, tensorboard or mlflow. May be repeated.",
    ),
]
NoTrain = Annotated[
    bool,
    typer.Option(
        "--no-train", help="Do not train: summarize the finished runs of an unfinished sweep."
    ),
]
LikeWorkers = Annotated[
    bool,
    typer.Option(
        "--like-workers",
        help="Refuse workers whose device, CPU, XLA flags or libraries differ from those of the "
        "first one.",
    ),
]

ChunkTimeout = Annotated[
    float | None,
    typer.Option(
        "--chunk-timeout",
        metavar="SECONDS",
        help="Stop a chunk that makes no progress for so long, and train it again. For processes:N "
        "and slurm; choose more than a compilation takes.",
    ),
]


def quickstart(json_: Json = False) -> None:
    """Train a first sweep and write quickstart.html.

    Takes 1 to 2 minutes. The page opens in any browser and needs no internet connection.
    """
    from recombine.experiments.runner import Request
    from recombine.reporting import page as report
    from recombine.storage.table import Table

    request = Request("quickstart")
    result = _perform(request, quiet=json_)
    page = report.write(Table(request.path), Path("quickstart.html"))
    line = f"Report: {page}  (open it in a browser; it works offline)"
    print_result(json_, result | {"report": str(page)}, [line])


def list_(json_: Json = False) -> None:
    """List all parts and experiments, with fields and defaults.

    Parts are families, encodings, supports, models, diagnostics and recipes. The first entry, Run,
    shows the defaults of a run, which `recombine run --set` changes.
    """
    listed = _defaults_of_parts()
    listed["experiment"] = _experiment_titles()
    lines = []
    for kind, members in listed.items():
        lines.append(f"\n{kind}")
        for name, fields in members.items():
            text = fields if isinstance(fields, str) else _field_list(fields)
            lines.append(f"  {name:<20} {text}")
    print_result(json_, listed, lines)


def _defaults_of_parts() -> dict[str, dict[str, Any]]:
    """Kind of part -> its parts by name -> their fields with defaults; `Run` comes first."""
    from recombine.parts.field_checks import field_types
    from recombine.sweeps import discovery
    from recombine.sweeps.run import Run, describe

    defaults: dict[str, dict[str, Any]] = {"run": {"Run": describe(Run())}}
    for kind, classes in discovery.parts().items():
        defaults[kind] = {
            name: {field: getattr(cls(), field) for field in field_types(cls)}
            for name, cls in classes.items()
        }
    return defaults


def _experiment_titles() -> dict[str, str]:
    """The first line of every built-in experiment's docstring, by name."""
    from recombine.experiments import catalogue

    titles = {}
    for name in catalogue.experiment_names():
        docstring = catalogue.experiment(name).__doc__ or ""
        titles[name] = docstring.strip().split("\n")[0]
    return titles


def _field_list(fields: dict[str, Any]) -> str:
    return ", ".join(f"{field}={value!r}" for field, value in fields.items())


def run(
    experiment: Experiment,
    scale: Scale = "small",
    out: Out = None,
    set_: Set = None,
    more: MoreSettings = None,
    seeds: Seeds = None,
    executor: Executor = "here",
    slurm: Slurm = "",
    log: Log = None,
    no_train: NoTrain = False,
    like_workers: LikeWorkers = False,
    chunk_timeout: ChunkTimeout = None,
    json_: Json = False,
) -> None:
    """Train an experiment and save its results.

    Finished runs are not trained again, so the same command continues an interrupted sweep.
    """
    from recombine.experiments.runner import Request

    request = Request(
        experiment,
        scale=scale,
        out=out,
        settings=joined(set_, more),
        seeds=seeds,
        executor=executor,
        slurm=slurm,
        log=log or [],
        no_train=no_train,
        like_workers=like_workers,
        chunk_timeout=chunk_timeout,
    )
    result = _perform(request, quiet=json_)
    report_command = f"recombine report {shlex.quote(str(request.path))}"
    line = f"Rows: {request.path}  (`{report_command}` writes an HTML page)"
    print_result(json_, result, [line])


def _perform(request: "Request", quiet: bool) -> dict[str, Any]:
    from recombine.experiments.runner import perform

    result, rows = perform(request, quiet)
    if not quiet:
        print_sweep(rows, result)
    return result


def check(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.py", help="A Python file that defines parts.")
    ],
    json_: Json = False,
) -> None:
    """Test your own parts with the checks that built-in parts pass.

    A part is a frozen dataclass with the methods of a family, encoding, support, model, diagnostic
    or recipe. A check is a contract that every part keeps, for example that equal random keys give
    equal results. The exit code is 1 if a part breaks a contract.
    """
    from recombine.basics import user_files
    from recombine.basics.errors import require
    from recombine.training import contracts

    results = list(contracts.check_module(user_files.load(file), file))
    require(
        len(results) > 0,
        f"{file} defines no part: a part is a frozen dataclass with the methods of one kind "
        "(see docs/design.md)",
    )
    lines = []
    for result in results:
        status = "ok    " if result["kept"] else "BROKEN"
        lines.append(f"{status}  {result['part']}: {result['promise']}")
        if not result["kept"]:
            lines.append(f"         because: {result['reason']}")
    num_broken = sum(not result["kept"] for result in results)
    lines.append(f"{len(results)} contracts checked, {num_broken} broken")
    print_result(json_, {"file": str(file), "results": results, "broken": num_broken}, lines)
    if num_broken:
        raise typer.Exit(1)
