"""The command python -m rdm_solo.evidence.collapse."""

from rdm_solo.evidence.collapse.study import main

main()
