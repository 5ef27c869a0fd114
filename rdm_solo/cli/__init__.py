"""Arguments of the commands, and answers to the user."""

from rdm_solo.cli.answers import fail, log_to_terminal, make_folder, say_anything, sentences
from rdm_solo.cli.arguments import command, compose, mark_started, quote_paths
from rdm_solo.cli.config_files import config_folder

__all__ = [
    "command",
    "compose",
    "config_folder",
    "fail",
    "log_to_terminal",
    "make_folder",
    "mark_started",
    "quote_paths",
    "say_anything",
    "sentences",
]
