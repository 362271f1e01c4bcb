"""Other systems and questions: where composition stops. One experiment per file."""
