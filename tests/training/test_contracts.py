"""Every discovered part is checked against every contract of its kind."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from recombine.basics.errors import InputError
from recombine.parts.field_checks import field_types
from recombine.sweeps import discovery
from recombine.training import contracts

PARTS = [(kind, cls) for kind, classes in discovery.parts().items() for cls in classes.values()]
CASES = [
    pytest.param(cls, contract, id=f"{cls.__name__}-{contract.__name__}")
    for kind, cls in PARTS
    for contract in contracts.CONTRACTS[kind]
]


def test_the_folders_hold_one_part_per_file():
    for kind, folder in discovery.FOLDERS.items():
        assert len(discovery.parts()[kind]) == len(discovery.module_names(folder)), (
            f"a file of {folder}/ lacks its class"
        )


@pytest.mark.parametrize(("cls", "contract"), CASES)
def test_contract(cls, contract):
    contract(cls if contract is contracts.constructs else cls())


@pytest.mark.parametrize("cls", [cls for _, cls in PARTS], ids=lambda cls: cls.__name__)
def test_wrong_types_are_refused_by_name(cls):
    for name in field_types(cls):
        part = cls()
        # Not in the constructor, where beartype would refuse it. Users do not have beartype.
        object.__setattr__(part, name, object())
        with pytest.raises(InputError, match=f"{cls.__name__}.{name}"):
            part.__post_init__()


@pytest.mark.parametrize("cls", [cls for _, cls in PARTS], ids=lambda cls: cls.__name__)
def test_negative_sizes_are_refused(cls):
    for name, hint in field_types(cls).items():
        if hint is int:
            with pytest.raises(InputError):
                cls(**{name: -1})


@dataclasses.dataclass(frozen=True)
class Leaky:
    """A support that breaks its contract: it guarantees balance but draws at random."""

    guarantees = frozenset({"balanced"})

    def parts(self, modules, rng, frac_test):
        return (rng.random(len(modules)) < 0.5).astype("int8") + 1


def test_a_support_that_breaks_its_guarantee_is_refused():
    with pytest.raises(AssertionError, match="balanced"):
        contracts.support_keeps_guarantees(Leaky())


class Line(eqx.Module):
    """A linear network that keeps its contracts, or breaks one of them."""

    mixed_precision = True

    weight: jax.Array
    fault: str = eqx.field(static=True)

    def __call__(self, x, code):
        h = jnp.concatenate([x, jnp.broadcast_to(code, (len(x), len(code)))], axis=1)
        eps = jnp.finfo(self.weight.dtype).eps
        h = (h.astype(self.weight.dtype) @ self.weight.T).astype(jnp.float32)
        if self.fault == "types":  # a loop that changes the type of its carry
            h, _ = jax.lax.scan(lambda h, _: (h.astype(self.weight.dtype), None), h, length=1)
        if self.fault == "mean":
            h = h - h.mean(axis=0)
        if self.fault == "epsilon":
            h = h / jnp.sqrt(1 + 100 * eps)
        activations = {"output": h}
        if self.fault == "log":
            activations["hidden"] = h + jnp.log(0.005 - eps)
        return h, activations

    def many(self, x, code):
        code = jnp.broadcast_to(code[:1], code.shape) if self.fault == "code" else code
        prediction, activations = jax.vmap(self)(x, code)
        if self.fault == "shape":
            prediction = prediction[:, :1]
        return prediction, {"logits": prediction} if self.fault == "names" else activations


@dataclasses.dataclass(frozen=True)
class Linear:
    """The model of a `Line`."""

    fault: str = ""

    def init(self, key, example, num_outputs, num_tokens=0, world=None):
        d_input = example.x.shape[1] + example.code.shape[0]
        return Line(jax.random.normal(key, (num_outputs, d_input)), self.fault)


def test_a_sound_network_keeps_every_contract():
    for contract in contracts.CONTRACTS["model"]:
        contract(Linear if contract is contracts.constructs else Linear())


@pytest.mark.parametrize(
    ("fault", "contract", "message"),
    [
        ("code", contracts.model_many, "`many` gave other numbers"),
        (
            "shape",
            contracts.model_many,
            r"`many` gave other numbers.*shapes \(3, 1, 3\) and \(3, 8, 3\)",
        ),
        (
            "names",
            contracts.model_many,
            r"`many` names its activations \['logits'\], one task \['output'\]",
        ),
        ("types", contracts.model_low_precision, "carry"),
        ("epsilon", contracts.model_low_precision, "predictions are off by 25%"),
        ("log", contracts.model_low_precision, "not finite"),
        ("mean", contracts.model_points_apart, "write together = True"),
    ],
)
def test_a_network_that_breaks_a_contract_is_refused(fault, contract, message):
    with pytest.raises(TypeError if fault == "types" else AssertionError, match=message):
        contract(Linear(fault))


def test_contracts_of_many_and_mixed_precision_apply_only_to_networks_that_have_them(monkeypatch):
    monkeypatch.setattr(Line, "mixed_precision", False)
    monkeypatch.delattr(Line, "many")
    contracts.model_many(Linear("code"))
    contracts.model_low_precision(Linear("epsilon"))
