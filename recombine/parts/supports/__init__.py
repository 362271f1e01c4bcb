"""Supports: which tasks are trained on, and which combinations of modules are held out.

Every file here is found automatically.
"""
