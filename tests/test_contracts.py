"""Every part that is found, against every contract of its kind. Nothing is listed by hand."""

import dataclasses

import pytest

from recombine import contracts, find
from recombine.core import InputError, hints

PARTS = [(kind, cls) for kind, classes in find.parts().items() for cls in classes.values()]
CASES = [
    pytest.param(cls, contract, id=f"{cls.__name__}-{contract.__name__}")
    for kind, cls in PARTS
    for contract in contracts.CONTRACTS[kind]
]


def test_the_folders_hold_one_part_per_file():
    for kind, folder in find.FOLDERS.items():
        assert len(find.parts()[kind]) == len(find.names(folder)), f"a file of {folder}/ lacks its class"


@pytest.mark.parametrize(("cls", "contract"), CASES)
def test_contract(cls, contract):
    contract(cls if contract is contracts.constructs else cls())


@pytest.mark.parametrize("cls", [cls for _, cls in PARTS], ids=lambda cls: cls.__name__)
def test_wrong_types_are_refused_by_name(cls):
    for name in hints(cls):
        part = cls()
        object.__setattr__(part, name, object())  # past beartype, which these tests switch on and users do not have
        with pytest.raises(InputError, match=f"{cls.__name__}.{name}"):
            part.__post_init__()


@pytest.mark.parametrize("cls", [cls for _, cls in PARTS], ids=lambda cls: cls.__name__)
def test_negative_sizes_are_refused(cls):
    for name, hint in hints(cls).items():
        if hint is int:
            with pytest.raises(InputError):
                cls(**{name: -1})


@dataclasses.dataclass(frozen=True)
class Leaky:
    """A support that breaks its promise: it says balanced and draws at random."""

    guarantees = frozenset({"balanced"})

    def parts(self, modules, rng, frac_test):
        parts = (rng.random(len(modules)) < 0.5).astype("int8") + 1
        return parts


def test_a_broken_promise_is_found():
    with pytest.raises(AssertionError, match="balanced"):
        contracts.support_keeps_guarantees(Leaky())
