"""The command ``python -m rdm_solo.linear``."""

from rdm_solo.cli import answers

if __name__ == "__main__":
    answers.start("rdm_solo.evaluate.linear")
