"""The command ``python -m rdm_solo.linear``."""

from rdm_solo import cli

if __name__ == "__main__":
    cli.start("rdm_solo.evaluate.linear")
