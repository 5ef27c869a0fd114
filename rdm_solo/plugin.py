"""Starts ``python -m rdm_solo.plugin`` from its room, :mod:`rdm_solo.methods.plugin`."""

from rdm_solo.methods.plugin import main

if __name__ == "__main__":
    main()
