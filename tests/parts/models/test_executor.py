import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.parts.families.chain import Chain
from recombine.parts.models.executor import Executor
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch
from recombine.parts.supports.held_out_lengths import HeldOutLengths
from tests.tiny import TINY

FAMILY = Chain(num_modules=3, max_length=4, size=4)
RUN = dataclasses.replace(
    TINY,
    family=FAMILY,
    support=HeldOutLengths(1),
    encoding=rc.Language(),
    model=Executor((32,), 8),
    num_steps=150,
    num_evals=1,
    num_eval_tasks=64,
)


def test_trained_on_single_modules_it_answers_every_chain():
    final = rc.train(RUN, progress=False).iloc[-1]
    assert final["support/num_train"] == 3
    assert final["test/length=4/accuracy"] == 1


def test_it_is_applied_to_its_own_values():
    world = FAMILY.init(new_key(0))
    task = FAMILY.task((2, 1))
    x, y = FAMILY.sample(world, new_key(1), task, 5)
    batch = Batch(x, y, FAMILY.sentence(task), task)
    net = RUN.model.init(new_key(2), batch, 4, 4, world)
    prediction, _ = net(x, batch.code)
    first, _ = net.step(x, jnp.array([3]))
    second, _ = net.step(jnp.eye(4)[first.argmax(axis=1)], jnp.array([2]))
    np.testing.assert_allclose(prediction[:, :2], jnp.stack([first, second], axis=1), atol=1e-6)


def test_a_family_without_steps_is_refused():
    with pytest.raises(InputError, match=r"Executor needs the steps.*choose a family with one"):
        dataclasses.replace(TINY, model=Executor())
    with pytest.raises(InputError, match=r"Executor needs .* a code of words"):
        rc.train(dataclasses.replace(RUN, encoding=rc.Identity()), progress=False)
