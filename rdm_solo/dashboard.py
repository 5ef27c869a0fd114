"""Starts ``python -m rdm_solo.dashboard`` from :mod:`rdm_solo.loggers.dashboard`."""

from rdm_solo.loggers.dashboard import main

if __name__ == "__main__":
    main()
