"""Helpers that every room may use: errors, suggestions, files, statistics, printing.

This room imports nothing else of the package and never jax. It knows nothing of tasks, runs or
tables. Start with `errors.py`.
"""
