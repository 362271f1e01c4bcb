"""An instruction language, and language models that learn it from random weights."""
