"""What is to be learned: task families composed of modules. One file each, found by scanning this folder."""
