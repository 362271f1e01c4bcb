"""The record: every claim with its verdict, as lines for the terminal and as one page for readers.

Both are computed from the committed tables, so neither can disagree with them. The page shows the tables' figures as
the pictures beside it, which `benchmarks/pictures.py` draws.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.basics.atomic_io import replace
from recombine.basics.console import duration, warn
from recombine.basics.errors import InputError, require
from recombine.basics.suggest import counted
from recombine.experiments import catalogue, device_time
from recombine.experiments.claim import COLUMNS, Tell, judge, ledger
from recombine.experiments.device_time import Line
from recombine.storage.table import Table

VERDICTS = ("reproduced", "better", "confounded", "not reproduced", "not yet run")
MARGIN = 18  # columns, for the verdict
NARROWEST = 60  # columns: below that, wrapped lines tell less than cut ones
INTRO = """\
# The record

What was published, what was measured here, and the verdict. All numbers are computed from the tables beside this page
(`NAME.parquet`, every evaluation of every run). Brackets show 95% bootstrap intervals over seeds, unless the claim says
otherwise. With three seeds, as most have, that is the range from the smallest value to the largest, which holds the
median of all seeds three times in four, no more. Most claims are judged by their whole interval.
- *reproduced*: the claim was found, and its control came out as it must;
- *better*: more than that was found;
- *confounded*: found as published, but a control that should fail explains it nearly as well;
- *not reproduced*: otherwise.

