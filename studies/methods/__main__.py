"""The command python -m studies.methods."""

from studies.methods.page import STUDY

STUDY.main()
