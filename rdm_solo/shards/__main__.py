"""The command."""

from rdm_solo.shards.entry import main

main()
