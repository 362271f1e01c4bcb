"""Recipes: how networks are optimized. Every file here is found automatically.

`Paper` is the recipe of arXiv 2507.07207. `Fast` reaches the same quality in far fewer steps.
"""
