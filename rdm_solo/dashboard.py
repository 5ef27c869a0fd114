"""The command ``python -m rdm_solo.dashboard``."""

from rdm_solo.cli import terminal

if __name__ == "__main__":
    terminal.start("rdm_solo.loggers.dashboard")
