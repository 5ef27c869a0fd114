"""The switch trial: an asymmetry is removed in the middle of training and put back."""
