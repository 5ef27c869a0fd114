"""Linear evaluation, features, export, and a finished run rebuilt."""
