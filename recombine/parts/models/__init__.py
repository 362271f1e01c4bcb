"""Models: the networks that are trained. Every file here is found automatically."""
