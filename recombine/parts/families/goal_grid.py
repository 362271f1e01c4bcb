"""Goals in mazes: go to an object in a quadrant of a maze and do something with it, learned from demonstrations.

    task = (quadrant, interaction, maze, object),   y_t = the move that leads closer to the goal, there the interaction

A factored space of tasks: one module of each of the four kinds is active. A maze is a random tree, which has one way
from start to goal: after t moves the agent is on the cell c with d(start, c) = t and d(c, goal) = d(start, goal) - t.
"""

import functools
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
NUM_FREE = 31  # a tree: 16 nodes, and 15 passages between them
NUM_NODES = 16
MAX_MAZES = 1000  # every maze is a module, and has up to 100 tasks
NUM_MOVES = 4  # up, right, down, left
LONGEST = NUM_FREE - 1  # moves; with the interaction an episode has at most one step more
FAR = NUM_CELLS  # the distance to a wall
# The corners are free, and one of them is 7 moves or more from any cell but the middle one, which is always a wall.
LEAST_MOVES = 7
LOTS = 2**29  # the random numbers that put cells in order are below it

ROW, COLUMN = np.divmod(np.arange(NUM_CELLS), SIDE)
QUADRANT = 2 * (ROW >= 4) + (COLUMN >= 4)
PLACE = np.stack([ROW, COLUMN], axis=1) / 3.0 - 1.0  # from -1 to 1
# Nodes of a maze are the 16 cells of even row and column. Between two neighbouring ones lies a possible passage.
NODE = (ROW % 2 == 0) & (COLUMN % 2 == 0)
PASSAGE = np.flatnonzero((ROW + COLUMN) % 2)
END = 4 * (ROW[PASSAGE] // 2) + COLUMN[PASSAGE] // 2
OTHER_END = END + np.where(ROW[PASSAGE] % 2, 4, 1)


class Mazes(NamedTuple):
    """The walls, and how many moves apart any two cells are (`FAR` where one of them is a wall)."""

    walls: Bool[Array, "mazes 7 7"]
    distance: Int[Array, "mazes 49 49"]


class Scenes(NamedTuple):
    """How episodes begin: the walls, what stands where (-1: nothing), and all distances from the start and to the goal.

    `length` is the number of moves from the start to the goal.
    """

    walls: Bool[Array, "n 49"]
    kind: Int[Array, "n 49"]
    from_start: Int[Array, "n 49"]
    to_goal: Int[Array, "n 49"]
    length: Int[Array, " n"]


@dataclass(frozen=True)
class GoalGrid:
    """A student sees the 7x7 grid (a plane per object, the walls, the agent) and learns to act as demonstrated.

    As published, distractors are never of the goal's kind, so its object alone tells where to go: the quadrant says
    nothing new. With `decoy` one of them is the goal's object in another quadrant, so that the quadrant must be read.
    (The maze need not be: its walls are seen.)
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
                f"GoalGrid.{name} must be at most {len(words)}, so many have a word, got {value}",
            )
        require(
            self.num_mazes <= MAX_MAZES,
            f"GoalGrid.num_mazes must be at most {MAX_MAZES}, for which the table of tasks has 100 MB, "
            f"got {self.num_mazes}",
        )
        require(
            self.horizon > LONGEST,
            f"GoalGrid.horizon must be at least {LONGEST + 1}, which the longest way takes, got {self.horizon}",
        )
        require(
            self.num_distractors < NUM_FREE,
            f"GoalGrid.num_distractors={self.num_distractors} do not fit beside the goal: at most {NUM_FREE - 1} do",
        )
        require(
            not self.decoy or self.num_distractors > 0,
            "GoalGrid.decoy is one of the distractors: raise num_distractors to at least 1",
        )
        require(
            self.num_objects > 1 or self.num_distractors == int(self.decoy),
            "GoalGrid.num_objects=1 leaves no other object for a distractor: raise it, or lower num_distractors",
        )

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """How many quadrants, interactions, mazes and objects there are."""
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
        """Scores are also given by quadrant and by interaction."""
        return {"quadrant": tasks[:, 0], "interaction": tasks[:, 1]}

    # Compiled outside of a program too: one operation at a time would take seconds.
    @functools.partial(jax.jit, static_argnums=0)
    def init(self, key: PRNGKeyArray) -> Mazes:
        """Draw the mazes: minimum spanning trees of the nodes, with passages of random lengths."""
        length = _distinct(jax.random.bits(key, (self.num_mazes, len(PASSAGE))))
        joined = jnp.full((self.num_mazes, NUM_NODES, NUM_NODES), LOTS)
        joined = joined.at[:, END, OTHER_END].set(length).at[:, OTHER_END, END].set(length)

        def detour(_, longest):
            return jnp.minimum(
                longest, jnp.maximum(longest[:, :, :, None], longest[:, None]).min(axis=2)
            )

        # A passage is in the tree unless shorter ones lead around it. Four doublings reach ways through all nodes.
        in_tree = jax.lax.fori_loop(0, 4, detour, joined)[:, END, OTHER_END] == length
        free = jnp.broadcast_to(NODE, (self.num_mazes, NUM_CELLS)).at[:, PASSAGE].set(in_tree)
        free = free.reshape(-1, SIDE, SIDE)
        return Mazes(~free, _distances(free))

    def weigh(self, key: PRNGKeyArray, row: Shaped[Array, "4"]) -> Float[Array, " M"]:
        """Every active module has the weight 1."""
        return jnp.concatenate([jax.nn.one_hot(row[i], size) for i, size in enumerate(self.sizes)])

    @functools.partial(jax.jit, static_argnums=(0, 4))
    def sample(
        self, world: Mazes, key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> tuple[Float[Array, "n d"], Int[Array, " n"]]:
        """Draw demonstrations of one task; their first n steps, observations and actions.

        An observation has 49 cells for each object, for the walls and for the agent, divided by the root of its mean
        square. It stays as it is after the interaction.
        """
        scenes = self._scenes(world, key, task, -(-n // self.horizon))
        step, length = jnp.arange(self.horizon), scenes.length[:, None]
        cell, action = self._demonstrate(scenes, task, jnp.minimum(step, length))
        objects = scenes.kind[:, None] == jnp.arange(self.num_objects)[:, None]
        still = jnp.concatenate([objects.reshape(len(cell), -1), scenes.walls], axis=1)
        agent = cell[:, :, None] + still.shape[1] == jnp.arange(still.shape[1] + NUM_CELLS)
        x = jnp.pad(still, ((0, 0), (0, NUM_CELLS)))[:, None] | agent
        y = jnp.where(step <= length, action, episodes.PADDING)
        return episodes.normalise(
            episodes.end_to_end(x, n).astype(jnp.float32)
        ), episodes.end_to_end(y, n)

    @functools.partial(jax.jit, static_argnums=(0, 4))
    def examples(
        self, world: Mazes, key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> tuple[Float[Array, "n d"], Float[Array, "n A"]]:
        """A random step of each of n demonstrations, narrower than `sample` has it, and its one-hot action.

        The walls (49), the agent's row and column, and for each object its row, its column and its kind, one-hot: 86
        numbers. Rows and columns go from -1 to 1. Objects are in reading order, which does not tell which is the goal.
        """
        key_scenes, key_step = jax.random.split(key)
        scenes = self._scenes(world, key_scenes, task, n)
        step = (jax.random.bits(key_step, (n,)) % (scenes.length + 1).astype(jnp.uint32)).astype(
            jnp.int32
        )
        cell, action = self._demonstrate(scenes, task, step[:, None])
        so_far = jnp.cumsum(scenes.kind >= 0, axis=1)
        cells = (so_far[:, None] > jnp.arange(1 + self.num_distractors)[:, None]).argmax(axis=2)
        kind = jax.nn.one_hot(jnp.take_along_axis(scenes.kind, cells, axis=1), self.num_objects)
        place = jnp.asarray(PLACE, jnp.float32)
        objects = jnp.concatenate([place[cells], kind], axis=2).reshape(n, -1)
        x = jnp.concatenate([scenes.walls.astype(jnp.float32), place[cell[:, 0]], objects], axis=1)
        return x, jax.nn.one_hot(action[:, 0], self.num_outputs)

    def score(self, prediction: Float[Array, "n A"], y: Int[Array, " n"]) -> dict[str, Array]:
        """Cross-entropy, the fraction of right actions, and that of episodes without a wrong one."""
        return episodes.score(prediction, y, self.horizon)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The words of sentences; full stops and commas belong to the words before them."""
        mazes = tuple(f"{i + 1}." for i in range(self.num_mazes))
        return (
            *TEMPLATE,
            *QUADRANTS,
            *VERBS[: self.num_interactions],
            *mazes,
            *OBJECTS[: self.num_objects],
        )

    def sentence(self, task: Float[Array, " M"]) -> Int[Array, " words"]:
        """The task in words: In the top-left quadrant, find and sell the chair in maze 1."""
        first = len(TEMPLATE) + np.cumsum((0, *self.sizes[:-1]))
        quadrant, verb, maze, thing = (
            value + int(i) for value, i in zip(self._values(task), first, strict=True)
        )
        words = (
            "In",
            "the",
            quadrant,
            "quadrant,",
            "find",
            "and",
            verb,
            "the",
            thing,
            "in",
            "maze",
            maze,
        )
        return jnp.stack(
            [jnp.int32(TEMPLATE.index(word) if isinstance(word, str) else word) for word in words]
        )

    def _values(self, task: Float[Array, " M"]) -> list[Int[Array, ""]]:
        """The row of a task: its quadrant, interaction, maze and object."""
        return [part.argmax() for part in jnp.split(task, np.cumsum(self.sizes)[:-1])]

    def _scenes(self, world: Mazes, key: PRNGKeyArray, task: Float[Array, " M"], n: int) -> Scenes:
        quadrant, _, maze, wanted = self._values(task)
        free, inside = ~world.walls[maze].reshape(-1), quadrant == QUADRANT
        bits = jax.random.bits(key, (4 + self.decoy, n, NUM_CELLS))
        goal = _pick(bits[0], free & inside)
        to_goal = world.distance[maze, goal]
        start = _pick(bits[1], (to_goal >= LEAST_MOVES) & (to_goal < FAR))
        # Objects stand on the first cells of a random order: the goal, the decoy, other free cells, never a wall.
        wants = jnp.arange(NUM_CELLS) == goal[:, None]
        rank = free + 2 * wants
        if self.decoy:
            decoy = jnp.arange(NUM_CELLS) == _pick(bits[4], free & ~inside)[:, None]
            wants, rank = wants | decoy, rank + decoy
        order = _distinct(bits[2]) + LOTS * rank
        taken = (order[:, None] > order[:, :, None]).sum(axis=2) <= self.num_distractors
        another = wanted + 1 + (bits[3] % max(1, self.num_objects - 1)).astype(wanted.dtype)
        kind = jnp.where(taken, jnp.where(wants, wanted, another % self.num_objects), -1)
        walls = jnp.broadcast_to(~free, (n, NUM_CELLS))
        return Scenes(
            walls, kind, world.distance[maze, start], to_goal, world.distance[maze, goal, start]
        )

    def _demonstrate(
        self, scenes: Scenes, task: Float[Array, " M"], step: Int[Array, "n steps"]
    ) -> tuple[Int[Array, "n steps"], Int[Array, "n steps"]]:
        """The agent's cell after so many moves, and what it does there."""
        left = scenes.length[:, None] - step
        here = (scenes.from_start[:, None] == step[:, :, None]) & (
            scenes.to_goal[:, None] == left[:, :, None]
        )
        # The first move that leads closer; where none does, the goal is reached.
        closer = (
            _neighbours(scenes.to_goal.reshape(-1, SIDE, SIDE)).reshape(NUM_MOVES, -1, NUM_CELLS)
            < scenes.to_goal
        )
        action = jnp.where(
            closer.any(axis=0), closer.argmax(axis=0), NUM_MOVES + self._values(task)[1]
        )
        cell = here.argmax(axis=2)
        return cell, jnp.take_along_axis(action, cell, axis=1)


def _distinct(bits: Shaped[Array, "... cells"]) -> Int[Array, "... cells"]:
    """Random numbers from 0 to LOTS - 1, no two alike: the last six bits are the number's place."""
    return ((bits >> 9) << 6).astype(jnp.int32) + jnp.arange(bits.shape[-1])


def _pick(bits: Shaped[Array, "n cells"], allowed: Bool[Array, "*n cells"]) -> Int[Array, " n"]:
    """One of the allowed cells, all of them equally likely."""
    return jnp.where(allowed, bits | 1, 0).argmax(axis=1)


def _neighbours(distance: Int[Array, "*n 7 7"]) -> Int[Array, "4 *n 7 7"]:
    """The distances of the cells above, right, below and left of every cell."""
    padded = jnp.pad(
        distance, [(0, 0)] * (distance.ndim - 2) + [(1, 1), (1, 1)], constant_values=FAR
    )
    middle = slice(1, -1)
    views = (
        (slice(None, -2), middle),
        (middle, slice(2, None)),
        (slice(2, None), middle),
        (middle, slice(None, -2)),
    )
    return jnp.stack([padded[..., *view] for view in views])


def _distances(free: Bool[Array, "mazes 7 7"]) -> Int[Array, "mazes 49 49"]:
    """How many moves apart any two cells are, by relaxation from every cell at once."""
    here = jnp.eye(NUM_CELLS, dtype=bool).reshape(NUM_CELLS, SIDE, SIDE)
    free = free[:, None]

    def relax(_, distance):
        return jnp.where(free, jnp.minimum(distance, 1 + _neighbours(distance).min(axis=0)), FAR)

    distance = jax.lax.fori_loop(0, LONGEST, relax, jnp.where(free & here, 0, FAR))
    return distance.reshape(-1, NUM_CELLS, NUM_CELLS)
