"""Starts ``python -m rdm_solo.linear`` from :mod:`rdm_solo.evaluate.linear`."""

from rdm_solo.evaluate.linear import main

if __name__ == "__main__":
    main()
