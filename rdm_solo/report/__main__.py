"""The command."""

from rdm_solo.report.entry import main

main()
