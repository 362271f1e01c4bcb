"""Encodings: how a task is described to the model. Every file here is found automatically."""
