"""Whether the warnings of collapse are right: runs that are labelled without them."""
