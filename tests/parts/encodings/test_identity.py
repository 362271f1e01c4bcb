import jax.numpy as jnp
import numpy as np

from recombine.parts.encodings.identity import Identity
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.prng import new_key


def test_the_code_is_the_task():
    task = jnp.array([0.5, 0, 1, 0.7])
    family, encoding = Hyperteacher(num_modules=4), Identity()
    params = encoding.init(new_key(0), family)
    np.testing.assert_array_equal(encoding.encode(params, new_key(1), task, None), task)
    assert encoding.num_tokens(family) == 0
