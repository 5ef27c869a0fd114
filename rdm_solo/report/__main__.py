"""The command."""

from rdm_solo.report import main

main()
