import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.families.two_hop import ALONE, APART, MIXED, PAIR, TwoHop, _apart, _maps
from recombine.parts.supports.held_out_kinds import HeldOutKinds

FACTS = TwoHop(12, 6, facts=True)
PAIRS = TwoHop(5, 3)


def test_facts_that_are_apart_are_trained_alone_only():
    rows = FACTS.tasks()
    kinds = FACTS.kinds(rows)
    parts = HeldOutKinds().parts(FACTS.view("kinds", rows), np.random.default_rng(0), 0.25)
    assert (parts[kinds == ALONE] == 1).all()
    assert (parts[kinds == APART] == 2).all()
    assert (parts[kinds == MIXED] == 0).all()
    held_out = parts[kinds == PAIR] == 2
    assert held_out.sum() == round(0.25 * len(held_out))
    first, _ = _maps(FACTS)
    apart = _apart(FACTS)
    for symbol, r1, r2 in (rows[(parts == 1) & (rows[:, 2] > 0)] - 1).tolist():
        assert not apart[r1, symbol]
        assert not apart[r2, first[r1, symbol]]


def test_a_family_without_facts_is_refused():
    rows = PAIRS.view("kinds", PAIRS.tasks())
    with pytest.raises(InputError, match="choose TwoHop"):
        HeldOutKinds().parts(rows, np.random.default_rng(0), 0.25)
