"""The code is the task itself: phi(z) = z."""

from dataclasses import dataclass

from jaxtyping import Array, Float, PRNGKeyArray

from recombine.parts.protocols import Family


@dataclass(frozen=True)
class Identity:
    """The model is given the module weights as they are."""

    def num_tokens(self, family: Family) -> int:
        """Codes are float vectors."""
        return 0

    def init(self, key: PRNGKeyArray, family: Family) -> tuple[()]:
        """Nothing to draw."""
        return ()

    def encode(
        self, params: tuple[()], key: PRNGKeyArray, task: Float[Array, " M"], examples
    ) -> Array:
        """The task's own weights."""
        return task
