"""Theorem 3.1, constructive: a plain ReLU MLP of few neurons computes every task of a hyperteacher.

    f(z, x) = Omega^T relu(sum_i w_i(z) x_i + b(z)),   w(z) = sum_m z_m Theta_m / sqrt(K),   b(z) alike

Statement (arXiv 2507.07207): on a compact set of inputs, for every number of modules M and every precision eps, a ReLU
MLP with O(1/sqrt(eps) + M) neurons is within eps of the hyperteacher everywhere.

Assumptions: one hidden layer; x in [-1, 1]^I; at most K weights of z are not zero, each in [0, 1]; I, H, O and K are
fixed, and the entries of Theta and Omega are bounded for all M (those of the lab's teachers are: truncated normals).

Proof, which is what the code does. The weights w are linear in z, and on the compact set |w| <= R, R being the larger
of the sums of the K largest positive and of the K largest negative parts of Theta, over sqrt(K). So with

    t+ = (w/R + x)/2 and t- = (w/R - x)/2, both in [-1, 1] and linear in (z, x):     w x = R (t+^2 - t-^2)

The square is drawn with n equal pieces between points on its graph. That lies above it by at most 1/n^2, so a product
is off by at most R/n^2 either way, and an output by at most `slack`/n^2, slack = max_o sum_h |Omega_ho| sum_i R_ih, as
a ReLU never enlarges an error. So n = sqrt(slack/eps) pieces are enough, and slack is bounded whatever M is.

    shallow    two hidden layers. An odd n takes n - 1 ReLUs for a square, all pointing outwards: the middle piece is
               flat, and constants cancel between t+ and t-. The next layer is the teacher's own.
    deep       beyond the theorem: n = 2^m pieces from m layers of folds (Yarotsky 2017), log(1/eps) neurons
    exact      for weights that are 0 or 1, no eps: z x = relu(x - 1 + 2z) - z, I M neurons
    memorise   one copy of the teacher for every task of a list, which any other task switches off

Nothing but R depends on M: neurons need no term that grows with M, while parameters grow linearly, since every neuron
reads z. On the whole cube, z in [0, 1]^M, R grows as M and the neurons as sqrt(M/eps): a product, not a sum.
Networks are computed in the type of the world's arrays; for an eps below 1e-4 that should be float64.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from recombine.basics.errors import require
from recombine.parts import khot, relu_products
from recombine.parts.families.hyperteacher import Hyperteacher, Teacher
from recombine.parts.perceptron import Perceptron

Construction = Literal["shallow", "deep", "exact", "memorise"]


def network(family: Hyperteacher, world: Teacher, pieces: int, whole: bool = False) -> Perceptron:
    """The shallow network, with so many pieces for each square; `whole` for all z in [0, 1]^M."""
    return relu_products.network(world, family.num_hot, _active(family, whole), pieces)


def folded(family: Hyperteacher, world: Teacher, levels: int, whole: bool = False) -> Perceptron:
    """The deep network: as good as 2^levels pieces, from so many layers.

    With v = (t + 1)/2 the square is t^2 = 1 - sum_s 4^(1-s) g_s(v), where g_1 is the tent 2v - 4 relu(v - 1/2) and g_s
    is the tent of g_(s-1). A layer has the two ReLUs of each tent, and one for each of the teacher's hidden units,
    which carries the sum so far; that is at least -room, so the ReLU lets it pass.
    """
    require(levels >= 1, f"the deep network has at least 1 level, got {levels}")
    rows, mix, biases, low = relu_products.terms(world, family.num_hot, _active(family, whole))
    room = low + jnp.abs(mix).sum(axis=1) / 2
    num, hidden = len(rows), family.d_hidden
    tent = jnp.concatenate([2 * jnp.eye(num), -4 * jnp.eye(num), jnp.zeros((num, hidden))], axis=1)
    kept = jnp.eye(hidden, 2 * num + hidden, 2 * num)
    layers = [
        (
            jnp.concatenate([rows / 2, rows / 2, biases]),
            relu_products.join(np.repeat([0.5, 0.0], num), room),
        )
    ]
    for level in range(1, levels):
        carried = kept - 4.0 ** (1 - level) * mix @ tent
        layers.append(
            (
                jnp.concatenate([tent, tent, carried]),
                relu_products.join(np.repeat([0.0, -0.5], num), jnp.zeros(hidden)),
            )
        )
    last = kept - 4.0 ** (1 - levels) * mix @ tent
    return relu_products.stacked(
        *layers, (last, -room), (world.readout.T, jnp.zeros(family.num_outputs))
    )


def slack(family: Hyperteacher, world: Teacher, whole: bool = False) -> float:
    """What the proof lets an output be off by with one piece; n pieces divide it by n^2."""
    # In numpy: a handful of numbers on the host, for which jax would compile a dozen little programs.
    theta, omega = np.asarray(world.modules[0], float), np.abs(np.asarray(world.readout, float))
    most = [
        np.sort(np.maximum(sign * theta, 0), axis=0)[-_active(family, whole) :].sum(axis=0)
        for sign in (1, -1)
    ]
    return float((np.maximum(*most).sum(axis=0) / math.sqrt(family.num_hot) @ omega).max())


def pieces(family: Hyperteacher, world: Teacher, eps: float, whole: bool = False) -> int:
    """The fewest pieces that guarantee eps, made odd: an even number takes as many ReLUs as the next odd one."""
    require(eps > 0, f"eps must be above 0, got {eps}: no number of pieces is exact")
    return math.ceil(math.sqrt(slack(family, world, whole) / eps)) | 1


def levels(family: Hyperteacher, world: Teacher, eps: float, whole: bool = False) -> int:
    """The fewest layers of folds that guarantee eps."""
    require(eps > 0, f"eps must be above 0, got {eps}: no number of layers is exact")
    return max(1, math.ceil(math.log(slack(family, world, whole) / eps, 4)))


def shallow(family: Hyperteacher, world: Teacher, eps: float, whole: bool = False) -> Perceptron:
    """The theorem's network: within eps of the teacher, two hidden layers."""
    return plan("shallow", family, world, eps, whole)(world)


