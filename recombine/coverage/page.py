"""Report the coverage of a table: lines for the terminal, and a self-contained HTML page."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.basics.suggest import counted
from recombine.coverage import figures
from recombine.coverage.advice import MIN_GAIN
from recombine.coverage.combinations import Source
from recombine.coverage.constraints import parse_declared
from recombine.coverage.coverage import Coverage
from recombine.reporting import page as report

CONDITIONS = {
    "compositional": "every value occurs",
    "connected": "shared combinations link all values",
    "balanced": "the values of a factor are in equally many combinations and examples",
    "spanned": "every missing combination is a linear combination of those in the table",
}
INTRODUCTION = (
    "The four conditions say whether the missing combinations can be inferred from those in the "
    "table. The list at the end says which combinations to add first."
)
GAIN = (
    "Expected gain: how much a suggestion lowers the expected drop in R² on the missing "
    "combinations, after the suggestions above it. It is based on students of hyperteacher tasks. "
    "Use it to compare suggestions, not to predict the score of your model."
)
NOTHING_TO_ADD = "Nothing to add."
NO_LINK = "not possible: every combination that links two groups is forbidden or held out"
NO_DIRECTION = "not possible: the combinations for it are forbidden or held out"
STOPPED = {  # why there are no more suggestions
    "gain": f"nothing else is worth adding: each further combination gains less than {MIN_GAIN:g}",
    "budget": "the budget is used up: every further combination costs more than what is left",
    "none": "no further combination can be added",
}
NUM_RAREST = 5  # values that the terminal lists
GOALS = {
    "connect": "to connect all values",
    "connect and span": "to connect and span all values",
    "lift": "to make rare values more frequent",
}


def answer(
    table: Source,
    factors: str,
    suggest: int = 20,
    out: Path | None = None,
    separator: str = ";",
    held_out: Path | None = None,
    *,
    sets: str | None = None,
    forbid: Sequence[str] = (),
    values: Sequence[str] = (),
    costs: str | None = None,
    budget: float | None = None,
    examples_needed: int | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Answer `recombine coverage`: the result as plain values, and as lines of text.

    `factors` and `sets` are column names with commas between them, `forbid` and `values` texts such
    as `shape=fish,action=fly`. With `out`, the page is written there.
    """
    columns = _names(factors)
    coverage = Coverage(
        table,
        columns,
        separator,
        held_out,
        sets=None if sets is None else _names(sets),
        forbid=forbid,
        values=parse_declared(values),
        costs=costs,
        examples_needed=examples_needed,
    )
    result = coverage.result(suggest, budget)
    if out is None:
        return result, lines(result)
    used_options = [("--forbid", text) for text in forbid] + [("--values", text) for text in values]
    used_options += [
        (option, str(value))
        for option, value in {
            "--sets": sets,
            "--held-out": held_out,
            "--costs": costs,
            "--budget": budget,
            "--examples-needed": examples_needed,
        }.items()
        if value is not None
    ]
    options = list(itertools.chain.from_iterable(used_options))
    path = write(coverage, result, out, Path(str(table)).name, options)
    return result | {"report": str(path)}, [*lines(result), f"Report: {path}"]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def lines(result: dict[str, Any]) -> list[str]:
    """The result as lines of text, for the terminal."""
    text = [_overview(result)]
    for name, meaning in CONDITIONS.items():
        detail = f" ({_imbalance(result)})" if name == "balanced" and not result[name] else ""
        text.append(f"{'yes' if result[name] else 'NO ':<4} {name}: {meaning}{detail}")
    rarest = [
        f"{entry['value']} ({entry['combinations']:,}, {entry['examples']:,})"
        for entry in result["rarest"][:NUM_RAREST]
    ]
    text.append(
        f"rarest values, with their numbers of combinations and examples: {', '.join(rarest)}"
    )
    suggestions = result["suggestions"]
    if suggestions:
        order = "the most helpful" if result["cost"] is None else "the highest gain per cost"
        text.append(f"combinations to add, {order} first, with the expected gain in R2:")
    names = [spell(suggestion["combination"]) for suggestion in suggestions]
    width = max(map(len, names), default=0)
    for name, suggestion in zip(names, suggestions, strict=True):
        details = [suggestion["why"]]
        if result["examples_needed"] > 1:
            details.append(f"{counted(suggestion['examples'], 'example')} to add")
        if "cost" in suggestion:
            details.append(f"costs {suggestion['cost']:g}")
        text.append(f"  {name:<{width}}  {suggestion['gain']:+8.2g}  {', '.join(details)}")
    notes = [f"note: {note}" for note in result["notes"]]
    return [*text, *optimality(result), *stopped(result), *notes]


def _imbalance(result: dict[str, Any]) -> str:
    """What is not balanced: combinations, examples, or both."""
    parts = []
    if not result["balanced_combinations"]:
        parts.append("not in combinations")
    if not result["balanced_examples"]:
        ratio = result["examples_ratio"]
        parts.append(f"not in examples: a value has {ratio:,.3g} times those of another")
    return ", ".join(parts)


def stopped(result: dict[str, Any]) -> list[str]:
    """Why there are no more suggestions, if fewer were made than asked for."""
    text = [STOPPED[result["stopped"]]] if result["stopped"] in STOPPED else []
    if text and not result["suggestions"]:
        text = [text[0].replace("nothing else", "nothing").replace("further ", "")]
    if result["cost"] is not None:
        text.append(f"all suggestions together cost {result['cost']:g}")
    return text


