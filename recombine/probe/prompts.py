"""Prompts from lists of concepts, with the table of what is in each, and a split by combination; judges of images.

    Prompts({"animal": ["cat", "dog", "owl", "fox"]}, "a photo of {a animal}", num_hot=2)

makes "a photo of a cat and an owl" and five others. In a template `{animal}` is the concepts of a list that are hot,
and `{a animal}` the same with articles. Which combinations are held out is decided by a support of the lab, on 0/1 rows
of all concepts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require
from recombine.basics.random_streams import generator
from recombine.parts.protocols import Support
from recombine.parts.supports.random import Random

MOST = 20_000  # combinations that are listed without being asked for
VOWELS = "aeiou"


class Prompts:
    """All combinations of concepts with `num_hot` of every list, or `max_combinations` of them, once for each template.

    `texts`, `factors` (a column of names for a list of which one is hot, else a column of 0 and 1 for each concept),
    `held_out` and `combinations` have an entry for each prompt. `num_hot` may be a number for each list.
    """

    def __init__(
        self,
        concepts: Mapping[str, Sequence[str]],
        templates: str | Sequence[str],
        num_hot: int | Mapping[str, int] = 1,
        *,
        support: Support | None = None,
        frac_test: float = 0.25,
        max_combinations: int | None = None,
        seed: int = 0,
    ):
        self.concepts = {
            str(name): [str(one) for one in listed] for name, listed in concepts.items()
        }
        self.num_hot = {name: _number(num_hot, name) for name in self.concepts}
        self.templates = [templates] if isinstance(templates, str) else list(templates)
        self._check()
        rng = generator(seed, "prompts")
        rows = self._rows(max_combinations, rng)
        parts = (support or Random()).parts(_hot(rows, self.concepts, self.num_hot), rng, frac_test)
        rows, parts = [row for row, part in zip(rows, parts, strict=True) if part], parts[parts > 0]
        pairs = [(number, template) for number in range(len(rows)) for template in self.templates]
        self.combinations = np.array([number for number, _ in pairs])
        self.texts = [self._text(template, rows[number]) for number, template in pairs]
        self.held_out = np.array([parts[number] == 2 for number, _ in pairs])
        self.factors = self._factors(rows).iloc[self.combinations].reset_index(drop=True)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def table(self) -> pd.DataFrame:
        """Everything in one table: the text, whether its combination is held out, and its factors."""
        return self.factors.assign(text=self.texts, held_out=self.held_out)

    def _check(self) -> None:
        require(
            bool(self.concepts),
            "there is no list of concepts: give one, {'animal': ['cat', 'dog']} say",
        )
        for name, listed in self.concepts.items():
            hot = self.num_hot[name]
            told = f"{hot} of {len(listed)} concepts of {name!r} cannot be hot"
            require(1 <= hot <= len(listed), f"{told}: choose num_hot from 1 to {len(listed)}")
            require(
                len(set(listed)) == len(listed), f"a concept is twice in {name!r}: name each once"
            )
        columns = [column for name in self.concepts for column in self._columns(name)]
        twice = next((column for column in columns if columns.count(column) > 1), None)
        require(twice is None, f"{twice!r} is in two lists of concepts: rename one")
        require(bool(self.templates), "there is no template: give one, 'a photo of {a animal}' say")
        for template, name in itertools.product(self.templates, self.concepts):
            found = re.search(rf"{{(a )?{re.escape(name)}}}", template)
            require(
                found is not None,
                f"the template {template!r} does not mention {{{name}}}: put it in",
            )
        known = {f"{article}{name}" for name in self.concepts for article in ("", "a ")}
        for template in self.templates:
            strange = [slot for slot in re.findall(r"{([^}]*)}", template) if slot not in known]
            remedy = f"there are {', '.join(self.concepts)}"
            require(
                not strange, f"the template {template!r} has {{{''.join(strange[:1])}}}: {remedy}"
            )

    def _columns(self, name: str) -> list[str]:
        return [name] if self.num_hot[name] == 1 else self.concepts[name]

    def _rows(self, most: int | None, rng: np.random.Generator) -> list[tuple[str, ...]]:
        """Combinations as tuples of the concepts that are hot, in the order of the lists."""
        lists = [(listed, self.num_hot[name]) for name, listed in self.concepts.items()]
        total = math.prod(math.comb(len(listed), hot) for listed, hot in lists)
        if most is None or most >= total:
            told = f"these concepts make {total:,} combinations"
            require(
                total <= MOST or most is not None,
                f"{told}: set max_combinations, to {MOST} at most say",
            )
            choices = itertools.product(
                *(itertools.combinations(listed, hot) for listed, hot in lists)
            )
            return [tuple(itertools.chain(*choice)) for choice in choices]
        require(most > 1, f"max_combinations must be at least 2, got {most}")
        rows: dict[tuple[str, ...], None] = {}
        while len(rows) < most:
            places = [np.sort(rng.choice(len(listed), hot, replace=False)) for listed, hot in lists]
            row = (lists[i][0][place] for i, chosen in enumerate(places) for place in chosen)
            rows[tuple(row)] = None
        return list(rows)

    def _text(self, template: str, row: tuple[str, ...]) -> str:
        start, text = 0, template
        for name, hot in self.num_hot.items():
            chosen = list(row[start : start + hot])
            start += hot
            text = text.replace(f"{{{name}}}", _listing(chosen))
            text = text.replace(f"{{a {name}}}", _listing([article(one) for one in chosen]))
        return text

    def _factors(self, rows: list[tuple[str, ...]]) -> pd.DataFrame:
        columns: dict[str, Any] = {}
        start = 0
        for name, hot in self.num_hot.items():
            chosen = [row[start : start + hot] for row in rows]
            if hot == 1:
                columns[name] = [one for (one,) in chosen]
            else:
                columns |= {
                    one: [int(one in of_row) for of_row in chosen] for one in self.concepts[name]
                }
            start += hot
        return pd.DataFrame(columns)


def judge(images: Iterable[Any], judging: Callable[[Any], Any], factors: Any) -> pd.DataFrame:
    """What a judge sees in every image, a column for each factor, and `failed`: whether any is not as it was asked.

    A judge is any function of an image that gives a dict of factors, or a list of those present where they are 0 and 1.
    """
    asked = pd.DataFrame(factors).reset_index(drop=True)
    seen = []
    for number, image in enumerate(images):
        found = judging(image)
        if not isinstance(found, Mapping):
            require(
                not isinstance(found, str) and isinstance(found, Iterable), _strange(number, found)
            )
            found = dict.fromkeys(asked, 0) | dict.fromkeys(found, 1)
        missing = [name for name in asked if name not in found]
        strange = [name for name in found if name not in asked]
        told = f"the judge says nothing of {missing[:1]} for image {number}"
        require(not missing, f"{told}: a dict must name every factor")
        require(
            not strange,
            f"the judge tells of {strange[:1]}, which was not asked: there are {', '.join(asked)}",
        )
        seen.append({name: found[name] for name in asked})
    told = f"there are {len(seen)} images and {len(asked)} rows of factors"
    require(len(seen) == len(asked), f"{told}: give one row for each image, in the same order")
    table = pd.DataFrame(seen, columns=asked.columns)
    return table.assign(failed=np.any(table.to_numpy(object) != asked.to_numpy(object), axis=1))


def _strange(number: int, found: Any) -> str:
    told = f"the judge gave {type(found).__name__} for image {number}"
    return f"{told}: it must give a dict of factors, or a list of those that it sees"


def _number(num_hot: int | Mapping[str, int], name: str) -> int:
    if isinstance(num_hot, Mapping) and name not in num_hot:
        raise InputError(f"num_hot has no number for {name!r}: give one for each list of concepts")
    return int(num_hot[name] if isinstance(num_hot, Mapping) else num_hot)


def _hot(
    rows: list[tuple[str, ...]], concepts: Mapping[str, Sequence[str]], num_hot: Mapping[str, int]
) -> np.ndarray:
    """0/1 rows of all concepts: what supports read."""
    start, columns = 0, []
    for name, listed in concepts.items():
        chosen = [row[start : start + num_hot[name]] for row in rows]
        columns += [[one in of_row for of_row in chosen] for one in listed]
        start += num_hot[name]
    return np.array(columns, np.int8).T


def _listing(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def article(word: str) -> str:
    """A word with its indefinite article."""
    return f"{'an' if word[:1].lower() in VOWELS else 'a'} {word}"
