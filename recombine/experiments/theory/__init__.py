"""Theorems and definitions as running code, one experiment per file; their constructions are in `_*.py`."""
