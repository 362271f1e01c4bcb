"""What people see: figures, pages, and a live view of a sweep while it trains.

This package reads tables. It imports neither jax nor experiments. Start with `figure.py`.
"""
