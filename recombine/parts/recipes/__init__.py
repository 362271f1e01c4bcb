"""How networks are optimised: the paper's recipe, and a fast one that reaches its quality in far fewer steps."""
