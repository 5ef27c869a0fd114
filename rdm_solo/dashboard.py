"""The command ``rdm-solo dashboard``."""

from rdm_solo.cli.terminal import errors_without_traceback
from rdm_solo.loggers.workspace import main

if __name__ == "__main__":
    with errors_without_traceback():
        main()
