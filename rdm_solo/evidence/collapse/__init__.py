"""Whether the warnings of collapse are right: runs that nobody tuned on, labelled without them."""
