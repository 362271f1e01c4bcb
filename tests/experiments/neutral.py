"""Claims whose verdicts are in the words of published claims, for tests of single experiments.

Such a test asks whether a claim passes, fails or cannot be judged, not whether it was published.
`test_claim.py` tests the words themselves.
"""

from typing import Any

from recombine.experiments import claim as claims

WORDS = {"holds": "reproduced", "does not hold": "not reproduced", "not judged": "not yet run"}

FAILED = ("not reproduced", "confounded")  # confounded: a control does not fail


class NeutralClaim(claims.Claim):
    """A claim with a verdict in the words of published claims."""

    @property
    def verdict(self) -> str:
        """The verdict; claims without enough seeds count as not yet run."""
        return WORDS.get(super().verdict, super().verdict)


def claims_of(module: Any, rows: Any) -> list[claims.Claim]:
    """As `claim.claims_of`, with neutral words."""
    return [NeutralClaim(**vars(claim)) for claim in claims.claims_of(module, rows)]
