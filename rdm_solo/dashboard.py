"""The command ``python -m rdm_solo.dashboard``."""

from rdm_solo.cli import answers

if __name__ == "__main__":
    answers.start("rdm_solo.loggers.dashboard")
