"""Every part that is found, against every contract of its kind. Nothing is listed by hand."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from recombine.basics.errors import InputError
from recombine.parts.field_checks import hints
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
        assert len(discovery.parts()[kind]) == len(discovery.names(folder)), (
            f"a file of {folder}/ lacks its class"
        )


@pytest.mark.parametrize(("cls", "contract"), CASES)
def test_contract(cls, contract):
    contract(cls if contract is contracts.constructs else cls())


@pytest.mark.parametrize("cls", [cls for _, cls in PARTS], ids=lambda cls: cls.__name__)
def test_wrong_types_are_refused_by_name(cls):
    for name in hints(cls):
        part = cls()
        object.__setattr__(
            part, name, object()
        )  # past beartype, which these tests switch on and users do not have
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


class Line(eqx.Module):
    """A linear network that is right, or wrong in one way."""

    mixed_precision = True

    weight: jax.Array
    fault: str = eqx.field(static=True)

    def __call__(self, x, code):
        h = jnp.concatenate([x, jnp.broadcast_to(code, (len(x), len(code)))], axis=1)
        eps = jnp.finfo(self.weight.dtype).eps
        h = (h.astype(self.weight.dtype) @ self.weight.T).astype(jnp.float32)
        if self.fault == "types":  # a loop whose carry changes its type
            h, _ = jax.lax.scan(lambda h, _: (h.astype(self.weight.dtype), None), h, length=1)
        if self.fault == "mean":
            h = h - h.mean(axis=0)
        if self.fault == "epsilon":
            h = h / jnp.sqrt(1 + 100 * eps)
        return h, {"output": h} | (
            {"hidden": h + jnp.log(0.005 - eps)} if self.fault == "log" else {}
        )

    def many(self, x, code):
        code = jnp.broadcast_to(code[:1], code.shape) if self.fault == "code" else code
        prediction, activations = jax.vmap(self)(x, code)
        if self.fault == "shape":
            prediction = prediction[:, :1]
        return prediction, {"logits": prediction} if self.fault == "names" else activations


@dataclasses.dataclass(frozen=True)
class Linear:
    """The model of such a network."""

    fault: str = ""

    def init(self, key, example, num_outputs, num_tokens=0, world=None):
        d_input = example.x.shape[1] + example.code.shape[0]
        return Line(jax.random.normal(key, (num_outputs, d_input)), self.fault)


def test_a_sound_network_keeps_every_promise():
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
def test_a_network_that_breaks_a_promise_is_found(fault, contract, message):
    with pytest.raises(TypeError if fault == "types" else AssertionError, match=message):
        contract(Linear(fault))


def test_a_network_without_many_or_mixed_precision_promises_nothing(monkeypatch):
    monkeypatch.setattr(Line, "mixed_precision", False)
    monkeypatch.delattr(Line, "many")
    contracts.model_many(Linear("code"))
    contracts.model_low_precision(Linear("epsilon"))
