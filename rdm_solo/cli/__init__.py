"""Arguments of the commands, and answers to the user."""

from rdm_solo.cli.answers import errors_as_sentences, fail, log_to_terminal, make_folder, start
from rdm_solo.cli.arguments import command, compose
from rdm_solo.cli.config_files import config_folder

__all__ = [
    "command",
    "compose",
    "config_folder",
    "errors_as_sentences",
    "fail",
    "log_to_terminal",
    "make_folder",
    "start",
]
