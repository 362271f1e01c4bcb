"""What learns: students as equinox modules. One file each, found by scanning this folder."""
