"""The command ``python -m rdm_solo.linear``."""

from rdm_solo.cli import terminal

if __name__ == "__main__":
    terminal.start("rdm_solo.evaluate.linear")
