"""What is measured on the way, inside the compiled program. One file each, found by scanning this folder."""
