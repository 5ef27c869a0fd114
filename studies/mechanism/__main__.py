"""The command python -m studies.mechanism."""

from studies.mechanism.page import STUDY

STUDY.main()
