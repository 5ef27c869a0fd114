"""Run ``rdm-solo report``."""

from rdm_solo.report.entry import main

main()
