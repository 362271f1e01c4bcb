"""Runs and sweeps: their fields, changes to them given as text, and the hashes that identify them.

Nothing is trained or written here. Start with `run.py`.
"""
