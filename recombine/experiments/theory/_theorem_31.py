"""Theorem 3.1 as a construction: a ReLU MLP with few neurons computes all tasks of a hyperteacher.

    f(z, x) = Omega^T relu(sum_i w_i(z) x_i + b(z)),   w(z) = sum_m z_m Theta_m / sqrt(K)

and b(z) is computed as w(z) is.

Statement (arXiv 2507.07207): on a compact set of inputs, for every number of modules M and every
precision eps, a ReLU MLP with O(1/sqrt(eps) + M) neurons is within eps of the hyperteacher.

Assumptions: one hidden layer; x in [-1, 1]^I; at most K entries of z are nonzero, each in [0, 1];
I, H, O and K are fixed; and the entries of Theta and Omega are bounded for all M. (Those of our
teachers are: they have truncated normal distributions.)

Proof, which the code follows. The weights w are linear in z. On the compact set |w| <= R, where R
is the larger of the sum of the K largest positive parts of Theta and that of the K largest negative
parts, divided by sqrt(K). With

    t+ = (w/R + x)/2 and t- = (w/R - x)/2, both in [-1, 1] and linear in (z, x):

    w x = R (t+^2 - t-^2)

The square is approximated by n equal linear pieces between points on its graph. They lie above it
by at most 1/n^2. So a product has an error of at most R/n^2 in either direction, and an output has
an error of at most slack/n^2, with slack = max_o sum_h |Omega_ho| sum_i R_ih, because a ReLU never
enlarges an error. So n = sqrt(slack/eps) pieces are enough, and slack is bounded for all M.

    shallow    two hidden layers. For odd n, a square takes n - 1 ReLUs, all of which point outward:
               the middle piece is flat, and constants cancel between t+ and t-. The second hidden
               layer is that of the teacher.
    deep       beyond the theorem: n = 2^m pieces from m layers of folds (Yarotsky 2017), so the
               number of neurons grows as log(1/eps)
    exact      for weights that are 0 or 1, without error: z x = relu(x - 1 + 2z) - z, I M neurons
    memorise   one copy of the teacher for every task of a list, switched off for all other tasks

Only R depends on M. So the number of neurons needs no term that grows with M. The number of
parameters grows linearly, since every neuron has the input z. On the whole cube, z in [0, 1]^M, R
grows as M and the neurons as sqrt(M/eps): a product, not a sum. Networks have the data type of the
world's arrays; for an eps below 1e-4 that should be float64.
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
    """The shallow network with `pieces` pieces per square; `whole`: for all z in [0, 1]^M."""
    return relu_products.network(world, family.num_hot, _num_active(family, whole), pieces)


def folded(family: Hyperteacher, world: Teacher, levels: int, whole: bool = False) -> Perceptron:
    """The deep network: as accurate as 2^levels pieces, with `levels` layers of folds.

    With v = (t + 1)/2 the square is t^2 = 1 - sum_s 4^(1-s) g_s(v), where g_1 is the tent
    2v - 4 relu(v - 1/2) and g_s is the tent of g_(s-1). A layer has the two ReLUs of each tent. For
    each of the teacher's hidden units it has one more ReLU, which carries the sum so far. This sum
    is at least -offset, so with the offset added the ReLU does not change it.
    """
    require(levels >= 1, f"the deep network needs at least 1 level, got {levels}")
    squares, mix, biases, low = relu_products.square_terms(
        world, family.num_hot, _num_active(family, whole)
    )
    offset = low + jnp.abs(mix).sum(axis=1) / 2
    num_squares = len(squares)
    d_hidden = family.d_hidden
    identity = jnp.eye(num_squares)
    no_sums = jnp.zeros((num_squares, d_hidden))
    tent = jnp.concatenate([2 * identity, -4 * identity, no_sums], axis=1)
    sums = jnp.eye(d_hidden, 2 * num_squares + d_hidden, 2 * num_squares)

    first_weight = jnp.concatenate([squares / 2, squares / 2, biases])
    first_bias = jnp.concatenate([np.repeat([0.5, 0.0], num_squares), offset])
    fold_bias = jnp.concatenate([np.repeat([0.0, -0.5], num_squares), jnp.zeros(d_hidden)])
    layers = [(first_weight, first_bias)]
    for level in range(1, levels):
        next_sums = sums - 4.0 ** (1 - level) * mix @ tent
        layers.append((jnp.concatenate([tent, tent, next_sums]), fold_bias))
    last_sums = sums - 4.0 ** (1 - levels) * mix @ tent
    return relu_products.perceptron_from_layers(
        *layers, (last_sums, -offset), (world.readout.T, jnp.zeros(family.num_outputs))
    )


def slack(family: Hyperteacher, world: Teacher, whole: bool = False) -> float:
    """The error that the proof allows an output with one piece; n pieces divide it by n^2."""
    # NumPy, because jax would compile a dozen programs for these few numbers.
    theta = np.asarray(world.modules[0], float)
    omega = np.abs(np.asarray(world.readout, float))
    num_active = _num_active(family, whole)

    def largest_sum(values: np.ndarray) -> np.ndarray:
        return np.sort(np.maximum(values, 0), axis=0)[-num_active:].sum(axis=0)

    largest_weights = np.maximum(largest_sum(theta), largest_sum(-theta))
    return float((largest_weights.sum(axis=0) / math.sqrt(family.num_hot) @ omega).max())


def pieces(family: Hyperteacher, world: Teacher, eps: float, whole: bool = False) -> int:
    """The smallest odd number of pieces that guarantees eps.

    An even number takes as many ReLUs as the next odd one.
    """
    require(eps > 0, f"eps must be above 0, got {eps}: no number of pieces is exact")
    return math.ceil(math.sqrt(slack(family, world, whole) / eps)) | 1


def levels(family: Hyperteacher, world: Teacher, eps: float, whole: bool = False) -> int:
    """The fewest layers of folds that guarantee eps."""
    require(eps > 0, f"eps must be above 0, got {eps}: no number of layers is exact")
    return max(1, math.ceil(math.log(slack(family, world, whole) / eps, 4)))


def shallow(family: Hyperteacher, world: Teacher, eps: float, whole: bool = False) -> Perceptron:
    """The theorem's network: within eps of the teacher, with two hidden layers."""
    return plan("shallow", family, world, eps, whole)(world)


