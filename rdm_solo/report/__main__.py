"""Run ``python -m rdm_solo.report``."""

from rdm_solo.report.entry import main

main()
