"""The command python -m studies.methods."""

from studies import command
from studies.methods.page import write
from studies.methods.runs import HEAD, SEEDS, measure, missing

command.run(
    "methods",
    "Train every method of the installed solo-learn on the embedded digits with "
    f"{len(SEEDS)} seeds each, and write a page that compares them.",
    HEAD,
    missing,
    measure,
    write,
    "docs/methods.md",
)
