"""The command python -m studies.mechanism."""

from studies import command
from studies.mechanism.page import write
from studies.mechanism.plan import HEAD
from studies.mechanism.runs import measure, missing

command.run(
    "mechanism",
    "Train every setting of plan.yaml with all seeds on three data sets.",
    HEAD,
    missing,
    measure,
    write,
    "docs/mechanism.md",
)
