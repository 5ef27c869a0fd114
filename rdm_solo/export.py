"""The command ``rdm-solo export``."""

from rdm_solo.evaluate.exporting import main

if __name__ == "__main__":
    main()
