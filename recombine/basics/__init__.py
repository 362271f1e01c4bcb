"""What every room may use: errors, suggestions, files, statistics, the console. No tasks, runs or tables.

Imports nothing of the package and never jax. Start with `errors.py`.
"""
