"""Theorems and definitions of the paper as code, one experiment per file.

The constructions of the proofs are in the files whose names begin with an underscore.
"""
