"""The record: every claim with its verdict, as lines for the terminal and as one Markdown page.

Both are computed from the committed tables. The pictures on the page are the figures of the tables,
drawn by `benchmarks/pictures.py`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.basics import statistics
from recombine.basics.atomic_io import write_atomically
from recombine.basics.console import duration, warn
from recombine.basics.errors import InputError, require
from recombine.basics.suggest import counted
from recombine.experiments import catalogue, device_time
from recombine.experiments.claim import (
    AFTER_ROWS,
    HEADLINE,
    OTHER_SOURCE,
    OURS,
    PAPER,
    REPETITION,
    VERDICTS,
    has_too_few_seeds,
    makes_claims,
)
from recombine.experiments.device_time import Line
from recombine.experiments.ledger import ReportStep, frame_of, judge, ledger
from recombine.storage.table import Table

GROUPS = {  # how each group of claims is named, for one claim and for several
    HEADLINE: (f"claim of the paper ({PAPER})", f"claims of the paper ({PAPER})"),
    AFTER_ROWS: (
        "of its claims with a rule fixed after rows were seen (†)",
        "of its claims with a rule fixed after rows were seen (†)",
    ),
    REPETITION: (
        "repetition of such a claim in another experiment or setting",
        "repetitions of such claims in other experiments or settings",
    ),
    OTHER_SOURCE: ("claim of another source", "claims of other sources"),
    OURS: ("hypothesis or control of our own", "hypotheses and controls of our own"),
}
RANGE_LABELS = {
    statistics.RANGE: "single seeds",
    statistics.RANGE_WITHOUT_ONE: "without one seed",
    statistics.RANGE_OVER_PAIRS: "pairs of seeds",
}
ROUNDING_ERROR = 1e-9
VERDICT_WIDTH = 18  # terminal columns for the verdict
MIN_WIDTH = 60  # terminal columns: narrower terminals get lines of this width
INTRO = f"""\
# The record

Every claim with its published value, the value measured here, and the verdict. All numbers are
computed from the tables beside this page (`NAME.parquet`: every evaluation of every run).

Brackets show an interval over seeds. From 8 seeds on it is a 95% bootstrap interval. For 3 to 7
seeds it is the smallest and the largest value of *single seeds*. A statistic of all seeds together,
such as a correlation over students, may lie outside the values of single seeds; the text says so.
With fewer than 3 seeds no claim is judged. Counts, bounds and other numbers that do not depend on
seeds have no interval. A claim is judged on its value and on both ends of its interval.

| verdict | meaning |
|---|---|
| reproduced | published: the claim holds, and its control fails as it must |
| confounded | published: found as published, but a control that should fail explains it as well |
| not reproduced | published: the claim does not hold here |
| holds, does not hold | the same for hypotheses and controls of our own |
| inconclusive | the interval crosses the threshold |
| not judged | fewer than 3 seeds |
| not yet run | rows are missing |

