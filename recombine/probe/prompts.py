"""Prompts from lists of concepts, with a table of their concepts and a split by combination.

    Prompts({"animal": ["cat", "dog", "owl", "fox"]}, "a photo of {a animal}", num_hot=2)

makes "a photo of a cat and an owl" and five others. In a template, `{animal}` is replaced by the
active concepts of that list, and `{a animal}` by the same with articles. A support of the lab
decides which combinations are held out, from 0/1 rows of all concepts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require
from recombine.basics.random_streams import generator
from recombine.parts.supports.random import Random

if TYPE_CHECKING:
    from recombine.parts.protocols import Support

MAX_COMBINATIONS = 20_000  # unless the user sets max_combinations
VOWELS = "aeiou"

Combination = tuple[str, ...]  # the active concepts, in the order of the lists


class Prompts:
    """All combinations with `num_hot` active concepts of every list, once per template.

    With `max_combinations`, a random sample of them. `num_hot` may be a dict with a number per
    list.

    The attributes `texts`, `factors`, `held_out` and `combinations` have one entry per prompt. A
    list with one active concept is one column of names in `factors`; any other list is a column of
    0 and 1 per concept.
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
            str(name): [str(concept) for concept in listed] for name, listed in concepts.items()
        }
        self.num_hot = {name: _num_hot_of(num_hot, name) for name in self.concepts}
        self.templates = [templates] if isinstance(templates, str) else list(templates)
        self._check_concepts()
        self._check_templates()
        rng = generator(seed, "prompts")
        candidates = self._make_combinations(max_combinations, rng)
        parts = (support or Random()).parts(self._binary_rows(candidates), rng, frac_test)
        # A support puts a combination into the train part (1), the test part (2) or neither (0).
        used = [candidate for candidate, part in zip(candidates, parts, strict=True) if part]
        is_held_out = parts[parts > 0] == 2
        self.combinations = np.arange(len(used)).repeat(len(self.templates))
        self.texts = [self._text(template, row) for row in used for template in self.templates]
        self.held_out = is_held_out[self.combinations]
        self.factors = self._factors(used).iloc[self.combinations].reset_index(drop=True)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def table(self) -> pd.DataFrame:
        """One table of everything: factors, texts, and which prompts are held out."""
        return self.factors.assign(text=self.texts, held_out=self.held_out)

    def _check_concepts(self) -> None:
        require(
            bool(self.concepts),
            "there is no list of concepts: provide one, for example {'animal': ['cat', 'dog']}",
        )
        for name, listed in self.concepts.items():
            num_hot = self.num_hot[name]
            require(
                1 <= num_hot <= len(listed),
                f"{num_hot} of {len(listed)} concepts of {name!r} cannot be active: set num_hot "
                f"from 1 to {len(listed)}",
            )
            require(
                len(set(listed)) == len(listed),
                f"{name!r} lists a concept twice: name each concept once",
            )
        columns = [column for name in self.concepts for column in self._columns(name)]
        for column in columns:
            require(
                columns.count(column) == 1,
                f"{column!r} is in two lists of concepts: rename one",
            )

    def _check_templates(self) -> None:
        require(
            bool(self.templates),
            "there is no template: provide one, for example 'a photo of {a animal}'",
        )
        for template in self.templates:
            slots = re.findall(r"{([^}]*)}", template)
            for name in self.concepts:
                require(
                    name in slots or f"a {name}" in slots,
                    f"the template {template!r} does not mention {{{name}}}: add it",
                )
            for slot in slots:
                require(
                    slot.removeprefix("a ") in self.concepts or slot in self.concepts,
                    f"the template {template!r} has the unknown slot {{{slot}}}: the lists are "
                    f"{', '.join(self.concepts)}",
                )

    def _columns(self, name: str) -> list[str]:
        """The columns of a list of concepts in the table of factors."""
        return [name] if self.num_hot[name] == 1 else self.concepts[name]

    def _make_combinations(
        self, max_combinations: int | None, rng: np.random.Generator
    ) -> list[Combination]:
        lists = [(listed, self.num_hot[name]) for name, listed in self.concepts.items()]
        total = math.prod(math.comb(len(listed), num_hot) for listed, num_hot in lists)
        if max_combinations is not None and max_combinations < total:
            require(
                max_combinations > 1,
                f"max_combinations must be at least 2, got {max_combinations}",
            )
            return _sample_combinations(lists, max_combinations, rng)
        require(
            total <= MAX_COMBINATIONS or max_combinations is not None,
            f"these concepts make {total:,} combinations: set max_combinations, for example to "
            f"{MAX_COMBINATIONS}",
        )
        choices = [itertools.combinations(listed, num_hot) for listed, num_hot in lists]
        return [tuple(itertools.chain(*choice)) for choice in itertools.product(*choices)]

    def _by_list(self, combination: Combination) -> dict[str, Combination]:
        """The active concepts of a combination, by list."""
        by_list = {}
        start = 0
        for name, num_hot in self.num_hot.items():
            by_list[name] = combination[start : start + num_hot]
            start += num_hot
        return by_list

    def _text(self, template: str, combination: Combination) -> str:
        text = template
        for name, active in self._by_list(combination).items():
            text = text.replace(f"{{{name}}}", _enumerate(active))
            articles = [with_article(concept) for concept in active]
            text = text.replace(f"{{a {name}}}", _enumerate(articles))
        return text

    def _factors(self, combinations: list[Combination]) -> pd.DataFrame:
        active = [self._by_list(combination) for combination in combinations]
        columns: dict[str, Any] = {}
        for name, num_hot in self.num_hot.items():
            if num_hot == 1:
                columns[name] = [by_list[name][0] for by_list in active]
            else:
                for concept in self.concepts[name]:
                    columns[concept] = [int(concept in by_list[name]) for by_list in active]
        return pd.DataFrame(columns)

    def _binary_rows(self, combinations: list[Combination]) -> np.ndarray:
        """0/1 rows of combinations x all concepts, for supports."""
        active = [self._by_list(combination) for combination in combinations]
        columns = [
            [concept in by_list[name] for by_list in active]
            for name, listed in self.concepts.items()
            for concept in listed
        ]
        return np.array(columns, np.int8).T


