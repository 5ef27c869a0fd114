"""Is the rank gap the cause? The mechanism and its rivals in one trial."""
