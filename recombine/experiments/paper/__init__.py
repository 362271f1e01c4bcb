"""Claims of arXiv 2507.07207, one experiment per file."""
