"""Arguments of the commands, and answers to the user."""
