"""What people see: figures, pages, and a live view of a sweep while it trains.

Reads tables and never jax; does not know experiments. Start with `figure.py`.
"""
