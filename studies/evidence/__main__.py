"""The command python -m studies.evidence."""

from studies import command
from studies.evidence.page import write
from studies.evidence.plan import HEAD
from studies.evidence.runs import measure, missing

command.run(
    "evidence",
    "Train every row of study.yaml with all seeds on the embedded digits, judge the paper's "
    "claims by the runs, and write a page.",
    HEAD,
    missing,
    measure,
    write,
    "docs/evidence.md",
)
