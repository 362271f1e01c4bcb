"""Where rows live: tables of Parquet parts, the status of a running sweep, copies in other trackers.

Nothing here knows what a run is, and nothing imports jax. Start with `table.py`.
"""
