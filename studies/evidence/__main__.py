"""The command python -m studies.evidence."""

from studies.evidence.page import STUDY

STUDY.main()
