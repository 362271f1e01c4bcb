"""A language model of our own: an instruction language, and transformers that learn it from random weights."""