def deep(family: Hyperteacher, world: Teacher, eps: float, whole: bool = False) -> Perceptron:
    """Within eps of the teacher, with a number of layers and neurons that grows as log(1/eps)."""
    return plan("deep", family, world, eps, whole)(world)


def plan(
    construction: Construction,
    family: Hyperteacher,
    world: Teacher,
    eps: float = 0.0,
    whole: bool = False,
) -> Callable[[Teacher], Perceptron]:
    """A network as a function of the world, its sizes settled: `jax.eval_shape` of it tells them without building it.
    What is memorised is every task with 1 to K active modules."""
    if construction == "shallow":
        return functools.partial(
            network, family, pieces=pieces(family, world, eps, whole), whole=whole
        )
    if construction == "deep":
        return functools.partial(
            folded, family, levels=levels(family, world, eps, whole), whole=whole
        )
    if construction == "exact":
        return functools.partial(exact, family)
    return functools.partial(
        memorise, family, tasks=khot.listed(family.num_modules, family.num_hot)
    )


def widths(
    construction: Construction,
    family: Hyperteacher,
    world: Teacher,
    eps: float = 0.0,
    whole: bool = False,
) -> tuple[int, ...]:
    """The hidden layers of the network that `plan` would make, counted and not built."""
    d_input, hidden = family.d_input, family.d_hidden
    if construction == "shallow":
        return relu_products.widths(d_input, hidden, pieces(family, world, eps, whole))
    if construction == "deep":
        return (4 * d_input * hidden + hidden,) * levels(family, world, eps, whole) + (hidden,)
    if construction == "exact":
        return d_input * family.num_modules + hidden, hidden
    return (hidden * family.num_tasks,)