def deep(family: Hyperteacher, world: Teacher, eps: float, whole: bool = False) -> Perceptron:
    """A network within eps of the teacher; its layers and neurons grow as log(1/eps)."""
    return plan("deep", family, world, eps, whole)(world)


def plan(
    construction: Construction,
    family: Hyperteacher,
    world: Teacher,
    eps: float = 0.0,
    whole: bool = False,
) -> Callable[[Teacher], Perceptron]:
    """A function that builds the network for a world, with fixed sizes.

    `jax.eval_shape` of it gives the sizes without building the network. `memorise` is built for all
    tasks with 1 to K active modules.
    """
    if construction == "shallow":
        num_pieces = pieces(family, world, eps, whole)
        return functools.partial(network, family, pieces=num_pieces, whole=whole)
    if construction == "deep":
        num_levels = levels(family, world, eps, whole)
        return functools.partial(folded, family, levels=num_levels, whole=whole)
    if construction == "exact":
        return functools.partial(exact, family)
    tasks = khot.all_rows(family.num_modules, family.num_hot)
    return functools.partial(memorise, family, tasks=tasks)


def widths(
    construction: Construction,
    family: Hyperteacher,
    world: Teacher,
    eps: float = 0.0,
    whole: bool = False,
) -> tuple[int, ...]:
    """The widths of the hidden layers of the network that `plan` builds, without building it."""
    d_input = family.d_input
    d_hidden = family.d_hidden
    if construction == "shallow":
        return relu_products.widths(d_input, d_hidden, pieces(family, world, eps, whole))
    if construction == "deep":
        num_levels = levels(family, world, eps, whole)
        return (4 * d_input * d_hidden + d_hidden,) * num_levels + (d_hidden,)
    if construction == "exact":
        return d_input * family.num_modules + d_hidden, d_hidden
    return (d_hidden * family.num_tasks,)


def exact(family: Hyperteacher, world: Teacher) -> Perceptron:
    """A network that equals the teacher on all tasks whose weights are 0 or 1.

    Any number of modules may be active.
    """
    weights, biases = relu_products.effective_weights(world, family.num_hot)
    # Terms that are linear in z: the biases, and -z_m from each product z_m x_i.
    linear_terms = biases - weights.sum(axis=0)
    low = relu_products.largest_sum(-linear_terms, family.num_modules)
    z_weights = jnp.repeat(2 * jnp.eye(family.num_modules), family.d_input, axis=0)
    x_weights = jnp.tile(jnp.eye(family.d_input), (family.num_modules, 1))
    products = jnp.concatenate([z_weights, x_weights], axis=1)
    linear_rows = relu_products.pad_with_zero_inputs(linear_terms, family.d_input)

    first_weight = jnp.concatenate([products, linear_rows])
    first_bias = jnp.concatenate([-jnp.ones(len(products)), low])
    sum_products = weights.transpose(1, 2, 0).reshape(family.d_hidden, -1)
    second_weight = jnp.concatenate([sum_products, jnp.eye(family.d_hidden)], axis=1)
    return relu_products.perceptron_from_layers(
        (first_weight, first_bias),
        (second_weight, -low),
        (world.readout.T, jnp.zeros(family.num_outputs)),
    )


