"""Goals in mazes: go to an object in a quadrant of a maze and interact with it.

    task = (quadrant, interaction, maze, object)
    y_t = the move that leads closer to the goal; at the goal, the interaction

The student learns from demonstrations. Tasks are factored: exactly one module of each of the four
kinds is active. A maze is a random tree, so there is one path from start to goal: after t moves,
the agent is on the cell c with d(start, c) = t and d(c, goal) = d(start, goal) - t. Source: the
public code of arXiv 2507.07207.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from recombine.basics.errors import require
from recombine.parts import episodes
from recombine.parts.field_checks import check

VERBS = ("sell", "throw", "grab", "clean", "examine")
OBJECTS = ("chair", "phone", "shoes", "pen", "clock")
QUADRANTS = ("top-left", "top-right", "bottom-left", "bottom-right")
TEMPLATE = ("In", "the", "quadrant,", "find", "and", "in", "maze")

SIDE = 7
NUM_CELLS = SIDE * SIDE
NUM_FREE = 31  # free cells of a maze: 16 nodes and the 15 passages of a spanning tree
NUM_NODES = 16
MAX_MAZES = 1000  # every maze is a module and is part of up to 100 tasks
NUM_MOVES = 4  # up, right, down, left
MAX_MOVES = NUM_FREE - 1  # of an episode, followed by the interaction
WALL_DISTANCE = NUM_CELLS  # the distance from and to a wall, larger than any other
# From every free cell, some corner is at least this far away, and corners are always free. (The
# middle cell is closer to all corners, but it is always a wall.)
MIN_MOVES = 7
NUM_RANKS = 2**29  # random numbers that order cells are below it

ROW, COLUMN = np.divmod(np.arange(NUM_CELLS), SIDE)
QUADRANT = 2 * (ROW >= 4) + (COLUMN >= 4)
POSITION = np.stack([ROW, COLUMN], axis=1) / 3.0 - 1.0  # row and column, scaled to [-1, 1]
# The nodes of a maze are the 16 cells of even row and column. Every cell between two neighboring
# nodes is a potential passage.
IS_NODE = (ROW % 2 == 0) & (COLUMN % 2 == 0)
PASSAGE = np.flatnonzero((ROW + COLUMN) % 2)
FIRST_NODE = 4 * (ROW[PASSAGE] // 2) + COLUMN[PASSAGE] // 2
SECOND_NODE = FIRST_NODE + np.where(ROW[PASSAGE] % 2, 4, 1)


class Mazes(NamedTuple):
    """The walls, and the number of moves between any two cells (`WALL_DISTANCE` to a wall)."""

    walls: Bool[Array, "mazes 7 7"]
    distance: Int[Array, "mazes 49 49"]


class Scenes(NamedTuple):
    """The initial states of n episodes.

    `kind` is the object on each cell, or -1. `from_start` and `to_goal` are the distances of every
    cell from the start and to the goal. `length` is the number of moves from start to goal.
    """

    walls: Bool[Array, "n 49"]
    kind: Int[Array, "n 49"]
    from_start: Int[Array, "n 49"]
    to_goal: Int[Array, "n 49"]
    length: Int[Array, " n"]


@dataclass(frozen=True)
class GoalGrid:
    """Goal tasks on a 7x7 grid; points are the steps of demonstrations, y is the action.

    - `num_interactions`, `num_mazes`, `num_objects`: the numbers of modules of each kind, beside
      the four quadrants.
    - `num_distractors`: other objects in the maze.
    - `horizon`: the number of steps of an episode, including padding.
    - `decoy`: one distractor is the goal's object in another quadrant. Without it, as in the public
      code, no distractor is of the goal's kind, so the object alone determines the goal and the
      quadrant is redundant. (The maze is always redundant: its walls are visible.)
    """

    num_interactions: int = 5
    num_mazes: int = 5
    num_objects: int = 5
    num_distractors: int = 4
    horizon: int = 48
    decoy: bool = False

    def __post_init__(self):
        check(self, num_interactions=1, num_mazes=1, num_objects=1, num_distractors=0)
        for name, words in (("num_interactions", VERBS), ("num_objects", OBJECTS)):
            value = getattr(self, name)
            require(
                value <= len(words),
                f"GoalGrid.{name} must be at most {len(words)}, the number of words for them, "
                f"got {value}",
            )
        require(
            self.num_mazes <= MAX_MAZES,
            f"GoalGrid.num_mazes must be at most {MAX_MAZES}, to keep the task table below 100 MB, "
            f"got {self.num_mazes}",
        )
        require(
            self.horizon > MAX_MOVES,
            f"GoalGrid.horizon must be at least {MAX_MOVES + 1}, the steps of the longest path, "
            f"got {self.horizon}",
        )
        require(
            self.num_distractors < NUM_FREE,
            f"GoalGrid.num_distractors must be at most {NUM_FREE - 1}, the free cells beside the "
            f"goal, got {self.num_distractors}",
        )
        require(
            not self.decoy or self.num_distractors > 0,
            "GoalGrid.decoy is one of the distractors: raise num_distractors to at least 1",
        )
        require(
            self.num_objects > 1 or self.num_distractors == int(self.decoy),
            "GoalGrid.num_objects=1 leaves no other object for a distractor: raise it, or lower "
            "num_distractors",
        )

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The numbers of quadrants, interactions, mazes and objects."""
        return len(QUADRANTS), self.num_interactions, self.num_mazes, self.num_objects

    @property
    def num_modules(self) -> int:
        """Every quadrant, interaction, maze and object is a module."""
        return sum(self.sizes)

    @property
    def num_outputs(self) -> int:
        """The actions: four moves (up, right, down, left), then the interactions."""
        return NUM_MOVES + self.num_interactions

    def tasks(self) -> Int[np.ndarray, "N 4"]:
        """All goals: rows of quadrant, interaction, maze and object."""
        return np.stack([grid.ravel() for grid in np.indices(self.sizes, np.int32)], axis=1)

    def modules(self, tasks: np.ndarray) -> Int[np.ndarray, "N M"]:
        """One active module of each kind."""
        hot = [
            np.eye(size, dtype=np.int8)[column]
            for size, column in zip(self.sizes, tasks.T, strict=True)
        ]
        return np.concatenate(hot, axis=1)

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """Scores are also reported by quadrant and by interaction."""
        return {"quadrant": tasks[:, 0], "interaction": tasks[:, 1]}

    # Compiled even outside of a program: one operation at a time would take seconds.
    @functools.partial(jax.jit, static_argnums=0)
    def init(self, key: PRNGKeyArray) -> Mazes:
        """Draw the mazes: minimum spanning trees of the nodes, with passages of random lengths."""
        length = _distinct_ranks(jax.random.bits(key, (self.num_mazes, len(PASSAGE))))
        longest = jnp.full((self.num_mazes, NUM_NODES, NUM_NODES), NUM_RANKS)
        longest = longest.at[:, FIRST_NODE, SECOND_NODE].set(length)
        longest = longest.at[:, SECOND_NODE, FIRST_NODE].set(length)

        def double_paths(_, longest):
            # The longest passage on the best path between two nodes, over twice as many passages.
            via_node = jnp.maximum(longest[:, :, :, None], longest[:, None])
            return jnp.minimum(longest, via_node.min(axis=2))

        # A passage is in the tree unless a path of shorter passages connects its nodes. Four
        # doublings cover paths through all nodes.
        longest = jax.lax.fori_loop(0, 4, double_paths, longest)
        in_tree = longest[:, FIRST_NODE, SECOND_NODE] == length
        nodes = jnp.broadcast_to(IS_NODE, (self.num_mazes, NUM_CELLS))
        free = nodes.at[:, PASSAGE].set(in_tree).reshape(-1, SIDE, SIDE)
        return Mazes(~free, _distances(free))

    def weigh(self, key: PRNGKeyArray, row: Shaped[Array, "4"]) -> Float[Array, " M"]:
        """Every active module has the weight 1."""
        return jnp.concatenate([jax.nn.one_hot(row[i], size) for i, size in enumerate(self.sizes)])

    @functools.partial(jax.jit, static_argnums=(0, 4))
    def sample(
        self, world: Mazes, key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> tuple[Float[Array, "n d"], Int[Array, " n"]]:
        """Draw demonstrations of one task; return the first n observations and actions.

        An observation has 49 cells for each object, for the walls and for the agent, divided by the
        root of its mean square. After the interaction it does not change, and y is `PADDING`.
        """
        num_episodes = math.ceil(n / self.horizon)
        scenes = self._draw_scenes(world, key, task, num_episodes)
        step = jnp.arange(self.horizon)
        length = scenes.length[:, None]
        cell, action = self._demonstrate(scenes, task, jnp.minimum(step, length))
        objects = scenes.kind[:, None] == jnp.arange(self.num_objects)[:, None]
        static = jnp.concatenate([objects.reshape(num_episodes, -1), scenes.walls], axis=1)
        num_static = static.shape[1]
        is_agent = cell[:, :, None] + num_static == jnp.arange(num_static + NUM_CELLS)
        x = jnp.pad(static, ((0, 0), (0, NUM_CELLS)))[:, None] | is_agent
        y = jnp.where(step <= length, action, episodes.PADDING)
        observations = episodes.join_episodes(x, n).astype(jnp.float32)
        return episodes.normalize(observations), episodes.join_episodes(y, n)

    @functools.partial(jax.jit, static_argnums=(0, 4))
    def examples(
        self, world: Mazes, key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> tuple[Float[Array, "n d"], Float[Array, "n A"]]:
        """A random step of each of n demonstrations, in a compact form, and its one-hot action.

        The form has the walls (49), the agent's row and column, and for each object its row, its
        column and its one-hot kind: 86 numbers by default. Rows and columns are in [-1, 1]. Objects
        are in reading order, which does not reveal the goal.
        """
        key_scenes, key_step = jax.random.split(key)
        scenes = self._draw_scenes(world, key_scenes, task, n)
        num_steps = (scenes.length + 1).astype(jnp.uint32)
        step = (jax.random.bits(key_step, (n,)) % num_steps).astype(jnp.int32)
        cell, action = self._demonstrate(scenes, task, step[:, None])
        num_so_far = jnp.cumsum(scenes.kind >= 0, axis=1)  # objects up to each cell
        object_index = jnp.arange(1 + self.num_distractors)[:, None]
        cells = (num_so_far[:, None] > object_index).argmax(axis=2)
        kind = jax.nn.one_hot(jnp.take_along_axis(scenes.kind, cells, axis=1), self.num_objects)
        position = jnp.asarray(POSITION, jnp.float32)
        objects = jnp.concatenate([position[cells], kind], axis=2).reshape(n, -1)
        walls = scenes.walls.astype(jnp.float32)
        x = jnp.concatenate([walls, position[cell[:, 0]], objects], axis=1)
        return x, jax.nn.one_hot(action[:, 0], self.num_outputs)

    def score(self, prediction: Float[Array, "n A"], y: Int[Array, " n"]) -> dict[str, Array]:
        """Cross-entropy, accuracy, and the fraction of episodes without a wrong action."""
        return episodes.score(prediction, y, self.horizon)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The words of sentences; full stops and commas belong to the words before them."""
        mazes = tuple(f"{i + 1}." for i in range(self.num_mazes))
        verbs = VERBS[: self.num_interactions]
        objects = OBJECTS[: self.num_objects]
        return TEMPLATE + QUADRANTS + verbs + mazes + objects

    def sentence(self, task: Float[Array, " M"]) -> Int[Array, " words"]:
        """The task in words: In the top-left quadrant, find and sell the chair in maze 1."""
        first_words = len(TEMPLATE) + np.cumsum((0, *self.sizes[:-1]))
        quadrant, verb, maze, thing = (
            value + int(first) for value, first in zip(self._values(task), first_words, strict=True)
        )
        text = "In the {quadrant} quadrant, find and {verb} the {object} in maze {maze}"
        blanks = {"{quadrant}": quadrant, "{verb}": verb, "{object}": thing, "{maze}": maze}
        words = [blanks[word] if word in blanks else TEMPLATE.index(word) for word in text.split()]
        return jnp.stack([jnp.int32(word) for word in words])

    def _values(self, task: Float[Array, " M"]) -> list[Int[Array, ""]]:
        """The quadrant, interaction, maze and object of a task."""
        return [one_hot.argmax() for one_hot in jnp.split(task, np.cumsum(self.sizes)[:-1])]

    def _draw_scenes(
        self, world: Mazes, key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> Scenes:
        quadrant, _, maze, goal_kind = self._values(task)
        is_free = ~world.walls[maze].reshape(-1)
        in_quadrant = quadrant == QUADRANT
        bits = jax.random.bits(key, (4 + self.decoy, n, NUM_CELLS))
        goal = _pick(bits[0], is_free & in_quadrant)
        to_goal = world.distance[maze, goal]
        start = _pick(bits[1], (to_goal >= MIN_MOVES) & (to_goal < WALL_DISTANCE))
        # Objects are on the first cells of a random order that has the goal first, then the decoy,
        # then other free cells, and walls last.
        has_goal_kind = jnp.arange(NUM_CELLS) == goal[:, None]
        priority = is_free + 2 * has_goal_kind
        if self.decoy:
            is_decoy = jnp.arange(NUM_CELLS) == _pick(bits[4], is_free & ~in_quadrant)[:, None]
            has_goal_kind = has_goal_kind | is_decoy
            priority = priority + is_decoy
        order = _distinct_ranks(bits[2]) + NUM_RANKS * priority
        num_before = (order[:, None] > order[:, :, None]).sum(axis=2)
        has_object = num_before <= self.num_distractors
        num_other_kinds = max(1, self.num_objects - 1)
        shift = (bits[3] % num_other_kinds).astype(goal_kind.dtype)
        other_kind = (goal_kind + 1 + shift) % self.num_objects
        kind = jnp.where(has_object, jnp.where(has_goal_kind, goal_kind, other_kind), -1)
        return Scenes(
            walls=jnp.broadcast_to(~is_free, (n, NUM_CELLS)),
            kind=kind,
            from_start=world.distance[maze, start],
            to_goal=to_goal,
            length=world.distance[maze, goal, start],
        )

    def _demonstrate(
        self, scenes: Scenes, task: Float[Array, " M"], step: Int[Array, "n steps"]
    ) -> tuple[Int[Array, "n steps"], Int[Array, "n steps"]]:
        """The agent's cell after the given numbers of moves, and its action there."""
        moves_left = scenes.length[:, None] - step
        after_step = scenes.from_start[:, None] == step[:, :, None]
        before_goal = scenes.to_goal[:, None] == moves_left[:, :, None]
        cell = (after_step & before_goal).argmax(axis=2)
        # The first move that leads closer to the goal; at the goal, no move does.
        grid = scenes.to_goal.reshape(-1, SIDE, SIDE)
        after_move = _neighbor_distances(grid).reshape(NUM_MOVES, -1, NUM_CELLS)
        is_closer = after_move < scenes.to_goal
        interaction = NUM_MOVES + self._values(task)[1]
        action = jnp.where(is_closer.any(axis=0), is_closer.argmax(axis=0), interaction)
        return cell, jnp.take_along_axis(action, cell, axis=1)


def _distinct_ranks(bits: Shaped[Array, "... cells"]) -> Int[Array, "... cells"]:
    """Distinct random numbers below `NUM_RANKS`: the last six bits are the index of the cell."""
    return ((bits >> 9) << 6).astype(jnp.int32) + jnp.arange(bits.shape[-1])


def _pick(bits: Shaped[Array, "n cells"], allowed: Bool[Array, "*n cells"]) -> Int[Array, " n"]:
    """A random allowed cell for each of n rows, all of them equally likely."""
    return jnp.where(allowed, bits | 1, 0).argmax(axis=1)


def _neighbor_distances(distance: Int[Array, "*n 7 7"]) -> Int[Array, "4 *n 7 7"]:
    """The distances of the cells above, right, below and left of every cell."""
    padding = [(0, 0)] * (distance.ndim - 2) + [(1, 1), (1, 1)]
    padded = jnp.pad(distance, padding, constant_values=WALL_DISTANCE)
    above = padded[..., :-2, 1:-1]
    right = padded[..., 1:-1, 2:]
    below = padded[..., 2:, 1:-1]
    left = padded[..., 1:-1, :-2]
    return jnp.stack([above, right, below, left])


def _distances(free: Bool[Array, "mazes 7 7"]) -> Int[Array, "mazes 49 49"]:
    """The number of moves between any two cells, by relaxation from all cells at once."""
    start = jnp.eye(NUM_CELLS, dtype=bool).reshape(NUM_CELLS, SIDE, SIDE)
    free = free[:, None]

    def relax(_, distance):
        via_neighbor = 1 + _neighbor_distances(distance).min(axis=0)
        return jnp.where(free, jnp.minimum(distance, via_neighbor), WALL_DISTANCE)

    distance = jnp.where(free & start, 0, WALL_DISTANCE)
    distance = jax.lax.fori_loop(0, MAX_MOVES, relax, distance)
    return distance.reshape(-1, NUM_CELLS, NUM_CELLS)