The headline counts each claim of the paper ({PAPER}) once. Repetitions of a claim in another
experiment or setting, claims whose rule was fixed after rows were seen (marked †), claims of other
sources and our own are counted separately. A threshold is ours unless the claim says that it is
published. Every section names the training recipe of its runs. [faithful_recipe](#faithful_recipe)
tests whether the fast recipe trains networks like those of the paper's recipe.
[what-changed.md](what-changed.md) lists the verdicts that changed, with the reasons.
[bench.md](bench.md) has the training speed.

In a clone, the commands train nothing: they find the finished runs in the tables. Where a section
says that the command adds new runs, its table was made with an earlier recipe. To train again, omit
`--out` or name another path.
"""
END = (
    "Written by `recombine claims --page docs/results/README.md`; "
    "the pictures are drawn by `python benchmarks/pictures.py`.\n"
)


def read(
    names: Sequence[str], results: Path, report_step: ReportStep = lambda *_: None
) -> pd.DataFrame:
    """The ledger of these experiments (or files), or of all of ours."""
    for name in names:  # all of ours make claims
        _require_claims(name, catalogue.experiment(name))
    return ledger(names or catalogue.experiment_names(), results, report_step)


def run_and_judge(name: str, scale: str, quiet: bool = False) -> pd.DataFrame:
    """Train an experiment (or file) as `recombine run` does, and give its ledger."""
    from recombine.experiments.runner import Request, perform

    module = catalogue.experiment(name)
    _require_claims(name, module)  # before anything is trained
    request = Request(name, scale)
    result, _ = perform(request, quiet)
    if not quiet:  # otherwise `perform` has printed them
        for warning in result["warnings"]:
            warn(warning)
    return frame_of(judge(name, module, Table(request.path)))


def _require_claims(name: str, module: Any) -> None:
    message = (
        f"{name} makes no claims: add a list CLAIMS, as in recombine/experiments/quickstart.py"
    )
    require(makes_claims(module), message)


def lines(claims: Sequence[Line], width: int) -> list[str]:
    """The ledger as lines for a terminal of this width, by experiment, with totals at the end."""
    width = max(width, MIN_WIDTH)
    output: list[str] = []
    for name, group in device_time.claims_by_experiment(claims).items():
        first = group[0]
        for text in (f"{name}: {first['title']}", f"  {_table_text(first)}"):
            output.append(textwrap.fill(text, width, subsequent_indent="  "))
        output.append(f"  {first['command']}")
        output += [_terminal_item(claim, width) for claim in group]
        output.append("")
    total = f"{_tally(claims)}; device time: {device_time.device_time_text(claims)}"
    return [*output, textwrap.fill(total, width)]


def _terminal_item(claim: Line, width: int) -> str:
    texts = [_marked(claim), f"measured {measured_text(claim)}; {_published(claim)}"]
    if claim["source"]:
        texts.append(f"source: {claim['source']}")
    texts += _details(claim)
    text = "\n".join(textwrap.fill(text, width - VERDICT_WIDTH) for text in texts)
    indented = textwrap.indent(text, " " * VERDICT_WIDTH).lstrip()
    verdict = _verdict(claim)
    if len(verdict) > VERDICT_WIDTH - 3:
        indented = f"\n{' ' * VERDICT_WIDTH}{indented}"
    return f"  {verdict:<{VERDICT_WIDTH - 2}}{indented}"


def mark(figure: str) -> str:
    """The comment in a picture that identifies its figure (Plotly JSON)."""
    return f"<!-- figure {hashlib.sha256(figure.encode()).hexdigest()[:16]} -->"


def write(results: Path, out: Path, report_step: ReportStep = lambda *_: None) -> Path:
    """Write the page to a file."""
    text = page(results, report_step)
    try:
        return write_atomically(out, text.encode())
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot write the page to {out} ({reason}): name another file") from error


def page(
    results: Path,
    report_step: ReportStep = lambda *_: None,
    experiments: Mapping[str, Any] | None = None,
) -> str:
    """The record of these result tables, as Markdown. `experiments` are modules by name, by default
    all of ours.
    """
    names = catalogue.experiment_names()
    modules = experiments or {name: catalogue.experiment(name) for name in names}
    claims = ledger(experiments or names, results, report_step).to_dict("records")
    tables = {name: Table(results / f"{name}.parquet") for name in modules}
    sections = [
        _section(modules[name], tables[name], group)
        for name, group in device_time.claims_by_experiment(claims).items()
    ]
    time = device_time.section(claims, list(tables.values()))
    return "\n".join([INTRO, _verdicts(claims), time, *sections, END])


def _verdicts(claims: Sequence[Line]) -> str:
    """The section with all verdicts in one table."""
    table = [("experiment", "claim", "published", "measured", "verdict"), ("---",) * 5]
    for claim in claims:
        name = claim["experiment"]
        values = (_marked(claim), claim["published"], measured_text(claim), _verdict(claim))
        table.append((f"[{name}](#{name})", *map(escaped, values)))
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    return f"## Verdicts\n\n{_tally(claims)}.\n\n{text}\n"


def _section(module: Any, table: Table, claims: Sequence[Line]) -> str:
    """The section of one experiment."""
    first = claims[0]
    name = first["experiment"]
    sources = "; ".join(dict.fromkeys(claim["source"] for claim in claims))
    paragraphs = [
        f"## {name}",
        f"**{escaped(first['title'])}**",
        f"Claim: {escaped(_labeled(module.__doc__ or '').get('Claim', ''))}",
        f"{_table_text(first)}.\n```\n{first['command']}\n```",
    ]
    if first["recipe"]:
        warning = _dead_units_warning(first["recipe"], table)
        paragraphs.append(f"Recipe: {escaped(first['recipe'])}.{warning}")
    paragraphs.append("\n".join(map(_item, claims)))
    if first["runs"]:
        paragraphs += _left_out(module, table, first["scale"])
    paragraphs.append(f"Source: {escaped(sources)}")
    for figure_name, text in table.figures().items():
        paragraphs.append(f"![{escaped(_title(text))}]({name}-{figure_name}.svg)")
    return "\n\n".join(paragraphs) + "\n"


def _dead_units_warning(recipe: str, table: Table) -> str:
    """A warning if the recipe leaves many units dead and the table has no unit activity."""
    is_earlier = re.search(
        r"Fast\(learning_rate=0\.0[45], weight_decay=[\d.]+, vector_rate=1\)", recipe
    )
    if not is_earlier or any(str(column).startswith("activity/") for column in table.read()):
        return ""
    return (
        " With 4x1024 MLPs this earlier recipe leaves many units dead (see "
        "[faithful_recipe](#faithful_recipe)); unit activity was not measured here."
    )


def _left_out(module: Any, table: Table, scale: str) -> list[str]:
    """Paragraphs on the runs of a grid that are impossible, and on those that were not trained."""
    from recombine.sweeps.run import identity

    impossible = module.impossible(scale) if hasattr(module, "impossible") else []
    spared = module.spared(scale) if hasattr(module, "spared") else []
    paragraphs = [_impossible(impossible)] if impossible else []
    if spared:
        reason = (module.spared.__doc__ or "").strip().partition("\n")[0]
        num_trained = len(set(map(identity, spared)) & table.finished())
        trained = f" ({num_trained} of them are in the table all the same)" if num_trained else ""
        text = f"Left out to save time: {counted(len(spared), 'run')}{trained}. {escaped(reason)}"
        paragraphs.append(text.strip())
    return paragraphs


def _impossible(runs: Sequence[Any]) -> str:
    """The runs that no support can satisfy, by family, folded."""
    fractions: dict[str, set[float]] = {}
    for run in runs:
        family = f"K={run.family.num_hot}, M={run.family.num_modules}"
        fractions.setdefault(family, set()).add(run.frac_test)
    listed = "; ".join(
        f"{family}: {', '.join(f'{100 * value:.6g}%' for value in sorted(values))}"
        for family, values in fractions.items()
    )
    summary = (
        f"Impossible: {counted(len(runs), 'run')} with too few train tasks to connect the modules"
    )
    return f"<details><summary>{summary}</summary>\n\nFraction held out: {listed}.\n\n</details>"


def _item(claim: Line) -> str:
    """One claim as a list item."""
    value = "" if claim["verdict"] == "not yet run" else f": {measured_text(claim)}"
    texts = [f"{_marked(claim)}{value}", _published(claim), *_details(claim)]
    return f"- **{_verdict(claim)}**: {escaped('; '.join(texts))}"


def _details(claim: Line) -> list[str]:
    """The rule, the control and the note of a claim, and what is known about the rule."""
    texts = []
    if claim["threshold"]:
        whose = "published threshold" if claim["threshold_published"] else "threshold (ours)"
        texts.append(f"{whose}: {claim['threshold']}")
    texts += [f"{label}: {claim[label]}" for label in ("control", "note") if claim[label]]
    if claim["repeats"]:
        texts.append(f"repeats {claim['repeats']}")
    if claim["after_rows"]:
        texts.append(f"fixed after rows were seen: {claim['after_rows']}")
    return texts


def _verdict(claim: Line) -> str:
    """The verdict, with the reason why a claim is not judged."""
    if claim["verdict"] != "not judged":
        return claim["verdict"]
    too_few = has_too_few_seeds(claim["seeds"])
    reason = counted(claim["seeds"], "seed") if too_few else "no interval"
    return f"not judged ({reason})"


def _marked(claim: Line) -> str:
    """The statement, marked if the rule was fixed after rows were seen."""
    return claim["statement"] + (" †" if claim["after_rows"] else "")


def _table_text(line: Line) -> str:
    """Scale, device, date, number of runs and device time of a table."""
    if not line["runs"]:
        return "Not yet run"
    device = line["device"] or "unknown device"
    date = line["date"] or "no date"
    kind = "cell" if line["computed"] else "run"
    time = f"{duration(line['seconds'])} of device time"
    size = f"{counted(line['runs'], kind)}, {time}{_outdated(line, kind)}"
    return f"{line['scale'].capitalize()} scale, {device}, {date}: {size}"


def _outdated(line: Line, kind: str) -> str:
    """A remark if runs of the table are not those of the command."""
    if not line["outdated"]:
        return ""
    which = "" if line["outdated"] == line["runs"] else f"{line['outdated']} of them "
    return f"; {which}made with earlier settings; the command adds new {kind}s"


def _tally(claims: Sequence[Line]) -> str:
    """How many claims have which verdict; the headline counts each claim of the paper once."""
    texts = []
    for group, (name, names) in GROUPS.items():
        members = [claim for claim in claims if claim["group"] == group]
        if members:
            label = name if len(members) == 1 else names
            texts.append(f"{len(members)} {label}{_counts(members)}")
    return "; ".join(texts) or "no claims"


def _counts(claims: Sequence[Line]) -> str:
    counts = Counter(claim["verdict"] for claim in claims)
    text = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    return f": {text}" if text else ""


def _published(claim: Line) -> str:
    return claim["published"] if claim["ours"] else f"published: {claim['published']}"


def measured_text(claim: Line) -> str:
    """The measured value with its interval."""
    interval = claim["interval"]
    if not interval:
        return _number(claim["measured"])
    value = _number(claim["measured"])
    low, high = map(_number, interval)
    kind = claim["interval_kind"]
    if kind in ("", statistics.BOOTSTRAP):
        return f"{value} [{low}, {high}]"
    if kind not in RANGE_LABELS:
        return f"{value} [{kind}: {low} to {high}]"
    distance = max(min(interval) - claim["measured"], claim["measured"] - max(interval))
    pooled = " for all seeds together" if distance > ROUNDING_ERROR else ""
    return f"{value}{pooled} [{RANGE_LABELS[kind]}: {low} to {high}]"


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if round(abs(value), 4) < 1:
        return f"{value:.4f}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def _labeled(docstring: str) -> dict[str, str]:
    """The texts of a docstring by their labels: Claim, Command, Runtime, Expected."""
    blocks = re.split(r"\n(?=[A-Z]\w+:\s)|\n\s*\n", docstring)
    pairs = [block.strip().partition(":") for block in blocks]
    return {
        label: " ".join(text.split())
        for label, _, text in pairs
        if re.fullmatch(r"[A-Z]\w+", label)
    }


def _title(figure: str) -> str:
    title = json.loads(figure)["layout"].get("title", "")
    return title.get("text", "") if isinstance(title, dict) else title


def escaped(text: str) -> str:
    """Text for Markdown, in which only code in backticks has a meaning."""
    return re.sub(r"([|<*~])", r"\\\1", text)