def judge(images: Iterable[Any], judging: Callable[[Any], Any], factors: Any) -> pd.DataFrame:
    """What a judge sees in every image, a column per factor, and whether the image `failed`.

    An image fails if any factor differs from the prompt's. `judging` is any function of an image
    that returns a dict of factors, or, for factors of 0 and 1, a list of those that are present.
    """
    asked = pd.DataFrame(factors).reset_index(drop=True)
    seen = [
        _check_judgment(judging(image), number, list(asked)) for number, image in enumerate(images)
    ]
    require(
        len(seen) == len(asked),
        f"there are {len(seen)} images and {len(asked)} rows of factors: provide one row per "
        "image, in the same order",
    )
    table = pd.DataFrame(seen, columns=asked.columns)
    differs = table.to_numpy(object) != asked.to_numpy(object)
    return table.assign(failed=np.any(differs, axis=1))


def _check_judgment(judgment: Any, number: int, names: list[Any]) -> dict[Any, Any]:
    """A judgment as a dict of all factors, in the order of their names."""
    if not isinstance(judgment, Mapping):
        require(
            isinstance(judgment, Iterable) and not isinstance(judgment, str),
            f"the judge returned {type(judgment).__name__} for image {number}: it must return a "
            "dict of factors, or a list of those that are present",
        )
        judgment = dict.fromkeys(names, 0) | dict.fromkeys(judgment, 1)
    for name in names:
        require(
            name in judgment,
            f"the judge returned no value of {name!r} for image {number}: its dict must name every "
            "factor",
        )
    for name in judgment:
        require(
            name in names,
            f"the judge returned the unknown factor {name!r}: the factors are "
            f"{', '.join(map(str, names))}",
        )
    return {name: judgment[name] for name in names}


def _num_hot_of(num_hot: int | Mapping[str, int], name: str) -> int:
    if not isinstance(num_hot, Mapping):
        return int(num_hot)
    if name not in num_hot:
        raise InputError(
            f"num_hot has no number for {name!r}: provide one for each list of concepts"
        )
    return int(num_hot[name])


def _sample_combinations(
    lists: list[tuple[list[str], int]], num: int, rng: np.random.Generator
) -> list[Combination]:
    """Distinct random combinations."""
    sampled: dict[Combination, None] = {}  # a dict keeps the order
    while len(sampled) < num:
        combination: list[str] = []
        for listed, num_hot in lists:
            chosen = np.sort(rng.choice(len(listed), num_hot, replace=False))
            combination += [listed[i] for i in chosen]
        sampled[tuple(combination)] = None
    return list(sampled)


def _enumerate(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def with_article(word: str) -> str:
    """A word with its indefinite article."""
    return f"{'an' if word[:1].lower() in VOWELS else 'a'} {word}"
