"""Ranks and accuracies of all methods side by side, on the embedded digits."""
