"""The command python -m studies.evidence."""

from studies import command
from studies.evidence.page import write
from studies.evidence.plan import HEAD
from studies.evidence.runs import measure, missing

command.run(
    "evidence",
    "Train every row of study.yaml over its seeds on the embedded digits, judge the paper's "
    "claims by the runs, and write one page.",
    HEAD,
    missing,
    measure,
    write,
    "docs/evidence.md",
)
