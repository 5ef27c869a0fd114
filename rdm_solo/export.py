"""The command ``rdm-solo export``."""

from rdm_solo.evaluate.export import main

if __name__ == "__main__":
    main()
