"""Parse the commands' arguments and print errors."""
