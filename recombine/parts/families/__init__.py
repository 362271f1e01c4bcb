"""Task families: sets of tasks composed of modules. Every file here is found automatically."""
