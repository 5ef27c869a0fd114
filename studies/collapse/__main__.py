"""The command python -m studies.collapse."""

from studies import command
from studies.collapse.page import write
from studies.collapse.plan import HEAD
from studies.collapse.runs import measure, missing

command.run(
    "collapse",
    "Train the runs of study.yaml, label each by kNN and by the directions of its outputs on "
    "clean samples, and judge the warnings of collapse by the labels.",
    HEAD,
    missing,
    measure,
    write,
)
