"""Preferences in a small grid world: the student imitates an agent with a mixture of preferences.

    reward of an object = feature . B^T z,   B normal (M, F), z the task
    Q_0 = 0,   Q_k+1(s, a) = r(s, a) + discount max_a' Q_k(s', a')

The grid has four rooms with 19 free cells. In every episode, the agent and four objects are on
distinct random cells. An object has one of F features and is collected by stepping on it. The
target at every step is the argmax of Q_8 (on ties, the first action). The action "nothing" ends the
episode, although the recursion treats it as waiting. Source: arXiv 2507.07207, appendix
(Compositional Preference).
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from recombine.basics.errors import require
from recombine.parts import episodes, khot
from recombine.parts.field_checks import check

LAYOUT = ("wwwwwww", "w  w  w", "w  w  w", "ww   ww", "w  w  w", "w  w  w", "wwwwwww")
ACTIONS = ("nothing", "up", "right", "down", "left")
MOVES = ((0, 0), (-1, 0), (0, 1), (1, 0), (0, -1))
WALLS = np.array([[square == "w" for square in row] for row in LAYOUT])
CELLS = np.argwhere(~WALLS)  # row and column of every free cell
NUM_CELLS = len(CELLS)
MAX_OBJECTS = 8  # states are a cell and a subset of the objects


def _destinations() -> np.ndarray:
    """The cell that each action leads to from each cell; a wall stops the agent."""
    index = {tuple(cell): i for i, cell in enumerate(CELLS.tolist())}
    return np.array(
        [
            [index.get((row + down, column + right), i) for down, right in MOVES]
            for i, (row, column) in enumerate(CELLS.tolist())
        ]
    )


DESTINATIONS = _destinations()  # (cells, actions)


class Layout(NamedTuple):
    """The initial state of an episode: the cells of the agent and of the objects, and features."""

    start: Int[Array, ""]
    cells: Int[Array, " objects"]
    features: Int[Array, " objects"]


class Episode(NamedTuple):
    """An episode: the state before each step, the action and the reward.

    `optimum` is the largest discounted reward that is possible within the horizon.
    """

    layout: Layout
    cell: Int[Array, " steps"]
    present: Bool[Array, "steps objects"]
    action: Int[Array, " steps"]
    reward: Float[Array, " steps"]
    optimum: Float[Array, ""]


@dataclass(frozen=True)
class PreferenceGrid:
    """Preference tasks on a grid; points are the steps of episodes, y is the agent's action.

    The score `trajectory_accuracy` is `acc_all` in the paper.

    - `num_modules`, `num_hot`: M preferences, of which 1 to K are active in a task.
    - `num_features`, `num_objects`: the number of features F and of objects in an episode.
    - `horizon`, `discount`: the number of steps of an episode, and the discount per step.
    - `weights`: how the weights of active preferences are drawn: `"khot"` are all 1, `"discrete"`
      are in {0.5, 0.6, …, 1.0}, `"continuous"` are in [0.5, 1] (`khot.weigh`).
    - `policy`: `"stationary"` acts at every step as if the whole horizon were left, as in the
      public code; `"optimal"` takes the remaining steps into account.
    - `observation`: `"grid"` is an image of the grid, `"compact"` has cells and features as one-hot
      vectors.
    - `max_tasks`: 0 lists every task; otherwise the table has at most this many distinct rows,
      drawn with the seed `table_seed`.
    """

    num_modules: int = 16
    num_hot: int = 3
    num_features: int = 32
    num_objects: int = 4
    horizon: int = 8
    discount: float = 0.9
    weights: khot.WeightDistribution = "discrete"
    policy: Literal["stationary", "optimal"] = "stationary"
    observation: Literal["grid", "compact"] = "grid"
    max_tasks: int = 0
    table_seed: int = 0

    def __post_init__(self):
        check(self, num_features=1, num_objects=1, horizon=1, discount=0)
        khot.check_sizes(self)
        require(
            self.discount < 1,
            f"PreferenceGrid.discount must be below 1, got {self.discount}: at 1, waiting is as "
            "good as moving, and it ends the episode",
        )
        require(
            self.num_objects <= MAX_OBJECTS,
            f"PreferenceGrid.num_objects={self.num_objects} gives too many states: set it to "
            f"{MAX_OBJECTS} or fewer",
        )
        require(
            self.num_modules <= self.num_features,
            f"num_modules={self.num_modules} preferences on num_features={self.num_features} are "
            "not linearly independent: raise num_features",
        )

    @property
    def num_outputs(self) -> int:
        """The number of actions: nothing, and the four moves."""
        return len(ACTIONS)

    def tasks(self) -> Int[np.ndarray, "N M"]:
        """All rows with 1 to K active preferences, or `max_tasks` of them."""
        return khot.table(self)

    def extrapolation(self) -> Int[np.ndarray, "E M"]:
        """Rows with K+1 and K+2 active preferences."""
        return khot.extrapolation_rows(self)

    def modules(self, tasks: np.ndarray) -> np.ndarray:
        """The rows themselves, which are 0/1 rows of active preferences."""
        return tasks

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """Scores are also reported by the number of active preferences."""
        return khot.groups(tasks)

    def init(self, key: PRNGKeyArray) -> Float[Array, "M F"]:
        """Draw the value of every feature for every preference."""
        return jax.random.normal(key, (self.num_modules, self.num_features))

    def weigh(self, key: PRNGKeyArray, row: Shaped[Array, " M"]) -> Float[Array, " M"]:
        """Draw a weight for every active preference of a row."""
        return khot.weigh(key, row, self.weights)

    def sample(
        self, world: Float[Array, "M F"], key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> tuple[Float[Array, "n d"], Int[Array, " n"]]:
        """Draw episodes of one task; return their first n observations and actions.

        The action is `PADDING` after the end of an episode.
        """
        keys = jax.random.split(key, math.ceil(n / self.horizon))
        played = jax.vmap(lambda key: self.play(world, key, task))(keys)
        x = jax.vmap(self._observe)(played.layout, played.cell, played.present)
        observations = episodes.normalize(episodes.join_episodes(x, n))
        return observations, episodes.join_episodes(played.action, n)

    def examples(
        self, world: Float[Array, "M F"], key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> tuple[Float[Array, "n c"], Float[Array, "n A"]]:
        """Examples for a few-shot code: n random states in compact form, and one-hot actions.

        There are `horizon` states per layout, each as if the whole horizon were left. None of them
        is padding, in contrast to the steps of episodes.
        """

        def states_of_layout(key):
            key_layout, key_cell, key_present = jax.random.split(key, 3)
            layout = self._draw_layout(key_layout)
            values, _ = self.plan(world, task, layout)
            best_action = values[0][DESTINATIONS].argmax(axis=1)
            cell_bits = jax.random.bits(key_cell, (self.horizon,))
            cell = (cell_bits % NUM_CELLS).astype(jnp.int32)
            subset_bits = jax.random.bits(key_present, (self.horizon,))
            subset = (subset_bits % 2**self.num_objects).astype(jnp.int32)
            # No object is left on the agent's cell.
            present = self._subset_to_mask(subset) & (layout.cells != cell[:, None])
            action = best_action[cell, self._mask_to_subset(present)]
            return self._compact(layout, cell, present), jax.nn.one_hot(action, len(ACTIONS))

        keys = jax.random.split(key, math.ceil(n / self.horizon))
        states, actions = jax.vmap(states_of_layout)(keys)
        observations = episodes.normalize(episodes.join_episodes(states, n))
        return observations, episodes.join_episodes(actions, n)

    def score(self, prediction: Float[Array, "n A"], y: Int[Array, " n"]) -> dict[str, Array]:
        """Cross-entropy, accuracy, and the fraction of episodes without a wrong action."""
        return episodes.score(prediction, y, self.horizon)

    def play(
        self, world: Float[Array, "M F"], key: PRNGKeyArray, task: Float[Array, " M"]
    ) -> Episode:
        """Draw an episode in which the agent follows the policy of the task."""
        layout = self._draw_layout(key)
        values, rewards = self.plan(world, task, layout)
        policy_values = values if self.policy == "optimal" else values[:1]
        destinations = jnp.asarray(DESTINATIONS)

        def step(state, t):
            cell, present, is_over = state
            subset = self._mask_to_subset(present)
            action_values = policy_values[t % len(policy_values), destinations[cell], subset]
            action = action_values.argmax()
            ends = is_over | (action == 0)
            next_cell = jnp.where(ends, cell, destinations[cell, action])
            reward = jnp.where(ends, 0.0, rewards[next_cell, subset])
            next_present = present & (ends | (layout.cells != next_cell))
            recorded = (cell, present, jnp.where(is_over, episodes.PADDING, action), reward)
            return (next_cell, next_present, ends), recorded

        start = (layout.start, jnp.ones(self.num_objects, bool), jnp.bool_(False))
        _, (cell, present, action, reward) = jax.lax.scan(step, start, jnp.arange(self.horizon))
        all_objects = -1  # the last subset
        optimum = values[0, destinations[layout.start], all_objects].max()
        return Episode(layout, cell, present, action, reward, optimum)

    def gap(
        self, world: Float[Array, "M F"], key: PRNGKeyArray, task: Float[Array, " M"]
    ) -> Float[Array, "2"]:
        """The discounted reward of an episode, and the largest possible within the horizon."""
        played = self.play(world, key, task)
        discounts = self.discount ** jnp.arange(self.horizon)
        return jnp.stack([(played.reward * discounts).sum(), played.optimum])

    def plan(
        self, world: Float[Array, "M F"], task: Float[Array, " M"], layout: Layout
    ) -> tuple[Float[Array, "horizon cells subsets"], Float[Array, "cells subsets"]]:
        """The values and the rewards of entering a cell.

        A value is the discounted reward with k more actions to follow, k = horizon - 1, …, 0. A
        state is a cell and the subset of objects still present: a number whose bits are the
        objects.
        """
        # Not a matrix product, which a GPU may compute in lower precision.
        feature_values = (task[:, None] * world).sum(axis=0)
        object_values = feature_values[layout.features]
        is_here = layout.cells == jnp.arange(NUM_CELLS)[:, None]
        subsets = jnp.arange(2**self.num_objects)
        collected = is_here[:, None, :] & self._subset_to_mask(subsets)
        rewards = jnp.where(collected, object_values, 0.0).sum(axis=-1)
        remaining = subsets - self._mask_to_subset(collected)

        def backup(value, _):
            best = value[DESTINATIONS].max(axis=1)
            value = rewards + self.discount * jnp.take_along_axis(best, remaining, axis=1)
            return value, value

        _, later = jax.lax.scan(backup, rewards, length=self.horizon - 1)
        return jnp.concatenate([rewards[None], later])[::-1], rewards

    def _draw_layout(self, key: PRNGKeyArray) -> Layout:
        key_cells, key_features = jax.random.split(key)
        # Cells are ranked by random numbers, by counting: sorting many short rows is slow.
        number = jax.random.bits(key_cells, (NUM_CELLS,))
        cell = jnp.arange(NUM_CELLS)
        is_equal = number == number[:, None]
        is_before = (number < number[:, None]) | (is_equal & (cell < cell[:, None]))
        has_rank = jnp.arange(self.num_objects + 1)[:, None] == is_before.sum(axis=1)
        start, *cells = jnp.where(has_rank, cell, 0).sum(axis=1)
        features = jax.random.bits(key_features, (self.num_objects,)) % self.num_features
        return Layout(start, jnp.stack(cells), features.astype(jnp.int32))

    def _subset_to_mask(self, subset: Int[Array, "*n"]) -> Bool[Array, "*n objects"]:
        return (subset[..., None] >> jnp.arange(self.num_objects, dtype=subset.dtype)) % 2 == 1

    def _mask_to_subset(self, present: Bool[Array, "*n objects"]) -> Int[Array, "*n"]:
        return jnp.where(present, 2 ** jnp.arange(self.num_objects), 0).sum(axis=-1)

    def _observe(
        self, layout: Layout, cell: Int[Array, " n"], present: Bool[Array, "n objects"]
    ) -> Float[Array, "n d"]:
        if self.observation == "compact":
            return self._compact(layout, cell, present)
        # One channel per feature, then the agent and the walls. Comparisons are faster than a
        # scatter.
        square_of_cell = jnp.asarray(CELLS[:, 0] * WALLS.shape[1] + CELLS[:, 1])
        squares = jnp.arange(WALLS.size)
        on_square = (square_of_cell[layout.cells] == squares[:, None]) & present[:, None, :]
        has_feature = layout.features == jnp.arange(self.num_features)[:, None]
        objects = (on_square[:, :, None, :] & has_feature).any(axis=-1)
        agent = (square_of_cell[cell][:, None] == squares)[..., None]
        walls = jnp.broadcast_to(WALLS.reshape(-1, 1), agent.shape)
        channels = jnp.concatenate([objects, agent, walls], axis=-1)
        return channels.reshape(len(cell), -1).astype(jnp.float32)

    def _compact(
        self, layout: Layout, cell: Int[Array, " n"], present: Bool[Array, "n objects"]
    ) -> Float[Array, "n c"]:
        """One-hot vectors: the agent's cell, and the cell and feature of every object present."""
        object_cells = jax.nn.one_hot(layout.cells, NUM_CELLS)
        object_features = jax.nn.one_hot(layout.features, self.num_features)
        objects = jnp.concatenate([object_cells, object_features], axis=1) * present[..., None]
        agent = jax.nn.one_hot(cell, NUM_CELLS)
        return jnp.concatenate([agent, objects.reshape(len(cell), -1)], axis=1)