Controls and questions of our own, about which nothing was published (*ours*), get the same verdicts and are counted
separately. Every section names the training recipe of its runs. [faithful_recipe](#faithful_recipe) tests whether the
fast recipe trains networks like those of the paper's recipe. How fast single runs are: [bench.md](bench.md).

In a clone the commands train nothing: they find every run in its table, unless it is said that they make new ones. To
train anew, leave out `--out` or name another.
"""
END = "Written by `recombine claims --page docs/results/README.md`; the pictures by `python benchmarks/pictures.py`.\n"


def read(names: Sequence[str], results: Path, tell: Tell = lambda *_: None) -> pd.DataFrame:
    """The ledger of these experiments (or files), or of all of ours."""
    return ledger(_experiments(names), results, tell)


def run_and_judge(name: str, scale: str, quiet: bool = False) -> pd.DataFrame:
    """Train an experiment (or file) as `recombine run` does, and give its ledger."""
    from recombine.experiments.runner import Order, perform

    (module,) = _experiments(
        [name]
    ).values()  # what makes no claims is refused before it is trained
    order = Order(name, scale)
    result, _ = perform(order, quiet)
    if not quiet:  # otherwise `perform` has printed them
        for warning in result["warnings"]:
            warn(warning)
    return pd.DataFrame(judge(name, module, Table(order.place)), columns=list(COLUMNS))


def _experiments(names: Sequence[str] = ()) -> dict[str, Any]:
    found = {name: catalogue.experiment(name) for name in names or catalogue.experiment_names()}
    for name in names:
        told = f"{name} makes no claims: it needs a function claims(rows), as in recombine/experiments/quickstart.py"
        require(hasattr(found[name], "claims"), told)
    return found


def lines(found: Sequence[Line], width: int) -> list[str]:
    """The ledger's lines for a terminal of this width: experiment by experiment, and what it comes to."""
    told, width = [], max(width, NARROWEST)
    for name, claims in device_time.by_experiment(found).items():
        first = claims[0]
        title, about = f"{name}: {first['title']}", f"  {_made(first)}"
        told += [textwrap.fill(text, width, subsequent_indent="  ") for text in (title, about)]
        told.append(f"  {first['command']}")
        for claim in claims:
            texts = [claim["statement"], f"measured {_measured(claim)}; {_published(claim)}"]
            texts += [
                f"source: {claim['source']}",
                *([f"control: {claim['control']}"] if claim["control"] else []),
            ]
            texts += [f"note: {claim['note']}"] if claim["note"] else []
            text = "\n".join(textwrap.fill(text, width - MARGIN) for text in texts)
            told.append(
                f"  {claim['verdict']:<{MARGIN - 2}}" + textwrap.indent(text, " " * MARGIN).lstrip()
            )
        told.append("")
    return [*told, textwrap.fill(f"{_tally(found)}; device time: {device_time.took(found)}", width)]


def mark(figure: str) -> str:
    """The comment by which a picture tells of which figure (Plotly JSON) it is."""
    return f"<!-- figure {hashlib.sha256(figure.encode()).hexdigest()[:16]} -->"


def write(results: Path, out: Path, tell: Tell = lambda *_: None) -> Path:
    """Write the page to a file."""
    text = page(results, tell)
    try:
        return replace(out, text.encode())
    except OSError as error:
        raise InputError(
            f"cannot write the page to {out} ({error.strerror or error}): name another file"
        ) from error


def page(results: Path, tell: Tell = lambda *_: None) -> str:
    """The record of these result tables, as Markdown."""
    modules = _experiments()
    found = ledger(modules, results, tell).to_dict("records")
    tables = {name: Table(results / f"{name}.parquet") for name in modules}
    sections = [
        _section(modules[name], tables[name], claims)
        for name, claims in device_time.by_experiment(found).items()
    ]
    return "\n".join(
        [INTRO, _verdicts(found), device_time.section(found, list(tables.values())), *sections, END]
    )


def _verdicts(found: Sequence[Line]) -> str:
    told = [("experiment", "claim", "published", "measured", "verdict"), ("---",) * 5]
    for claim in found:
        name, texts = (
            claim["experiment"],
            (claim["statement"], claim["published"], _measured(claim), claim["verdict"]),
        )
        told.append((f"[{name}](#{name})", *map(_safe, texts)))
    table = "\n".join(f"| {' | '.join(line)} |" for line in told)
    return f"## Verdicts\n\n{_tally(found)}.\n\n{table}\n"


def _section(module: Any, table: Table, claims: Sequence[Line]) -> str:
    about, first = _labelled(module.__doc__ or ""), claims[0]
    name = first["experiment"]
    paragraphs = [
        f"## {name}",
        f"**{_safe(first['title'])}**",
        f"Claim: {_safe(about.get('Claim', ''))}",
    ]
    paragraphs += [f"{_made(first)}.\n```\n{first['command']}\n```"]
    if first["recipe"]:
        measured = any(str(column).startswith("activity/") for column in table.read())
        warning = "" if measured else _dead_units_warning(first["recipe"])
        paragraphs.append(f"Recipe: {_safe(first['recipe'])}.{warning}")
    paragraphs.append("\n".join(map(_item, claims)))
    paragraphs += _left_out(module, table, first["scale"]) if first["runs"] else []
    paragraphs.append(
        f"Source: {_safe('; '.join(dict.fromkeys(claim['source'] for claim in claims)))}"
    )
    if first["runs"] and "Measured" in about:
        paragraphs.append(f"Measured: {_safe(about['Measured'])}")
    paragraphs += [
        f"![{_safe(_title(text))}]({name}-{figure}.svg)" for figure, text in table.figures().items()
    ]
    return "\n\n".join(paragraphs) + "\n"


def _dead_units_warning(recipe: str) -> str:
    """A warning where a recipe is one that leaves many units dead."""
    if not re.search(r"Fast\(learning_rate=0\.0[45], weight_decay=[\d.]+, vector_rate=1\)", recipe):
        return ""
    return (
        " With 4x1024 MLPs this earlier recipe leaves many units dead (see [faithful_recipe](#faithful_recipe)); here "
        "unit activity was not measured."
    )


def _left_out(module: Any, table: Table, scale: str) -> list[str]:
    """The runs of a grid that an experiment does not ask for: what cannot be, and what it spares itself."""
    from recombine.sweeps.run import identity

    impossible, spared = (
        getattr(module, name, lambda _: [])(scale) for name in ("impossible", "spared")
    )
    told = [_impossible(impossible)] if impossible else []
    if spared:
        why = (module.spared.__doc__ or "").strip().partition("\n")[0]
        trained = len(set(map(identity, spared)) & table.finished())
        kept = f", of which the table has {trained} all the same" if trained else ""
        told.append(f"Spared: {len(spared)} runs{kept}. {_safe(why)}".strip())
    return told


def _impossible(runs: Sequence[Any]) -> str:
    """The runs that no support can satisfy, by their family, to be unfolded."""
    cells: dict[str, set[float]] = {}
    for run in runs:
        cells.setdefault(f"K={run.family.num_hot}, M={run.family.num_modules}", set()).add(
            run.frac_test
        )
    listed = "; ".join(
        f"{name}: {', '.join(f'{100 * frac:.6g}%' for frac in sorted(of))}"
        for name, of in cells.items()
    )
    told = f"Impossible, and left out: {len(runs)} runs, whose train tasks are too few to connect the modules"
    return f"<details><summary>{told}</summary>\n\nShare held out: {listed}.\n\n</details>"


def _item(claim: Line) -> str:
    found = "" if claim["verdict"] == "not yet run" else f": {_measured(claim)}"
    control = f"; control: {claim['control']}" if claim["control"] else ""
    note = f"; note: {claim['note']}" if claim["note"] else ""
    text = f"{claim['statement']}{found}; {_published(claim)}{control}{note}"
    return f"- **{claim['verdict']}**: {_safe(text)}"


def _made(line: Line) -> str:
    """How the table of a line was made."""
    if not line["runs"]:
        return "Not yet run"
    made = f"{line['scale'].capitalize()} scale, {line['device'] or 'unknown device'}, {line['date'] or 'no date'}"
    kind = "cell" if line["computed"] else "run"
    took = f"{duration(line['seconds'])} of device time"
    return f"{made}: {counted(line['runs'], kind)}, {took}{_outdated(line, kind)}"


def _outdated(line: Line, kind: str) -> str:
    """That runs are not the ones that the command makes, where it is so."""
    if not line["outdated"]:
        return ""
    which = "" if line["outdated"] == line["runs"] else f"{line['outdated']} of them "
    told = f"made with other settings than today's; the command makes new {kind}s beside these"
    return f"; {which}{told}"


def _tally(found: Sequence[Line]) -> str:
    """How many claims came out how: those of others, and apart from them those of which nothing was published."""
    theirs, ours = ([claim for claim in found if claim["ours"] is mine] for mine in (False, True))
    told = (
        [f"{len(theirs)} published claim{'s' * (len(theirs) != 1)}{_counts(theirs)}"]
        if theirs or not ours
        else []
    )
    kind = "control or question" if len(ours) == 1 else "controls and questions"
    return "; ".join([*told, *([f"{len(ours)} {kind} of our own{_counts(ours)}"] if ours else [])])


def _counts(found: Sequence[Line]) -> str:
    counts = Counter(claim["verdict"] for claim in found)
    told = ", ".join(f"{counts[word]} {word}" for word in VERDICTS if counts[word])
    return f": {told}" if told else ""


def _published(claim: Line) -> str:
    return claim["published"] if claim["ours"] else f"published: {claim['published']}"


def _measured(claim: Line) -> str:
    """Our number with its interval."""
    spread = f" [{', '.join(map(_number, claim['interval']))}]" if claim["interval"] else ""
    return _number(claim["measured"]) + spread


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return (
        f"{value:.4f}"
        if round(abs(value), 4) < 1
        else f"{value:.3f}"
        if abs(value) < 100
        else f"{value:,.0f}"
    )


def _labelled(text: str) -> dict[str, str]:
    """What a docstring says under its labels: Claim, Command, Runtime, Expected, Measured."""
    blocks = re.split(r"\n(?=[A-Z]\w+:\s)|\n\s*\n", text)
    pairs = [block.strip().partition(":") for block in blocks]
    return {
        label: " ".join(told.split())
        for label, _, told in pairs
        if re.fullmatch(r"[A-Z]\w+", label)
    }


def _title(figure: str) -> str:
    title = json.loads(figure)["layout"].get("title", "")
    return title.get("text", "") if isinstance(title, dict) else title


def _safe(text: str) -> str:
    """Text in which nothing but code in backticks is Markdown."""
    return re.sub(r"([|<*~])", r"\\\1", text)
