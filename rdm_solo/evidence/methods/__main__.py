"""The command."""

from rdm_solo.evidence.methods.study import main

main()
