"""The command."""

from rdm_solo.train.entry import main

main()
