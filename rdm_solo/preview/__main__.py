"""The command."""

from rdm_solo.preview.entry import main

main()
