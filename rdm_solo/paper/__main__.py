"""The command rdm-solo paper."""

import argparse

from rdm_solo.cli.terminal import errors_without_traceback, log_to_terminal
from rdm_solo.paper import markdown

argparse.ArgumentParser(
    "rdm-solo paper",
    description="Print the paper's tables in Markdown, with the command that runs each row.",
).parse_args()
log_to_terminal()
with errors_without_traceback():
    print(markdown(), end="")
