"""How a task is told to the model. One file each, found by scanning this folder."""
