"""The command python -m studies.switch."""

from studies.switch.page import main

if __name__ == "__main__":  # worker processes import this module
    main()
