"""Studies: each trains many runs and writes a page of ``docs/`` about them."""
