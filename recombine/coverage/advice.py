"""Suggest combinations to add to a train set: connect it, then span it, then lift rare modules.

connect  A combination joins at most K groups. So C groups need at least (C-1)/(K-1) combinations,
         and at least as many as one factor has unseen values. Joining the groups of the factor with
         the most groups left reaches that bound.
span     A combination adds at most one direction. Each suggestion adds one, so no fewer suffice.
lift     The expected drop is a sum of convex terms, one per module. Each suggestion takes the
         largest step down. If every factor could choose its values independently, the optimum would
         be the largest single steps. The reached share of that bound is reported.

If some combinations must not be suggested (held out or forbidden), a bound may be missed. The goal
then says so, and whether it can be reached at all. If combinations have costs, each step takes the
lowest cost per joined group, the lowest cost of a new direction, or the highest gain per cost.

A combination of the table with fewer examples than the reference number may be suggested, too: its
examples lift its modules in part. A suggestion to lift must gain at least MIN_GAIN.
The experiment `coverage_advice` compares the suggestions with random combinations.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from recombine.coverage.constraints import Costs
from recombine.coverage.expected_drop import ExpectedDrop, Trained, rarity_drop
from recombine.parts.conditions import stamps

MAX_CANDIDATES = 20_000  # combinations that one step compares
NUM_WITH_NEIGHBORS = 4  # trained combinations whose neighbors are candidates too: enough to span
MAX_MODULE_CHOICES = 4_096  # ways to choose the modules that join given groups
MAX_FACTOR_CHOICES = 64  # ways to assign factors to given groups
MAX_PAIRS = 20_000  # pairs of values that are tried, to show that no link can be made
MAX_COMPLETIONS = 64  # combinations that are tried for each pair
ROUNDING_ERROR = 1e-9
MIN_GAIN = 1e-5  # of R2: a hundred smaller ones would not change its third decimal
MAX_EXACT_ORDER = 32  # suggestions that are ordered exactly; more are ordered by lazy greedy search


class Suggestion(NamedTuple):
    """A combination to add, and its effect after the suggestions before it."""

    code: np.ndarray  # its module numbers
    gain: float  # by how much it lowers the expected drop
    joins: int  # the number of groups that it joins
    spans: bool  # whether it adds a direction
    rarest: int  # its module with the fewest combinations
    amount: float = 1.0  # the share of the reference number of examples that it adds
    cost: float = 1.0


class Goal(NamedTuple):
    """How far the suggestions reach a goal, and how close that is to the optimum."""

    name: str
    suggested: int  # the number of suggestions for it
    needed: int  # a lower bound on the number of combinations that reach it
    met: bool
    share: float  # the reached share of an upper bound
    possible: bool = True  # False if it is known that no combinations can meet it
    cost: float | None = None  # of the suggestions for it, if combinations have costs
    min_cost: float | None = None  # a lower bound on the cost of meeting it

    @property
    def optimal(self) -> bool:
        """Whether no other combinations could do better."""
        if self.cost is None or self.min_cost is None:
            is_least = self.suggested == self.needed
        else:
            is_least = self.cost <= self.min_cost * (1 + 1e-9)
        return self.met and is_least and self.share > 1 - 1e-9


class Advice(NamedTuple):
    """Suggestions, the most helpful first, and the goals that they reach."""

    suggestions: list[Suggestion]
    goals: list[Goal]
    drop_before: float  # the expected drop without the suggestions
    drop_after: float  # the expected drop with all suggestions
    # Why there are no more: "number" and "budget" are used up, each further "gain" is too small,
    # or there is "none" left to suggest.
    stopped: str = "number"
    cost: float | None = None  # of all suggestions, if combinations have costs


class Addition(NamedTuple):
    """A combination that is added to a train set, or gets more examples."""

    code: np.ndarray
    amount: float  # the share of the reference number of examples
    cost: float


class Adviser:
    """Searches for combinations to add that are neither in the train set nor held out.

    `cooccurrence` (modules, modules) counts the combinations with both modules. `codes` and
    `held_out` are combinations as rows of module numbers. `amounts` are the shares of the reference
    number of examples that the train set's combinations have.
    """

    def __init__(
        self,
        trained: Trained,
        cooccurrence: np.ndarray,
        codes: np.ndarray,
        held_out: np.ndarray,
        amounts: np.ndarray | None = None,
        costs: Costs | None = None,
    ):
        self.trained = trained
        self.space = trained.space
        self.costs = costs or Costs(self.space)
        self.cooccurrence = cooccurrence.copy()
        self.codes = codes
        # The hash of a combination is a sum over its modules. The padding -1 adds zero.
        self.module_hashes = np.append(stamps(len(cooccurrence)), np.uint64(0))
        self.taken = np.concatenate([self._hashes(codes), self._hashes(held_out)])
        amounts = np.ones(len(codes)) if amounts is None else amounts
        self.expected_drop = ExpectedDrop(trained, *self._present(amounts))
        self.incomplete = self._incomplete(amounts, held_out)
        self.budget = math.inf
        self.stopped = "none"
        self.initial: np.ndarray | None = None  # all that could be suggested, if not too many
        self.lift_candidates: tuple[np.ndarray, np.ndarray] | None = None  # gains and costs

    def _present(self, amounts: np.ndarray) -> tuple[float, np.ndarray]:
        """How many possible combinations the train set has, in all and with each module."""
        possible = self.space.allowed(self.codes)
        total = np.zeros(self.space.num_modules + 1)
        for column in self.codes.T:  # the padding -1 adds to the last entry
            np.add.at(total, column, amounts * possible)
        return float(amounts[possible].sum()), total[:-1]

    def _incomplete(
        self, amounts: np.ndarray, held_out: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The combinations of the train set that may get more examples, and the missing shares."""
        is_held_out = np.isin(self._hashes(self.codes), self._hashes(held_out))
        kept = np.flatnonzero(
            (amounts < 1 - ROUNDING_ERROR) & ~is_held_out & self.space.allowed(self.codes)
        )
        missing = 1 - amounts[kept]
        gain = self._gains(self.codes[kept], missing)
        best = np.sort(np.argsort(-gain, kind="stable")[:MAX_CANDIDATES])
        return self.codes[kept][best], missing[best]

    def advise(self, num: int, budget: float = math.inf) -> Advice:
        """Suggest at most `num` combinations within a budget: connect, then span, then lift."""
        start = self.trained
        self.budget = budget
        if self.costs.given:
            candidates, is_complete = self._candidates()
            self.initial = candidates if is_complete else None
        states = [start]  # the train set after each addition
        added: list[Addition] = []
        num_after_search = []  # how many were added when each of the three searches ended
        for search in (self._find_link, self._find_span, self._find_lift):
            while len(added) < num and (proposal := search()) is not None:
                addition = proposal if isinstance(proposal, Addition) else self._addition(proposal)
                self._add(addition)
                added.append(addition)
                states.append(self.trained)
            num_after_search.append(len(added))
        if len(added) == num:
            self.stopped = "number"
        return Advice(
            suggestions=list(self._in_order_of_gain(start, added)),
            goals=self._goals(states, added, num_after_search),
            drop_before=self.expected_drop(start),
            drop_after=self.expected_drop(self.trained),
            stopped=self.stopped,
            cost=sum(each.cost for each in added) if self.costs.given else None,
        )

    def _goals(
        self, states: Sequence[Trained], added: Sequence[Addition], num_after_search: Sequence[int]
    ) -> list[Goal]:
        """Compare what the additions reached with the bounds.

        `states` are the train sets after each addition, and `num_after_search` says how many were
        added when each search ended.
        """
        num_linked, num_spanned, num_added = num_after_search
        start = states[0]
        connected = [len(state.groups()) == 1 for state in states]
        spanned = [
            is_connected and state.num_missing_directions <= 0
            for is_connected, state in zip(connected, states, strict=True)
        ]
        # The search that spans may also connect, if every better link is held out.
        num_to_connect = connected.index(True) if True in connected else num_linked
        num_to_span = spanned.index(True) if True in spanned else num_spanned
        min_to_connect = min_links(start)
        min_to_span = max(min_to_connect, start.num_missing_directions)
        num_lifted = num_added - num_spanned
        share = self._share_of_lift_bound(states[num_spanned], added[num_spanned:])
        can_connect = connected[-1] or self._can_connect()
        can_span = can_connect and (spanned[-1] or self._can_span())
        goals = [
            Goal("connect", num_to_connect, min_to_connect, connected[-1], 1.0, can_connect),
            Goal("connect and span", num_to_span, min_to_span, spanned[-1], 1.0, can_span),
            Goal("lift", num_lifted, num_lifted, True, share),
        ]
        return self._with_costs(goals, start, added) if self.costs.given else goals

    def _with_costs(
        self, goals: Sequence[Goal], start: Trained, added: Sequence[Addition]
    ) -> list[Goal]:
        """The goals with the costs of their suggestions, and lower bounds on these costs."""
        connect, span, lift = goals
        costs = [each.cost for each in added]
        link_bound = self._link_cost_bound(start, connect.needed)
        span_bound = max(link_bound, self._span_cost_bound(start))
        lift_cost = sum(costs[len(costs) - lift.suggested :])
        return [
            connect._replace(cost=sum(costs[: connect.suggested]), min_cost=link_bound),
            span._replace(cost=sum(costs[: span.suggested]), min_cost=span_bound),
            lift._replace(cost=lift_cost, min_cost=lift_cost),
        ]

    def _hashes(self, codes: np.ndarray) -> np.ndarray:
        return self.module_hashes[codes].sum(axis=1, dtype=np.uint64)

    def _without_taken(self, codes: np.ndarray) -> np.ndarray:
        """The combinations that may be suggested, whatever they cost.

        They are neither in the train set, nor held out, nor forbidden, nor suggested.
        """
        codes = self._new(codes)
        return codes[self.space.allowed(codes)]

    def _new(self, codes: np.ndarray) -> np.ndarray:
        """The combinations that are neither in the train set, nor held out, nor suggested."""
        return codes[~np.isin(self._hashes(codes), self.taken)]

    def _affordable(self, codes: np.ndarray) -> np.ndarray:
        """The combinations whose cost is within what is left of the budget."""
        if math.isinf(self.budget):
            return codes
        return codes[self.costs(codes) <= self.budget + ROUNDING_ERROR]

    def _addition(self, code: np.ndarray, amount: float = 1.0) -> Addition:
        cost = float(self.costs(code[None])[0])
        return Addition(code, amount, cost * amount if self.costs.given else cost)

    def _add(self, addition: Addition) -> None:
        code = addition.code
        modules = code[code >= 0]
        self.trained = self.trained.plus(code, addition.amount)
        self.budget -= addition.cost
        codes, missing = self.incomplete
        others = self._hashes(codes) != self._hashes(code[None])
        if others.all():
            self.cooccurrence[np.ix_(modules, modules)] += 1
            self.taken = np.append(self.taken, self._hashes(code[None]))
        else:
            self.incomplete = codes[others], missing[others]

    def _find_link(self) -> np.ndarray | None:
        """The combination that joins the most groups; None if nothing is left to join."""
        if len(self.trained.groups()) == 1:
            return None
        if self.costs.given:
            return self._best_link()
        main, *others = self.trained.groups()
        blocks = [self.space.only_block(group) for group in others]
        num_of_block = Counter(block for block in blocks if block >= 0)
        # Groups of the factor with the most groups first, and large groups first.
        order = sorted(
            range(len(others)),
            key=lambda i: (-max(num_of_block[blocks[i]], 1), -len(others[i])),
        )
        together = self._joinable(order, blocks)
        one_at_a_time = [[i] for i in order]
        for attempt in (together, *one_at_a_time):
            code = self._joining([others[i] for i in attempt], main)
            if code is not None:
                return code
        return self._best_link()

    def _num_joined(self, trained: Trained, codes: np.ndarray) -> np.ndarray:
        """The number of groups that each combination joins."""
        group = np.append(trained.group, -1)[codes]
        ordered = np.sort(group, axis=1)
        is_new = np.diff(ordered, axis=1, prepend=-1) != 0
        return (is_new & (ordered >= 0)).sum(axis=1)

    def _best_link(self) -> np.ndarray | None:
        """Of all candidates, the one with the lowest cost per joined group and the highest gain."""
        candidates, _ = self._candidates()
        candidates = self._affordable(candidates)
        joined = self._num_joined(self.trained, candidates) - 1
        links = candidates[joined > 0]
        if not len(links):
            return self._affordable_or_none(self._rare_link())
        cost_per_group = self.costs(links) / joined[joined > 0]
        best = np.lexsort([-self._gains(links), cost_per_group.round(12)])
        return links[best[0]]

    def _affordable_or_none(self, code: np.ndarray | None) -> np.ndarray | None:
        return code if code is not None and len(self._affordable(code[None])) else None

    def _rare_link(self) -> np.ndarray | None:
        """A link that is not among the candidates of a large space."""
        pairs = self._pairs_across(self.trained.group)
        for pair in itertools.islice(pairs, MAX_PAIRS):
            free = self._completed(pair)
            if len(free):
                return free[0]
        return None

    def _pairs_across(self, group: np.ndarray) -> Iterator[tuple[int, int]]:
        """Pairs of modules of different groups that a combination could contain."""
        for first, second in itertools.combinations(range(self.space.num_modules), 2):
            block = self.space.block_of[first]
            one_value = block == self.space.block_of[second] and self.space.capacities[block] < 2
            if group[first] != group[second] and not one_value:
                yield first, second

    def _completed(self, modules: Sequence[int]) -> np.ndarray:
        """Some combinations with these modules that may be suggested."""
        codes = list(itertools.islice(self.space.completions(modules), MAX_COMPLETIONS))
        return self._new(np.array(codes, int).reshape(-1, self.space.max_size))

    def _can_connect(self) -> bool:
        """False if it is certain that not even all other combinations would connect all values."""
        candidates, is_complete = self._candidates()
        groups = _joined_groups(self.trained.group, candidates)
        if is_complete or len(np.unique(groups)) == 1:
            return len(np.unique(groups)) == 1
        for number, pair in enumerate(self._pairs_across(groups.copy())):
            codes = list(itertools.islice(self.space.completions(pair), MAX_COMPLETIONS))
            free = self._new(np.array(codes, int).reshape(-1, self.space.max_size))
            is_uncertain = len(codes) == MAX_COMPLETIONS and not len(free)
            if is_uncertain or number >= MAX_PAIRS:
                return True
            groups = _joined_groups(groups, free)
            if len(np.unique(groups)) == 1:
                return True
        return False

    def _can_span(self) -> bool:
        """False if it is certain that all other combinations lack some direction."""
        candidates, is_complete = self._candidates()
        if not is_complete:
            return True
        left = _without_directions(self.trained, candidates, np.zeros(len(candidates)))[0]
        return left.num_missing_directions <= 0

    def _link_cost_bound(self, start: Trained, num_needed: int) -> float:
        """No cheaper combinations connect the train set.

        If no combination joins more than two groups, this is the cheapest spanning tree.
        """
        num_missing = len(start.groups()) - 1
        bound = num_needed * self.costs.lowest
        if num_missing == 0 or self.initial is None:
            return bound
        joined = self._num_joined(start, self.initial)
        links = self.initial[joined > 1]
        joined = joined[joined > 1]
        if not len(links):
            return bound
        costs = self.costs(links)
        if joined.max() == 2:
            return max(bound, _cost_of_spanning_tree(start, links, costs))
        return max(bound, num_missing * float((costs / (joined - 1)).min()))

    def _span_cost_bound(self, start: Trained) -> float:
        """The cost of the cheapest combinations that add every missing direction.

        Taking the cheapest one that adds a direction is optimal: independent combinations form a
        matroid.
        """
        if self.initial is None:
            return start.num_missing_directions * self.costs.lowest
        return _without_directions(start, self.initial, self.costs(self.initial))[1]

    def _joinable(self, order: Sequence[int], blocks: Sequence[int]) -> list[int]:
        """As many groups as one combination can join with the main group."""
        chosen: list[int] = []
        for i in order:
            block = blocks[i]
            num_used = [blocks[j] for j in chosen].count(block)
            conflict = block >= 0 and num_used >= self.space.capacities[block]
            if len(chosen) < self.space.max_size - 1 and not conflict:
                chosen.append(i)
        return chosen

    def _joining(self, groups: Sequence[np.ndarray], main: np.ndarray) -> np.ndarray | None:
        """A combination with a module of each group, preferably of modules with a high gain."""
        gain = self._gain_by_module()
        ways = self.trained.space.slots(groups, main)
        for slots in itertools.islice(ways, MAX_FACTOR_CHOICES):
            choices = [slot[np.argsort(-gain[slot], kind="stable")].tolist() for slot in slots]
            products = itertools.islice(itertools.product(*choices), MAX_MODULE_CHOICES)
            codes = np.sort(np.array(list(products), int).reshape(-1, len(slots)), axis=1)
            distinct = (np.diff(codes, axis=1) > 0).all(axis=1)
            free = self._affordable(self._without_taken(codes[distinct]))
            if len(free):
                return free[0]
        return None

    def _find_span(self) -> np.ndarray | None:
        """The best combination that adds a direction; None if no direction is left to add."""
        if self.trained.num_missing_directions <= 0:
            return None
        candidates = self._affordable(self._candidates()[0])
        candidates = candidates[self.trained.adds_direction(candidates)]
        if self.costs.given and len(candidates):
            costs = self.costs(candidates)
            candidates = candidates[costs <= costs.min() + ROUNDING_ERROR]
        return self._best(candidates)

    def _find_lift(self) -> Addition | None:
        """What lowers the expected drop of its modules most, for its cost.

        It is a new combination, or more examples of one in the train set.
        """
        candidates, is_complete = self._candidates()
        if self.costs.given:
            if self.lift_candidates is None:
                self._keep_for_bound(candidates, is_complete)
            best = self._most_gain_for_cost(candidates)
        else:
            best = self._most_gain(self._affordable(candidates))
        if best is None:
            has_candidates = bool(len(candidates) or len(self.incomplete[0]))
            self.stopped = "budget" if has_candidates else "none"
            return None
        addition, gain = best
        if gain < MIN_GAIN:
            self.stopped = "gain"
            return None
        return addition

    def _most_gain(self, candidates: np.ndarray) -> tuple[Addition, float] | None:
        """The addition with the highest gain, if all cost the same."""
        best: list[tuple[Addition, float]] = []
        code = self._best(candidates)
        if code is not None:
            best.append((self._addition(code), float(self._gains(code[None])[0])))
        codes, amounts = self.incomplete
        if len(codes) and self.budget >= 1 - ROUNDING_ERROR:
            gains = self._gains(codes, amounts)
            i = int(np.argmax(gains.round(12)))
            best.append((self._addition(codes[i], float(amounts[i])), float(gains[i])))
        return max(best, key=lambda pair: round(pair[1], 12), default=None)

    def _with_incomplete(self, candidates: np.ndarray) -> tuple[np.ndarray, ...]:
        """New combinations and those that may get more examples: codes, amounts, gains, costs."""
        codes, missing = self.incomplete
        all_codes = np.concatenate([candidates, codes])
        amounts = np.concatenate([np.ones(len(candidates)), missing])
        gains = self._gains(all_codes, amounts)
        return all_codes, amounts, gains, self.costs(all_codes) * amounts

    def _most_gain_for_cost(self, candidates: np.ndarray) -> tuple[Addition, float] | None:
        """The addition with the highest gain per cost that the budget allows."""
        codes, amounts, gains, costs = self._with_incomplete(candidates)
        affordable = np.flatnonzero(costs <= self.budget + ROUNDING_ERROR)
        worth = affordable[gains[affordable] >= MIN_GAIN]
        chosen = worth if len(worth) else affordable
        if not len(chosen):
            return None
        i = chosen[np.argmax((gains[chosen] / costs[chosen]).round(12))]
        return self._addition(codes[i], float(amounts[i])), float(gains[i])

    def _keep_for_bound(self, candidates: np.ndarray, is_complete: bool) -> None:
        """Remember the gains and costs with which the search that lifts began."""
        codes, _ = self.incomplete
        if is_complete and len(codes) < MAX_CANDIDATES:
            _, _, gains, costs = self._with_incomplete(candidates)
            self.lift_candidates = gains, costs

    def _gains(self, codes: np.ndarray, amounts: np.ndarray | None = None) -> np.ndarray:
        """How much each combination lowers the expected drop of its modules."""
        if amounts is None or bool((amounts == 1).all()):
            # The padding -1 selects the last entry: no gain.
            return np.append(self._gain_by_module(), 0.0)[codes].sum(axis=1)
        counts = np.append(self.trained.counts, 0.0)[codes]
        share = np.append(self.expected_drop.share, 0.0)[codes]
        lower = rarity_drop(counts) - rarity_drop(counts + amounts[:, None])
        return (share * lower).sum(axis=1)

    def _gain_by_module(self) -> np.ndarray:
        """How much one more combination with each module lowers the expected drop."""
        counts = self.trained.counts
        return self.expected_drop.share * (rarity_drop(counts) - rarity_drop(counts + 1))

    def _best(self, codes: np.ndarray) -> np.ndarray | None:
        """The combination with the largest gain; on ties, the one with the rarest pairs."""
        if not len(codes):
            return None
        gain = self._gains(codes)
        # The padding -1 selects the last entry: no pair.
        cooccurrence = np.pad(self.cooccurrence, ((0, 1), (0, 1)))
        pairs = itertools.combinations(codes.T, 2)
        num_together = np.sum([cooccurrence[a, b] for a, b in pairs], axis=0)
        return codes[np.lexsort([num_together, -gain.round(12)])[0]]

    def _candidates(self) -> tuple[np.ndarray, bool]:
        """The combinations that may be added, and whether these are all of them.

        If there are too many, those of the modules with the largest gains, and neighbors of some
        trained combinations.
        """
        space = self.space
        gain = self._gain_by_module()
        num_values = [len(block) for block in space.blocks]
        while space.count(num_values) > MAX_CANDIDATES:
            num_values[int(np.argmax(num_values))] -= 1
        is_complete = sum(num_values) == space.num_modules
        codes = space.grid(
            [
                block[np.argsort(-gain[block], kind="stable")[:number]]
                for block, number in zip(space.blocks, num_values, strict=True)
            ]
        )
        if not is_complete:
            neighbors = [space.neighbors(code) for code in self.codes[:NUM_WITH_NEIGHBORS]]
            codes = np.concatenate([codes, *neighbors])
        free = self._without_taken(codes)
        return free, is_complete

    def _share_of_lift_bound(self, before: Trained, added: Sequence[Addition]) -> float:
        """How much these additions lowered the drop, as a share of an upper bound.

        The bound lets each factor take its largest steps independently of the others. With costs,
        it is over all additions that together cost no more.
        """
        if not added:
            return 1.0
        num = len(added)
        cost = sum(each.cost for each in added)
        if self.costs.given:
            known = self.lift_candidates
            lowest = self.costs.lowest if known is None else float(known[1].min())
            num = min(int(cost / lowest + ROUNDING_ERROR), MAX_CANDIDATES)
        share = self.expected_drop.share
        drops = share[:, None] * rarity_drop(before.counts[:, None] + np.arange(num + 1))
        steps = drops[:, :-1] - drops[:, 1:]
        bound = 0.0
        for block, capacity in zip(before.space.blocks, before.space.capacities, strict=True):
            num_steps = num * capacity
            bound += np.sort(steps[block], axis=None)[-num_steps:].sum() if num_steps else 0.0
        if self.costs.given and self.lift_candidates is not None:
            bound = min(bound, _knapsack_bound(*self.lift_candidates, cost))
        reached = share @ (rarity_drop(before.counts) - rarity_drop(self.trained.counts))
        return min(1.0, float(reached / bound)) if bound > 0 else 1.0

    def _in_order_of_gain(
        self, trained: Trained, added: Sequence[Addition]
    ) -> Iterator[Suggestion]:
        """Yield the additions in greedy order: each time the one that lowers the drop most.

        With costs, it is the one that lowers it most for its cost.

        With many combinations, a change is recomputed only when it reaches the front of the queue.
        That is exact while gains shrink, which they mostly do.
        """
        drop = self.expected_drop(trained)
        num_chosen = 0

        def entry(i: int) -> tuple[float, int, int, float]:
            """The change per cost, the addition, when the change was computed, and the change."""
            change = self.expected_drop(trained.plus(added[i].code, added[i].amount)) - drop
            per_cost = change / added[i].cost if self.costs.given else change
            # Rounded, so that equal changes stay ties on every CPU, and the first addition wins.
            return round(per_cost, 12), i, num_chosen, change

        queue = [entry(i) for i in range(len(added))]
        heapq.heapify(queue)
        while queue:
            _, i, computed_at, change = heapq.heappop(queue)
            if computed_at < num_chosen:
                heapq.heappush(queue, entry(i))
                continue
            yield _suggestion(trained, added[i], -change)
            trained = trained.plus(added[i].code, added[i].amount)
            drop += change
            num_chosen += 1
            if len(added) <= MAX_EXACT_ORDER:
                queue = [entry(each[1]) for each in queue]
                heapq.heapify(queue)


