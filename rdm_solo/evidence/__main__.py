"""The command."""

from rdm_solo.evidence.study import main

main()
