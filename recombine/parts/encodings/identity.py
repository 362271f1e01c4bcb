"""The code is the task itself: phi(z) = z. Source: arXiv 2507.07207, sections 2 and 4."""

from dataclasses import dataclass

from jaxtyping import Array, Float, PRNGKeyArray

from recombine.parts.protocols import Family


@dataclass(frozen=True)
class Identity:
    """The model receives the M module weights."""

    def num_tokens(self, family: Family) -> int:
        """0: codes are floats."""
        return 0

    def init(self, key: PRNGKeyArray, family: Family) -> tuple[()]:
        """No arrays."""
        return ()

    def encode(
        self, params: tuple[()], key: PRNGKeyArray, task: Float[Array, " M"], examples
    ) -> Array:
        """The task's weights, unchanged."""
        return task