def memorise(family: Hyperteacher, world: Teacher, tasks: np.ndarray) -> Perceptron:
    """A table: a copy of the teacher's hidden layer for each of these tasks (rows of 0 and 1).

    For a z of zeros and ones, the Hamming distance to a task is linear in z. Its multiple by the
    largest activation of the copy is subtracted, which switches the copy off for every other task.
    """
    is_binary = bool(np.isin(tasks, (0, 1)).all())
    require(is_binary, "only tasks whose weights are 0 or 1 can be memorized")
    weights, biases = relu_products.effective_weights(world, family.num_hot)
    x_weights = jnp.einsum("nm,ihm->nhi", tasks, weights)
    own_bias = jnp.einsum("nm,hm->nh", tasks, biases)
    max_activation = jax.nn.relu(jnp.abs(x_weights).sum(axis=2) + own_bias)
    z_weights = -max_activation[:, :, None] * (1 - 2 * tasks)[:, None, :]
    weight = jnp.concatenate([z_weights, x_weights], axis=2)
    bias = own_bias - max_activation * tasks.sum(axis=1, keepdims=True)
    readout = jnp.tile(world.readout.T, (1, len(tasks)))
    return relu_products.perceptron_from_layers(
        (weight.reshape(-1, family.num_modules + family.d_input), bias.reshape(-1)),
        (readout, jnp.zeros(family.num_outputs)),
    )


def neurons(net: Perceptron) -> int:
    """The number of hidden units of a network, in all layers."""
    return sum(layer.weight.shape[0] for layer in net.layers[:-1])


def parameters(net: Perceptron) -> int:
    """The number of weights and biases of a network."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(net))


def constants(family: Hyperteacher) -> tuple[float, float]:
    """c1 and c2 such that `shallow` has at most c1/sqrt(eps) + c2 M neurons.

    This holds for every world that the family can draw, every M and every eps up to 1. The
    constants follow from the proof and the distribution of the worlds; nothing is fitted.
    """
    # Theta and Omega are drawn with variance sqrt(3)/fan-in from a normal distribution truncated
    # at two standard deviations. jax corrects for the variance that truncation removes.
    truncation = 2 / 0.87962566103423978
    max_theta = truncation * math.sqrt(math.sqrt(3) / family.d_input)
    max_omega = truncation * math.sqrt(math.sqrt(3) / family.d_hidden)
    num_products = family.d_input * family.d_hidden
    max_slack = num_products * max_omega * max_theta * math.sqrt(family.num_hot)
    # The odd number of pieces is below sqrt(slack/eps) + 2. Each of the two squares of a product
    # takes one ReLU less than it has pieces.
    return 2 * num_products * (math.sqrt(max_slack) + 1) + 2 * family.d_hidden, 0.0


def crossing(family: Hyperteacher, world: Teacher) -> float:
    """The eps below which `deep` always has fewer neurons than `shallow`.

    Above it, `deep` has fewer neurons at some eps only.
    """
    num_products = family.d_input * family.d_hidden
    d_hidden = family.d_hidden

    def is_shallow_smaller(num_pieces: int) -> bool:
        num_levels = max(1, math.ceil(math.log2(num_pieces)))
        num_shallow = 2 * num_products * (num_pieces - 1) + 2 * d_hidden
        num_deep = num_levels * (4 * num_products + d_hidden) + d_hidden
        return num_shallow <= num_deep

    # The neurons depend on slack/eps only. A shallow network with an odd number n of pieces is
    # enough up to slack/eps = n^2. With hundreds of pieces it is always the larger network.
    num_pieces = max(filter(is_shallow_smaller, range(1, 512, 2)))
    return slack(family, world) / num_pieces**2


def _num_active(family: Hyperteacher, whole: bool) -> int:
    """The largest number of nonzero entries of z."""
    return family.num_modules if whole else family.num_hot
