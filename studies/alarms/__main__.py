"""The command python -m studies.alarms."""

from functools import partial

from studies import command
from studies.alarms import plan
from studies.alarms.page import write
from studies.alarms.runs import HEAD, measure, missing

command.run(
    "alarms",
    "Train the runs of plan.yaml and write the page about the warnings of collapse.",
    HEAD,
    partial(missing, parts=(plan.TUNE, plan.TEST, plan.CHOOSE)),
    measure,
    write,
    "docs/collapse.md",
)
