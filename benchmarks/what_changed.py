"""Write docs/results/what-changed.md: every verdict before and after, with the reason.

The verdicts before are in docs/results/verdicts-before.json: the claims of commit 8328f5a, and how
today's rules judge the tables of that commit (`rejudged`). The verdicts after are computed from the
committed tables. A change from `before` to `rejudged` is due to the rules, a change from `rejudged`
to `after` is due to the table or to the claim.

    python benchmarks/what_changed.py
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.experiments import catalogue, record
from recombine.experiments.ledger import ledger, results_folder, shown
from recombine.storage.table import Table

Line = Mapping[str, Any]
BEFORE = "verdicts-before.json"
PAGE = "what-changed.md"
# In the words of today. A control or question of our own had the words of published claims.
PUBLISHED_WORDS = {"better": "reproduced"}
OUR_WORDS = {"reproduced": "holds", "better": "holds", "not reproduced": "does not hold"}
# What may differ between the runs of one set: recipe, seed, evaluation and probes.
NOT_OF_A_SET = re.compile(r"(recipe|encoding_seed|.*/).*|run|step|seed|diagnostics|num_\w+")
LAYER = re.compile(r"/(code|pre\d+|hidden\d+|deepest|output)/")
INTRO = """\
# What changed

Every verdict of the record before and after, with the reason for each change. *Before* is the
record of commit 8328f5a, in the words of that time. *After* is [today's record](README.md), whose
page defines its words. Reasons:

- **word**: the same outcome has another name. Our own hypotheses *hold* or *do not hold*; only
  published claims are *reproduced* or not.
- **rule**: the same numbers are judged by another rule. Three to seven seeds are judged on their
  range, fewer than three not at all; an interval that crosses the threshold is *inconclusive*;
  "never falls" is a paired test with a margin of .005, corrected for the number of curves.
- **recipe**, **set**, **seeds**: the table was trained again by another recipe, with other runs
  (families, encodings, sizes, supports or held-out fractions), or with another number of seeds.
- **layer**: another layer or probe is judged.
- **claim**: its statement is another, or other numbers are judged by another threshold.
- **rows**: the table has new rows, although none of these changed.
"""
END = "Written by `python benchmarks/what_changed.py`.\n"


def name_of(claim: Line) -> str:
    """The experiment and the name of a claim."""
    return f"{claim['experiment']}: {claim['name']}"


def set_of(table: Table) -> str:
    """A hash of what was trained or computed, whatever the recipe and the seed."""
    rows = shown(table)
    columns = [column for column in rows if not NOT_OF_A_SET.fullmatch(str(column))]
    columns = [column for column in columns if rows[column].dtype.kind != "f"]
    if "frac_test" in rows:
        columns.append("frac_test")
    cells = sorted({repr(cell) for cell in rows[columns].astype(str).itertuples(index=False)})
    return hashlib.sha256("\n".join([*columns, *cells]).encode()).hexdigest()[:16]


def sets_of(results: Path) -> dict[str, str]:
    """The set of every experiment that has a table."""
    paths = {name: results / f"{name}.parquet" for name in catalogue.experiment_names()}
    return {name: set_of(Table(path)) for name, path in paths.items() if path.exists()}


def reasons(before: Line, after: Line, sets: tuple[str | None, str | None]) -> list[str]:
    """Why the verdict of a claim is another one. `sets` are those of its tables."""
    rejudged = before["rejudged"]
    words = OUR_WORDS if before["ours"] else PUBLISHED_WORDS
    same_outcome = words.get(before["verdict"], before["verdict"])
    why = []
    if rejudged["verdict"] != same_outcome:
        why.append(f"rule: {_rule(before)}")
    elif same_outcome != before["verdict"] and after["verdict"] == same_outcome:
        why.append("word")
    if after["verdict"] != rejudged["verdict"]:
        why += _table_reasons(before, after, sets)
    return why


def _rule(before: Line) -> str:
    """Which rule judges the same numbers otherwise."""
    rejudged = before["rejudged"]
    if before["name"] == "never falls":
        return "paired test with a margin"
    if rejudged["verdict"] == "not judged":
        return f"{rejudged['seeds']} seeds"
    if rejudged["verdict"] == "inconclusive":
        kind = rejudged["interval_kind"]
        return f"the {kind} crosses the threshold"
    return "judged on the range over seeds"


def _table_reasons(before: Line, after: Line, sets: tuple[str | None, str | None]) -> list[str]:
    """What differs between the table and the claim before and after."""
    rejudged = before["rejudged"]
    why = []
    if before["recipe"] != after["recipe"]:
        why.append("recipe")
    if sets[0] != sets[1]:
        why.append("set")
    if rejudged["seeds"] != after["seeds"]:
        why.append(f"seeds: {_count(rejudged['seeds'])} → {_count(after['seeds'])}")
    if _layers(rejudged["columns"]) != _layers(after["columns"]):
        why.append("layer")
    is_other_claim = before["statement"] != after["statement"] or before["ours"] != after["ours"]
    has_other_threshold = rejudged["threshold"] != after["threshold"]
    if has_other_threshold and not why and not is_other_claim and _same_number(before, after):
        return [f"rule: {after['threshold']}"]
    if is_other_claim or has_other_threshold:
        why.append("claim")
    return why or ["rows"]


def _same_number(before: Line, after: Line) -> bool:
    """Whether the same value was measured. The values before are rounded."""
    values = before["measured"], after["measured"]
    return None not in values and math.isclose(*values, rel_tol=1e-6, abs_tol=1e-9)


def _count(seeds: int | None) -> str:
    return "none" if seeds is None else str(seeds)


def _layers(columns: Sequence[str]) -> set[str]:
    return {layer for column in columns for layer in LAYER.findall(column)}


def page(before: Mapping[str, Any], after: Sequence[Line], sets: Mapping[str, str]) -> str:
    """The page as Markdown."""
    claims_before = {name_of(claim): claim for claim in before["claims"]}
    claims_after = {name_of(claim): claim for claim in after}
    changed, same = [], []
    for name, claim in claims_after.items():
        if name in claims_before:
            earlier = claims_before[name]
            experiment = claim["experiment"]
            why = reasons(earlier, claim, (before["sets"].get(experiment), sets.get(experiment)))
            line = _row(name, earlier, claim, why)
            (changed if set(why) - {"word"} else same).append(line)
    new = [name for name in claims_after if name not in claims_before]
    gone = [name for name in claims_before if name not in claims_after]
    sections = [
        INTRO,
        _totals(before["claims"], after),
        f"## Verdicts that changed: {len(changed)}\n\n{_table(changed)}",
    ]
    if new:
        items = "\n".join(f"- {name}: {_outcome(claims_after[name])}" for name in new)
        sections.append(f"## New claims: {len(new)}\n\n{items}\n")
    if gone:
        items = "\n".join(f"- {name}: {_outcome(claims_before[name])}" for name in gone)
        sections.append(f"## Claims that are gone: {len(gone)}\n\n{items}\n")
    sections += [f"## The same verdict, at most another word: {len(same)}\n\n{_table(same)}", END]
    return "\n".join(sections)


def _totals(before: Sequence[Line], after: Sequence[Line]) -> str:
    """How many claims had and have which verdict."""
    texts = []
    for label, claims in (("Before", before), ("After", after)):
        counts = Counter(claim["verdict"] for claim in claims).most_common()
        listed = ", ".join(f"{count} {verdict}" for verdict, count in counts)
        texts.append(f"{label}: {len(claims)} claims: {listed}.")
    return "\n\n".join(texts) + "\n"


def _row(name: str, before: Line, after: Line, why: Sequence[str]) -> tuple[str, ...]:
    return (name, _outcome(before), _outcome(after), "; ".join(why) or "-")


def _outcome(claim: Line) -> str:
    """The verdict of a claim with its number."""
    if claim["verdict"] == "not yet run":
        return claim["verdict"]
    return f"{claim['verdict']}: {record.measured_text({'interval_kind': '', **claim})}"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    lines = [("claim", "before", "after", "reason"), ("---",) * 4, *rows]
    return "\n".join(f"| {' | '.join(map(record.escaped, line))} |" for line in lines) + "\n"


def load(results: Path) -> dict[str, Any]:
    """The verdicts before."""
    return json.loads((results / BEFORE).read_text())


def write(results: Path) -> Path:
    """Write the page from the tables in a folder."""
    frame: pd.DataFrame = ledger(catalogue.experiment_names(), results)
    path = results / PAGE
    path.write_text(page(load(results), frame.to_dict("records"), sets_of(results)))
    return path


if __name__ == "__main__":
    print(write(results_folder()))
