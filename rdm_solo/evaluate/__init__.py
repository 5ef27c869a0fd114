"""Linear evaluation, features, export and Figure 5 of a finished run."""
