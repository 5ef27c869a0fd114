"""The command ``python -m rdm_solo.dashboard``."""

from rdm_solo import cli

if __name__ == "__main__":
    cli.start("rdm_solo.loggers.dashboard")
