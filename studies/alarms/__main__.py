"""The command python -m studies.alarms."""

from studies.alarms.page import STUDY

STUDY.main()
