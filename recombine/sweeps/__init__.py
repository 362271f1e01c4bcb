"""What is asked for: runs, sweeps, overrides by text, the parts that exist, and hashes of the code that runs depend on.

Nothing is trained or written here. Start with `run.py`.
"""
