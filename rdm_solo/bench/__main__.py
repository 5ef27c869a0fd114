"""The command."""

from rdm_solo.bench import main

main()
