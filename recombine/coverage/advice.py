"""What to add to a train set: the fewest combinations that connect and span it, then those that lift rare modules.

connect  A combination joins at most K groups, so C groups take (C-1)/(K-1) combinations or more, and as many as a
         factor has unseen values. Always joining those of which most are left reaches that number.
span     A combination adds at most one direction. Each that is taken adds one, so no fewer could do.
lift     Each takes the largest step down a sum of convex terms, one per module. If every factor could choose its values
         by itself, the best would be the largest single steps: what is reached is told as a share of that.

Where combinations must not be suggested (held out), a bound may be missed; then it is told, too. In the lab, what
connects, what lifts and what tells modules apart that only occur together beats chance; one pair that spans, where
pairs link two sides only, does not (experiments/coverage_advice.py).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from recombine.coverage.outlook import Outlook, Trained, rarity
from recombine.parts.conditions import stamps

POOL = (
    20_000  # combinations that a step looks at: all, or those of the modules that would gain most
)
TWINS = 4  # trained combinations whose twins it looks at, too: the twins of one are enough to find what spans
TRIES = 4_096  # ways to join the same groups, where some must not be suggested
ORDERS = 64  # ways to give these groups factors, each with so many tries
RANKED = 32  # suggestions whose order is exact; of more, gains that have grown since they were computed are missed


class Suggestion(NamedTuple):
    """A combination to add, and what it does after those before it."""

    code: np.ndarray
    gain: float  # by how much it lowers the expected drop
    joins: int  # groups
    spans: bool
    rarest: int  # its module of which there are fewest


class Goal(NamedTuple):
    """How far suggestions go, and how near that is to the best that could be done."""

    name: str
    suggested: int
    needed: int  # no fewer could reach the goal
    met: bool
    share: float  # reached, of a bound that no choice can pass

    @property
    def optimal(self) -> bool:
        """Whether no other combinations could do better."""
        return self.met and self.suggested == self.needed and self.share > 1 - 1e-9


class Advice(NamedTuple):
    """Suggestions, those first that help most, and what they reach."""

    suggestions: list[Suggestion]
    goals: list[Goal]
    drop: float  # expected as it stands
    left: float  # expected with all suggestions


class Adviser:
    """Looks for combinations to add that are neither trained nor held out."""

    def __init__(
        self, trained: Trained, together: np.ndarray, codes: np.ndarray, held_out: np.ndarray
    ):
        self.trained, self.together, self.codes = trained, together.copy(), codes
        self.outlook = Outlook(trained, len(codes))
        self.stamps = np.append(stamps(len(together)), np.uint64(0))  # -1 is the last one: nothing
        self.taken = np.concatenate([self._print(codes), self._print(held_out)])

    def advise(self, num: int) -> Advice:
        """At most `num` combinations: connect first, then span, then lift."""
        start, added, ends, reached = self.trained, [], [], [self.trained]
        for step in (self._link, self._span, self._lift):
            while len(added) < num and (code := step()) is not None:
                added.append(self._take(code))
                reached.append(self.trained)
            ends.append(len(added))
        linked = [len(trained.groups()) == 1 for trained in reached]
        whole = [one and trained.lacking <= 0 for one, trained in zip(linked, reached, strict=True)]
        # What spans may be what links, where all that would link more is held out.
        num_connect, num_span = (
            a.index(True) if True in a else end
            for a, end in zip((linked, whole), ends, strict=False)
        )
        joined, num_lift = least(start), len(added) - ends[1]
        goals = [
            Goal("connect", num_connect, joined, linked[-1], 1.0),
            Goal("connect and span", num_span, max(joined, start.lacking), whole[-1], 1.0),
            Goal("lift", num_lift, num_lift, True, self._reached(reached[ends[1]], num_lift)),
        ]
        return Advice(
            list(self._ranked(start, added)),
            goals,
            self.outlook.drop(start),
            self.outlook.drop(self.trained),
        )

    def _print(self, codes: np.ndarray) -> np.ndarray:
        return self.stamps[codes].sum(axis=1, dtype=np.uint64)

    def _free(self, codes: np.ndarray) -> np.ndarray:
        return codes[~np.isin(self._print(codes), self.taken)]

    def _take(self, code: np.ndarray) -> np.ndarray:
        held = code[code >= 0]
        self.trained = self.trained.plus(code)
        self.together[np.ix_(held, held)] += 1
        self.taken = np.append(self.taken, self._print(code[None]))
        return code

    def _link(self) -> np.ndarray | None:
        """A combination that joins as many groups as it can; none where all are joined, or none is free."""
        space, lift = self.trained.space, self._gain()
        main, *others = self.trained.groups()
        kinds = [space.kind(group) for group in others]
        left = Counter(kind for kind in kinds if kind >= 0)
        order = sorted(
            range(len(others)), key=lambda place: (-max(left[kinds[place]], 1), -len(others[place]))
        )
        chosen: list[int] = []
        for place in order:
            rival = kinds[place] >= 0 and kinds[place] in [kinds[other] for other in chosen]
            if len(chosen) < space.most - 1 and not rival:
                chosen.append(place)
        for places in (chosen, *([place] for place in order)) if others else ():
            ways = space.slots([others[place] for place in places], main)
            for slots in itertools.islice(ways, ORDERS):
                each = itertools.product(
                    *(slot[np.argsort(-lift[slot], kind="stable")].tolist() for slot in slots)
                )
                codes = np.sort(np.array(list(itertools.islice(each, TRIES))), axis=1)
                free = self._free(codes[(np.diff(codes, axis=1) > 0).all(axis=1)])
                if len(free):
                    return free[0]
        return None

    def _span(self) -> np.ndarray | None:
        """The best combination that goes in a new direction; none where there is none, or none is free."""
        if self.trained.lacking <= 0:
            return None
        pool = self._pool()
        return self._best(pool[self.trained.outside(pool)])

    def _lift(self) -> np.ndarray | None:
        return self._best(self._pool())

    def _gain(self) -> np.ndarray:
        return self.outlook.share * (rarity(self.trained.counts) - rarity(self.trained.counts + 1))

    def _best(self, codes: np.ndarray) -> np.ndarray | None:
        """The largest gain; of equals, the one whose modules were together least."""
        if not len(codes):
            return None
        gain = np.append(self._gain(), 0.0)[codes].sum(axis=1)
        together = np.pad(self.together, ((0, 1), (0, 1)))
        pairs = itertools.combinations(codes.T, 2)
        before = np.sum([together[a, b] for a, b in pairs], axis=0)
        return codes[np.lexsort([before, -gain.round(12)])[0]]

    def _pool(self) -> np.ndarray:
        """Free combinations: all of them if they are few, or else of promising modules and near to trained ones."""
        space, gain = self.trained.space, self._gain()
        numbers = [len(block) for block in space.blocks]
        while space.size(numbers) > POOL:
            numbers[int(np.argmax(numbers))] -= 1
        best = [
            block[np.argsort(-gain[block], kind="stable")[:number]]
            for block, number in zip(space.blocks, numbers, strict=True)
        ]
        codes = np.array(list(space.among(np.concatenate(best))), int).reshape(-1, space.most)
        if sum(numbers) < space.num_modules:
            codes = np.concatenate([codes, *map(space.twins, self.codes[:TWINS])])
        return self._free(codes)

    def _reached(self, before: Trained, num: int) -> float:
        """What `num` combinations lifted, as a share of the largest steps that each factor could take by itself."""
        if num == 0:
            return 1.0
        share, space = self.outlook.share[:, None], before.space
        drops = share * rarity(before.counts[:, None] + np.arange(num + 1))
        steps = drops[:, :-1] - drops[:, 1:]
        units = num * space.most // len(space.blocks)
        bound = sum(np.sort(steps[block], axis=None)[-units:].sum() for block in space.blocks)
        reached = self.outlook.share @ (rarity(before.counts) - rarity(self.trained.counts))
        return float(reached / bound) if bound > 0 else 1.0

    def _ranked(self, trained: Trained, codes: list[np.ndarray]) -> Iterator[Suggestion]:
        """Each time the one that helps most after those before it; of many, only those are computed anew that were
        best before, as gains mostly shrink."""
        drop, done = self.outlook.drop(trained), 0
        queue = [
            (self.outlook.drop(trained.plus(code)) - drop, place, 0)
            for place, code in enumerate(codes)
        ]
        heapq.heapify(queue)
        while queue:
            change, place, known = heapq.heappop(queue)
            code = codes[place]
            if known < done:
                heapq.heappush(queue, (self.outlook.drop(trained.plus(code)) - drop, place, done))
                continue
            held = code[code >= 0]
            joins, spans = len(np.unique(trained.group[held])), bool(trained.outside(code[None])[0])
            yield Suggestion(
                code, -change, joins, spans, int(held[np.argmin(trained.counts[held])])
            )
            trained, drop, done = trained.plus(code), drop + change, done + 1
            if len(codes) <= RANKED:
                queue = [
                    (self.outlook.drop(trained.plus(codes[i])) - drop, i, done) for _, i, _ in queue
                ]
                heapq.heapify(queue)


def least(trained: Trained) -> int:
    """No fewer combinations can connect: each joins at most K groups, and holds one unseen value of a factor."""
    groups, space = trained.groups(), trained.space
    alone = Counter(kind for group in groups if (kind := space.kind(group)) >= 0)
    return max(math.ceil((len(groups) - 1) / (space.most - 1)), *alone.values(), 0)
