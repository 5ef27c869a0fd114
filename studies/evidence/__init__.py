"""The paper's claims, judged by runs on the embedded digits."""