def exact(family: Hyperteacher, world: Teacher) -> Perceptron:
    """The teacher itself on all tasks whose weights are 0 or 1, for any number of active modules."""
    weights, biases = relu_products.effective(world, family.num_hot)
    # What remains after the ReLUs of z_m x_i is linear in z: the biases, and -z_m for each product.
    rest = biases - weights.sum(axis=0)
    low = relu_products.reach(-rest, family.num_modules)
    pairs = jnp.concatenate(
        [
            jnp.repeat(2 * jnp.eye(family.num_modules), family.d_input, axis=0),
            jnp.tile(jnp.eye(family.d_input), (family.num_modules, 1)),
        ],
        axis=1,
    )
    into = weights.transpose(1, 2, 0).reshape(family.d_hidden, -1)
    return relu_products.stacked(
        (
            jnp.concatenate([pairs, relu_products.on_code(rest, family.d_input)]),
            relu_products.join(-jnp.ones(len(pairs)), low),
        ),
        (jnp.concatenate([into, jnp.eye(family.d_hidden)], axis=1), -low),
        (world.readout.T, jnp.zeros(family.num_outputs)),
    )


def memorise(family: Hyperteacher, world: Teacher, tasks: np.ndarray) -> Perceptron:
    """A table: a copy of the teacher's hidden layer for each of these tasks, rows of zeros and ones.

    The Hamming distance to a row is linear in a z of zeros and ones. Times more than the copy can ever reach, it
    switches the copy off for every other task.
    """
    require(
        bool(np.isin(tasks, (0, 1)).all()), "only tasks whose weights are 0 or 1 can be memorised"
    )
    weights, biases = relu_products.effective(world, family.num_hot)
    own = jnp.einsum("nm,ihm->nhi", tasks, weights)
    bias = jnp.einsum("nm,hm->nh", tasks, biases)
    most = jax.nn.relu(jnp.abs(own).sum(axis=2) + bias)
    away = -most[:, :, None] * (1 - 2 * tasks)[:, None, :]
    first = jnp.concatenate([away, own], axis=2).reshape(-1, family.num_modules + family.d_input)
    readout = jnp.tile(world.readout.T, (1, len(tasks)))
    off = bias - most * tasks.sum(axis=1, keepdims=True)
    return relu_products.stacked((first, off.reshape(-1)), (readout, jnp.zeros(family.num_outputs)))


def neurons(net: Perceptron) -> int:
    """How many hidden units a network has, in all layers."""
    return sum(layer.weight.shape[0] for layer in net.layers[:-1])


def parameters(net: Perceptron) -> int:
    """How many weights and biases a network has."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(net))


def constants(family: Hyperteacher) -> tuple[float, float]:
    """c1 and c2 such that `shallow` has at most c1/sqrt(eps) + c2 M neurons, for every world that the family can draw,
    every M and every eps up to 1. They follow from the proof and the law of the worlds; nothing is fitted."""
    # Theta and Omega are drawn with variance sqrt(3)/fan-in from a normal cut at two deviations; the cut takes off
    # variance, which jax makes up for with this factor.
    cut = 2 / 0.87962566103423978
    size = family.d_input * family.d_hidden
    theta, omega = (
        cut * math.sqrt(math.sqrt(3) / fan_in) for fan_in in (family.d_input, family.d_hidden)
    )
    most = size * omega * theta * math.sqrt(family.num_hot)
    # An odd number of pieces is below sqrt(slack/eps) + 2; one square takes a ReLU less than that, and there are 2 I H.
    return 2 * size * (math.sqrt(most) + 1) + 2 * family.d_hidden, 0.0


def crossing(family: Hyperteacher, world: Teacher) -> float:
    """The eps below which `deep` has fewer neurons than `shallow`; above it there are others at which it has, too."""
    size, hidden = family.d_input * family.d_hidden, family.d_hidden
    # Neurons depend on slack/eps alone, and the shallow network of an odd n is enough up to slack/eps = n^2. With
    # hundreds of pieces it is the larger one, whatever its sizes.
    n = max(
        n
        for n in range(1, 512, 2)
        if 2 * size * (n - 1) + 2 * hidden
        <= max(1, math.ceil(math.log2(n))) * (4 * size + hidden) + hidden
    )
    return slack(family, world) / n**2


def _active(family: Hyperteacher, whole: bool) -> int:
    """How many weights of z may be above 0."""
    return family.num_modules if whole else family.num_hot
