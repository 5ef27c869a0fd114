"""Starts ``python -m rdm_solo.roles`` from :mod:`rdm_solo.evaluate.roles`."""

from rdm_solo.evaluate.roles import main

if __name__ == "__main__":
    main()
