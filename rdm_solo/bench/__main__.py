"""The command."""

from rdm_solo.bench.entry import main

main()
