"""The commands for your own model and data, and for planning your own sweep."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from recombine.basics.console import Json, digits, tell

Kind = Literal["ridge", "logistic"]
Layers = Literal["best", "all"]


def add(app: typer.Typer) -> None:
    """Put these commands beside the laboratory's."""
    for command in (probe, coverage, plan):
        app.command()(command)


def probe(
    activations: Annotated[Path, typer.Argument(help="Arrays by layer: .npz or .safetensors.")],
    factors: Annotated[Path, typer.Option(help="A .csv or .parquet table, a row per sample.")],
    held_out: Annotated[
        str | None, typer.Option(help="Column that is true for held-out rows.")
    ] = None,
    kind: Annotated[Kind, typer.Option(help="How factors are read.")] = "ridge",
    report: Annotated[Path | None, typer.Option(help="Write a page to this file.")] = None,
    combinations: Annotated[
        str | None, typer.Option(help="Column that names a row's combination.")
    ] = None,
    layers: Annotated[
        Layers, typer.Option(help="Rank by the best read layer, or by all joined into one.")
    ] = "best",
    json_: Json = False,
) -> None:
    """Tell what can be read from a model's activations, on combinations that the probes saw and on others."""
    from recombine.probe import command

    tell(json_, *command.probe(activations, factors, held_out, kind, report, combinations, layers))


def coverage(
    table: Annotated[Path, typer.Argument(help="A .csv or .parquet table of training examples.")],
    factors: Annotated[
        str, typer.Option(help="Columns, one per factor: shape,colour,size; or one column of sets.")
    ],
    suggest: Annotated[int, typer.Option(help="How many combinations to suggest.")] = 20,
    report: Annotated[Path | None, typer.Option(help="Write a page to this file.")] = None,
    separator: Annotated[
        str, typer.Option(help="What stands between the concepts of a set.")
    ] = ";",
    held_out: Annotated[
        Path | None, typer.Option(help="A table of combinations that must not be suggested.")
    ] = None,
    json_: Json = False,
) -> None:
    """Tell what a table of training examples lacks, and which combinations to add."""
    from recombine.coverage.page import answer

    tell(json_, *answer(table, factors, suggest, report, separator, held_out))


def plan(
    modules: Annotated[int, typer.Option(help="How many modules M there are.")],
    hot: Annotated[int, typer.Option(help="How many of them are active at most, K.")],
    target: Annotated[float, typer.Option(help="The R2 on unseen tasks that is wanted.")] = 0.95,
    seeds: Annotated[int, typer.Option(help="How many seeds are to be trained.")] = 3,
    device: Annotated[
        str | None, typer.Option(help='"NVIDIA H200" or cpu, say; this machine\'s by default.')
    ] = None,
    json_: Json = False,
) -> None:
    """Tell how many train tasks are needed for a target, and how long they take to train on, by what was measured."""
    from recombine.planning import planner
    from recombine.training.cost import known_kind

    found = planner.plan(modules, hot, target, device or known_kind(), seeds)
    low, high = found["interval"]
    lines = [
        f"{found['needed']:,} train tasks ({low:,} to {high:,}) of {found['tasks']:,}, {found['share']:.2%} of them",
        f"{seeds} seeds: {digits(found['seconds'])} s on {found['device']}, for {found['student']}",
        *([f"extrapolated: {found['why']}"] if found["extrapolates"] else []),
    ]
    tell(json_, found, lines)
