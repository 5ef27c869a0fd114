"""Ranks and accuracies of all methods on the embedded digits."""
