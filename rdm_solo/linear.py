"""The command ``rdm-solo linear``."""

from rdm_solo.evaluate.linear_probe import main

if __name__ == "__main__":
    main()
