"""Preferences in a small grid world: a task is a mixture of them, the student imitates who has it (paper, appendix).

    reward of an object = feature . B^T z,   B normal (M, F), z the task
    Q_0 = 0,   Q_k+1(s, a) = r(s, a) + discount max_a' Q_k(s', a')

Four rooms with 19 free cells. The agent and four objects stand on distinct random cells, redrawn for every episode; an
object has one of F features and is collected by stepping on it. The target is the argmax of Q_8, the first action on
ties, at every step; the action "nothing" ends the episode, although the backup takes it for waiting.
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
MAX_OBJECTS = 8  # the states are all subsets of the objects, in all cells


def _neighbours() -> np.ndarray:
    """The cell that each action leads to from each cell: itself, where a wall is in the way."""
    number = {tuple(cell): i for i, cell in enumerate(CELLS.tolist())}
    return np.array(
        [
            [number.get((r + dr, c + dc), i) for dr, dc in MOVES]
            for i, (r, c) in enumerate(CELLS.tolist())
        ]
    )


NEIGHBOURS = _neighbours()


class Layout(NamedTuple):
    """Where everything stands when an episode begins."""

    start: Int[Array, ""]
    cells: Int[Array, " objects"]
    features: Int[Array, " objects"]


class Episode(NamedTuple):
    """What happens in an episode: the state in which each step begins, the action, and what it earned."""

    layout: Layout
    cell: Int[Array, " steps"]
    present: Bool[Array, "steps objects"]
    action: Int[Array, " steps"]
    reward: Float[Array, " steps"]
    optimum: Float[Array, ""]  # the most that can be earned within the horizon, discounted


@dataclass(frozen=True)
class PreferenceGrid:
    """Points are steps: what the agent sees, and what it does next. The paper's `acc_all` is `trajectory_accuracy`.

    `policy="optimal"` counts the steps that are left, where the published policy acts as if all 8 were left always.
    `observation="compact"` gives cells and features as one-hot vectors instead of a picture of the grid.
    """

    num_modules: int = 16
    num_hot: int = 3
    num_features: int = 32
    num_objects: int = 4
    horizon: int = 8
    discount: float = 0.9
    weights: khot.Law = "discrete"
    policy: Literal["stationary", "optimal"] = "stationary"
    observation: Literal["grid", "compact"] = "grid"
    max_tasks: int = (
        0  # 0: list every task; otherwise at most so many unique rows, drawn once with table_seed
    )
    table_seed: int = 0

    def __post_init__(self):
        check(self, num_features=1, num_objects=1, horizon=1, discount=0)
        khot.check_sizes(self)
        require(
            self.discount < 1,
            f"PreferenceGrid.discount must be below 1, got {self.discount}: at 1 waiting, which ends the episode, is "
            "as good as moving",
        )
        require(
            self.num_objects <= MAX_OBJECTS,
            f"{self.num_objects} objects make too many states to plan in: set num_objects to {MAX_OBJECTS} or fewer",
        )
        require(
            self.num_modules <= self.num_features,
            f"num_modules={self.num_modules} preferences are more than num_features={self.num_features}, so they would "
            "not be independent: raise num_features",
        )

    @property
    def num_outputs(self) -> int:
        """The actions: nothing, and the four moves."""
        return len(ACTIONS)

    def tasks(self) -> Int[np.ndarray, "N M"]:
        """All rows with 1 to K active preferences, or `max_tasks` of them."""
        return khot.table(self)

    def extrapolation(self) -> Int[np.ndarray, "E M"]:
        """Rows with K+1 and K+2 active preferences."""
        return khot.beyond(self)

    def modules(self, tasks: np.ndarray) -> np.ndarray:
        """The rows are already the modules."""
        return tasks

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """Scores are also given by the number of active preferences."""
        return khot.groups(tasks)

    def init(self, key: PRNGKeyArray) -> Float[Array, "M F"]:
        """Draw what every preference makes of every feature."""
        return jax.random.normal(key, (self.num_modules, self.num_features))

    def weigh(self, key: PRNGKeyArray, row: Shaped[Array, " M"]) -> Float[Array, " M"]:
        """Give every active preference of a row a weight, by the family's law."""
        return khot.weigh(key, row, self.weights)

    def sample(
        self, world: Float[Array, "M F"], key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> tuple[Float[Array, "n d"], Int[Array, " n"]]:
        """Draw episodes of one task and lay their first n steps end to end; -1 is the action after the last."""
        keys = jax.random.split(key, math.ceil(n / self.horizon))
        played = jax.vmap(lambda key: self.play(world, key, task))(keys)
        x = jax.vmap(self._observe)(played.layout, played.cell, played.present)
        return episodes.normalise(episodes.end_to_end(x, n)), episodes.end_to_end(played.action, n)

    def examples(
        self, world: Float[Array, "M F"], key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> tuple[Float[Array, "n c"], Float[Array, "n A"]]:
        """Pairs for a few-shot code: n random states, compactly, and the one-hot action in each.

        `horizon` states of one layout, then of the next, each as if all steps were left. None is padding, as a
        quarter of the steps of episodes would be.
        """

        def of_layout(key):
            key_layout, key_cell, key_left = jax.random.split(key, 3)
            layout = self._draw(key_layout)
            best = self.plan(world, task, layout)[0][0][NEIGHBOURS].argmax(axis=1)
            cell = (jax.random.bits(key_cell, (self.horizon,)) % NUM_CELLS).astype(jnp.int32)
            left = (jax.random.bits(key_left, (self.horizon,)) % 2**self.num_objects).astype(
                jnp.int32
            )
            present = self._bits(left) & (
                layout.cells != cell[:, None]
            )  # where the agent stands nothing is left
            return self._compact(layout, cell, present), jax.nn.one_hot(
                best[cell, self._subset(present)], 5
            )

        seen, action = jax.vmap(of_layout)(jax.random.split(key, math.ceil(n / self.horizon)))
        return episodes.normalise(episodes.end_to_end(seen, n)), episodes.end_to_end(action, n)

    def score(self, prediction: Float[Array, "n A"], y: Int[Array, " n"]) -> dict[str, Array]:
        """Cross-entropy and accuracy of the steps of an episode, and of episodes as a whole (see `episode.score`)."""
        return episodes.score(prediction, y, self.horizon)

    def play(
        self, world: Float[Array, "M F"], key: PRNGKeyArray, task: Float[Array, " M"]
    ) -> Episode:
        """Draw an episode and play it as the task's owner would."""
        layout = self._draw(key)
        entered, gains = self.plan(world, task, layout)
        ahead = entered if self.policy == "optimal" else entered[:1]

        def step(state, t):
            cell, present, over = state
            subset = self._subset(present)
            options = ahead[t % len(ahead), jnp.asarray(NEIGHBOURS)[cell], subset]
            action = options.argmax()
            stays = over | (action == 0)
            after = jnp.where(stays, cell, jnp.asarray(NEIGHBOURS)[cell, action])
            reward = jnp.where(stays, 0.0, gains[after, subset])
            seen = cell, present, jnp.where(over, episodes.PADDING, action), reward
            return (after, present & (stays | (layout.cells != after)), stays), seen

        begin = layout.start, jnp.ones(self.num_objects, bool), jnp.bool_(False)
        _, steps = jax.lax.scan(step, begin, jnp.arange(self.horizon))
        return Episode(
            layout, *steps, optimum=entered[0, jnp.asarray(NEIGHBOURS)[layout.start], -1].max()
        )

    def gap(
        self, world: Float[Array, "M F"], key: PRNGKeyArray, task: Float[Array, " M"]
    ) -> Float[Array, "2"]:
        """What an episode earned, discounted, and the most that it could have earned within the horizon."""
        played = self.play(world, key, task)
        return jnp.stack(
            [(played.reward * self.discount ** jnp.arange(self.horizon)).sum(), played.optimum]
        )

    def plan(
        self, world: Float[Array, "M F"], task: Float[Array, " M"], layout: Layout
    ) -> tuple[Float[Array, "horizon cells subsets"], Float[Array, "cells subsets"]]:
        """What entering a cell is worth with k more actions to follow, k = horizon - 1 … 0, and what it earns at once.

        A state is a cell and the subset of objects still there, a number whose bits are the objects.
        """
        values = (task[:, None] * world).sum(axis=0)[
            layout.features
        ]  # not a product of matrices: exact on a GPU too
        here = layout.cells == jnp.arange(NUM_CELLS)[:, None]
        subsets = jnp.arange(2**self.num_objects)
        taken = here[:, None, :] & self._bits(subsets)
        gains = jnp.where(taken, values, 0.0).sum(axis=-1)
        left = subsets - self._subset(taken)

        def backup(entered, _):
            worth = entered[NEIGHBOURS].max(axis=1)
            entered = gains + self.discount * jnp.take_along_axis(worth, left, axis=1)
            return entered, entered

        _, later = jax.lax.scan(backup, gains, length=self.horizon - 1)
        return jnp.concatenate([gains[None], later])[::-1], gains

    def _draw(self, key: PRNGKeyArray) -> Layout:
        key_cells, key_features = jax.random.split(key)
        # Cells ranked by random numbers, by counting: a sort is slow for many short rows.
        u, number = jax.random.bits(key_cells, (NUM_CELLS,)), jnp.arange(NUM_CELLS)
        before = (u < u[:, None]) | ((u == u[:, None]) & (number < number[:, None]))
        place = jnp.arange(self.num_objects + 1)[:, None] == before.sum(axis=1)
        start, *cells = jnp.where(place, number, 0).sum(axis=1)
        features = jax.random.bits(key_features, (self.num_objects,)) % self.num_features
        return Layout(start, jnp.stack(cells), features.astype(jnp.int32))

    def _bits(self, subset: Int[Array, "*n"]) -> Bool[Array, "*n objects"]:
        return (subset[..., None] >> jnp.arange(self.num_objects, dtype=subset.dtype)) % 2 == 1

    def _subset(self, present: Bool[Array, "*n objects"]) -> Int[Array, "*n"]:
        return jnp.where(present, 2 ** jnp.arange(self.num_objects), 0).sum(axis=-1)

    def _observe(
        self, layout: Layout, cell: Int[Array, " n"], present: Bool[Array, "n objects"]
    ) -> Float[Array, "n d"]:
        if self.observation == "compact":
            return self._compact(layout, cell, present)
        # A plane for each feature, then the agent's and that of the walls. All by comparison: nothing is scattered.
        square = jnp.asarray(CELLS[:, 0] * WALLS.shape[1] + CELLS[:, 1])
        squares = jnp.arange(WALLS.size)
        on = (square[layout.cells] == squares[:, None]) & present[:, None, :]
        of = layout.features == jnp.arange(self.num_features)[:, None]
        objects = (on[:, :, None, :] & of).any(axis=-1)
        agent = (square[cell][:, None] == squares)[..., None]
        walls = jnp.broadcast_to(WALLS.reshape(-1, 1), agent.shape)
        return (
            jnp.concatenate([objects, agent, walls], axis=-1)
            .reshape(len(cell), -1)
            .astype(jnp.float32)
        )

    def _compact(
        self, layout: Layout, cell: Int[Array, " n"], present: Bool[Array, "n objects"]
    ) -> Float[Array, "n c"]:
        where, what = (
            jax.nn.one_hot(layout.cells, NUM_CELLS),
            jax.nn.one_hot(layout.features, self.num_features),
        )
        objects = jnp.concatenate([where, what], axis=1) * present[..., None]
        return jnp.concatenate(
            [jax.nn.one_hot(cell, NUM_CELLS), objects.reshape(len(cell), -1)], axis=1
        )
