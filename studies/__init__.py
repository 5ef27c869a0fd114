"""Studies that train many runs and write a page of ``docs/`` about them."""
