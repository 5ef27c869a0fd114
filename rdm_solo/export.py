"""Starts ``python -m rdm_solo.export`` from :mod:`rdm_solo.evaluate.export`."""

from rdm_solo.evaluate.export import main

if __name__ == "__main__":
    main()
