"""Whether the warnings of collapse are right: a study of runs that are labelled without them."""
