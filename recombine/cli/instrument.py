"""Commands for your own model and data: probe, coverage."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from recombine.cli.options import Json, Report
from recombine.cli.output import print_result

ProbeKind = Literal["auto", "ridge", "logistic"]
Layers = Literal["best", "all"]

Activations = Annotated[
    Path,
    typer.Argument(
        metavar="ACTIVATIONS",
        help="A .npz or .safetensors file with one array (samples x features) per layer.",
    ),
]
FactorTable = Annotated[
    Path,
    typer.Option(help="A .csv or .parquet table: one row per sample, one column per factor."),
]
HeldOutColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="Column of the factors table that is true for held-out samples."
    ),
]
CombinationColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of the factors table that names each sample's combination. "
        "Default: the values of all factors.",
    ),
]
NameColumns = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMNS",
        help="Numeric columns whose values are names, such as class ids: size,kind.",
    ),
]
FactorColumns = Annotated[
    str | None,
    typer.Option(metavar="COLUMNS", help="Columns that are factors. Default: all."),
]
BaselineFile = Annotated[
    Path | None,
    typer.Option(
        help="Activations of the model's input or of an untrained model. Factors that are "
        "decodable from them are marked."
    ),
]
SavedProbe = Annotated[
    Path | None, typer.Option(help="Save the fitted probe to this .safetensors file.")
]

CoverageFactors = Annotated[
    str,
    typer.Option(
        metavar="COLUMNS",
        help="Columns with one factor each, e.g. shape,color,size; or one column in which "
        "every row has a set of values, e.g. tags.",
    ),
]
Ordered = Annotated[
    bool,
    typer.Option(
        "--ordered",
        help="Examples are chains: report missing neighbors and positions. --factors names "
        "the columns in order, or one column of chains.",
    ),
]
Evidence = Annotated[
    int,
    typer.Option(help="With --ordered: number of chains that must contain a neighbor or position."),
]
SetColumns = Annotated[
    str | None,
    typer.Option(metavar="COLUMNS", help="Factors whose cells hold a set of values."),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=VALUE,…",
        help="A combination that is impossible, e.g. shape=fish,action=fly. Repeatable.",
    ),
]
DeclaredValues = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=VALUE,…",
        help="Values that are possible even if TABLE lacks them, e.g. shape=fish,bird. Repeatable.",
    ),
]
CombinationCosts = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|COLUMN",
        help="A table with some of the factors and a column `cost`, or a column of TABLE.",
    ),
]
Budget = Annotated[float | None, typer.Option(help="The largest total cost of all suggestions.")]
ExamplesNeeded = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of examples that a combination should have. Default: the geometric mean "
        "in TABLE.",
    ),
]


def probe(
    activations: Activations,
    factors: FactorTable,
    held_out: HeldOutColumn = None,
    kind: Annotated[
        ProbeKind,
        typer.Option(
            help="Kind of linear probe. auto: logistic regression for names, ridge for numbers."
        ),
    ] = "auto",
    report: Report = None,
    combinations: CombinationColumn = None,
    layers: Annotated[
        Layers,
        typer.Option(
            help="Predict failures from the most decodable layer, or from all layers concatenated."
        ),
    ] = "best",
    names: NameColumns = None,
    columns: FactorColumns = None,
    baseline: BaselineFile = None,
    save: SavedProbe = None,
    json_: Json = False,
) -> None:
    """Measure which factors are decodable from activations.

    Every factor gets a verdict. Probes are scored on the combinations they were fitted on and on
    held-out combinations. Without --held-out, every combination is held out in turn.
    """
    from recombine.probe import command

    result, lines = command.probe(
        activations,
        factors,
        held_out,
        kind,
        report,
        combinations,
        layers,
        names,
        columns,
        baseline,
        save,
    )
    print_result(json_, result, lines)


def coverage(
    table: Annotated[
        Path,
        typer.Argument(metavar="TABLE", help="A .csv or .parquet table of training examples."),
    ],
    factors: CoverageFactors,
    suggest: Annotated[int, typer.Option(help="Number of combinations to suggest.")] = 20,
    report: Report = None,
    separator: Annotated[str, typer.Option(help="Separator between the values of a set.")] = ";",
    held_out: Annotated[
        Path | None,
        typer.Option(help="A table of test combinations, which are never suggested."),
    ] = None,
    sets: SetColumns = None,
    forbid: Forbid = None,
    values: DeclaredValues = None,
    costs: CombinationCosts = None,
    budget: Budget = None,
    examples_needed: ExamplesNeeded = None,
    ordered: Ordered = False,
    evidence: Evidence = 1,
    json_: Json = False,
) -> None:
    """Find gaps in training data and suggest combinations to add.

    A combination is one value of each factor, or one set of values. Two values are linked if they
    occur in the same row. The result says which values are absent or rare, whether links connect
    all values, and which combinations to add.
    """
    if ordered:
        from recombine.basics.errors import require
        from recombine.coverage import ordered as chains

        require(report is None, "--ordered writes no report: leave out --report, or use --json")
        print_result(json_, *chains.answer(table, factors, separator, held_out, evidence))
        return
    from recombine.coverage.page import answer

    result, lines = answer(
        table,
        factors,
        suggest,
        report,
        separator,
        held_out,
        sets=sets,
        forbid=forbid or (),
        values=values or (),
        costs=costs,
        budget=budget,
        examples_needed=examples_needed,
    )
    print_result(json_, result, lines)
