"""The instrument for data: is a table of training examples enough to combine its parts anew, and what to add to it?"""

from recombine.coverage.coverage import Coverage

__all__ = ["Coverage"]