def _overview(result: dict[str, Any]) -> str:
    missing = result["missing"]
    return (
        f"{result['examples']:,} examples cover {result['combinations']:,} of {missing['of']:,} "
        f"possible combinations; {missing['count']:,} are missing"
    )


def spell(combination: dict[str, str] | list[str]) -> str:
    """A combination as one line of text."""
    values = combination.values() if isinstance(combination, dict) else combination
    return ", ".join(
        value if isinstance(value, str) else f"{{{', '.join(value)}}}" for value in values
    )


def optimality(result: dict[str, Any]) -> list[str]:
    """How close the suggestions are to the optimum: a line per goal that needs any."""
    text = []
    for goal in result["goals"]:
        bound = _bound_on_lift(goal) if goal["name"] == "lift" else _bound_on_number(goal)
        if bound is None:
            continue
        number = counted(goal["suggested"], "suggestion")
        if goal.get("cost") is not None and goal["suggested"]:
            number += f" for {goal['cost']:g}"
        if goal.get("possible", True):
            text.append(f"{GOALS[goal['name']]}: {number}, {bound}")
            continue
        reason = NO_LINK if goal["name"] == "connect" else NO_DIRECTION
        further = f"; {number} link some of the groups" if goal["suggested"] else ""
        text.append(f"{GOALS[goal['name']]}: {reason}{further}")
    return text


def _bound_on_lift(goal: dict[str, Any]) -> str | None:
    if not goal["suggested"]:
        return None
    if goal["optimal"]:
        return "optimal"
    percent = math.floor(1000 * goal["share"]) / 10  # rounded down: a bound must hold
    return f"at least {percent}% of the optimal gain"


def _bound_on_number(goal: dict[str, Any]) -> str | None:
    needed = goal["needed"]
    if not needed:
        return None
    if goal["optimal"]:
        return "the fewest possible" if goal.get("cost") is None else "the cheapest possible"
    if goal.get("cost") is not None and goal["met"]:
        return f"the least possible cost is at least {goal['min_cost']:g}"
    if goal["met"]:
        return f"at least {needed} are needed"
    return f"not enough: at least {needed} are needed"


def write(
    coverage: Coverage,
    result: dict[str, Any],
    out: Path,
    name: str = "a table",
    options: Sequence[str] = (),
) -> Path:
    """Write the page to a file and return its path."""
    return report.save(page(coverage, result, name, options), out)


def page(coverage: Coverage, result: dict[str, Any], name: str, options: Sequence[str] = ()) -> str:
    """The page as HTML. `name` is that of the table, `options` those of the command."""
    conditions = {
        f"{key}: {meaning}": "✓ yes" if result[key] else "✗ no"
        for key, meaning in CONDITIONS.items()
    }
    drawn = {
        "pairs": figures.pairs(coverage),
        "groups": figures.groups(coverage),
        "rarest": figures.rarest(result),
    }
    factors = ",".join(result["factors"])
    command = shlex.join(["recombine", "coverage", name, "--factors", factors, *options])
    notes = "; ".join(result["notes"]) or "none"
    imbalance = [] if result["balanced"] else [f"Not balanced: {_imbalance(result)}."]
    return report.render(
        title=f"Coverage of {name}",
        category="Recombine coverage",
        description=f"{_overview(result)}.\n\n{INTRODUCTION}",
        summary=conditions,
        notes=imbalance,
        figures={key: str(figure.to_json()) for key, figure in drawn.items()},
        heading="What to add",
        results=_suggestions(result),
        origin=f"<pre>{report.escape(command)}</pre>"
        + report.definition_list("facts", {"notes": notes}),
    )


def _suggestions(result: dict[str, Any]) -> str:
    """The suggestions as an HTML table, below how close they are to the optimum."""
    suggestions = result["suggestions"]
    sentences = [f"{line[0].upper()}{line[1:]}." for line in optimality(result) + stopped(result)]
    if not suggestions:
        return "".join(f"<p>{report.escape(each)}</p>" for each in [NOTHING_TO_ADD, *sentences])
    rows = [_cells(suggestion["combination"]) for suggestion in suggestions]
    reasons = [suggestion["why"] for suggestion in suggestions]
    gains = [float(f"{suggestion['gain']:.3g}") for suggestion in suggestions]
    frame = pd.DataFrame(rows)
    if result["examples_needed"] > 1:
        frame["examples to add"] = [suggestion["examples"] for suggestion in suggestions]
    if result["cost"] is not None:
        frame["cost"] = [float(f"{suggestion['cost']:.6g}") for suggestion in suggestions]
    frame = frame.assign(**{"why": reasons, "expected gain": gains})
    text = "".join(
        f'<p class="soft">{report.escape(sentence)}</p>' for sentence in [*sentences, GAIN]
    )
    order = "the most helpful" if result["cost"] is None else "the highest gain per cost"
    number = f"{counted(len(frame), 'suggestion')}, {order} first"
    return text + report.data_table(frame, "Combinations to add", number, "suggested")


def _cells(combination: dict[str, Any] | list[str]) -> dict[str, str]:
    """A combination as the cells of a table; a set is one cell."""
    if not isinstance(combination, dict):
        return {"concepts": spell(combination)}
    return {
        name: value if isinstance(value, str) else ", ".join(value)
        for name, value in combination.items()
    }
