"""The instrument for data: does a table of training examples cover its combinations?

It reports which values are rare or never combined, and suggests combinations to add. It needs no
jax. Start with `coverage.py`.
"""

from recombine.coverage.coverage import Coverage

__all__ = ["Coverage"]
