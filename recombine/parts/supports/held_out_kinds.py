"""Facts are all trained, and a part of what follows from them: is the rest inferred?

Families with facts offer the view `kinds`: facts alone, pairs of facts that may be used together,
mixed pairs, and pairs of facts that are apart. Source: Wang et al. 2024 (arXiv 2405.15071).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from recombine.basics.errors import require
from recombine.parts.conditions import mark
from recombine.parts.field_checks import check


@dataclass(frozen=True)
class HeldOutKinds:
    """All facts are train. Of the pairs, the fraction `frac_test` is test.

    Pairs of facts that are apart are all test. Mixed pairs are not used.
    """

    view: ClassVar[str] = "kinds"
    guarantees: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self):
        check(self)

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test, 0 unused.

        `modules` are the 0/1 rows of kinds: facts first, then pairs; apart are the last. If a row
        has several kinds, its first one counts.
        """
        kind = (modules > 0).argmax(axis=1)
        facts = np.flatnonzero(kind == 0)
        pairs = rng.permutation(np.flatnonzero(kind == 1))
        require(
            len(facts) > 0 and len(pairs) > 0,
            "HeldOutKinds needs facts and pairs of them: choose TwoHop(facts=True)",
        )
        apart = np.flatnonzero(kind == modules.shape[1] - 1)
        num_held_out = round(frac_test * len(pairs))
        train = np.concatenate([facts, pairs[num_held_out:]])
        test = np.concatenate([pairs[:num_held_out], apart])
        return mark(len(modules), train, test)