def _suggestion(trained: Trained, addition: Addition, gain: float) -> Suggestion:
    """Describe what an addition does for a train set."""
    code = addition.code
    modules = code[code >= 0]
    return Suggestion(
        code=code,
        gain=gain,
        joins=len(np.unique(trained.group[modules])),
        spans=bool(trained.adds_direction(code[None])[0]),
        rarest=int(modules[np.argmin(trained.counts[modules])]),
        amount=addition.amount,
        cost=addition.cost,
    )


def _joined_groups(group: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The group of each module after all these combinations are added."""
    group = group.copy()
    for code in codes:
        joined = np.unique(group[code[code >= 0]])
        if len(joined) > 1:
            group[np.isin(group, joined)] = joined[0]
    return group


def _without_directions(
    trained: Trained, codes: np.ndarray, costs: np.ndarray
) -> tuple[Trained, float]:
    """Add the cheapest combinations that add a direction, as long as there are any.

    Gives the train set, and their cost.
    """
    order = np.argsort(costs, kind="stable")
    codes = codes[order]
    costs = costs[order]
    total = 0.0
    while trained.num_missing_directions > 0:
        adds = trained.adds_direction(codes)
        if not adds.any():
            break
        first = int(np.argmax(adds))
        trained = trained.plus(codes[first])
        total += float(costs[first])
        codes = codes[first + 1 :]
        costs = costs[first + 1 :]  # the ones before add none
    return trained, total


def _cost_of_spanning_tree(trained: Trained, links: np.ndarray, costs: np.ndarray) -> float:
    """The cost of the cheapest links that join as many groups as all of them."""
    group = trained.group
    total = 0.0
    for i in np.argsort(costs, kind="stable"):
        joined = _joined_groups(group, links[i : i + 1])
        if len(np.unique(joined)) < len(np.unique(group)):
            total += float(costs[i])
            group = joined
    return total


def _knapsack_bound(gains: np.ndarray, costs: np.ndarray, budget: float) -> float:
    """No choice of these gains within the budget is larger: parts of one may be taken."""
    order = np.argsort(-gains / costs)
    before = np.cumsum(costs[order]) - costs[order]
    parts = np.clip((budget - before) / costs[order], 0, 1)
    return float(parts @ gains[order])


def min_links(trained: Trained) -> int:
    """A lower bound on the number of combinations that connect a train set.

    Each combination joins at most K groups, and contains at most one unseen value of a factor, or
    as many of a column of sets as the largest set has.
    """
    groups = trained.groups()
    space = trained.space
    blocks = [space.only_block(group) for group in groups]
    num_of_block = Counter(block for block in blocks if block >= 0)
    by_groups = math.ceil((len(groups) - 1) / max(space.max_size - 1, 1))
    if len(groups) == 1:
        return 0
    by_block = [
        math.ceil(number / max(space.capacities[block], 1))
        for block, number in num_of_block.items()
    ]
    return max(by_groups, *by_block, 0)
