"""Supports: which tasks are trained on, and which combinations are held out."""
