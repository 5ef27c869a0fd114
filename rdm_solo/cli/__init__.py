"""Arguments of the commands, and answers to the user."""

from rdm_solo.cli.answers import Refusal, fail, make_folder, say_anything, sentences
from rdm_solo.cli.arguments import check_arguments, command, config_folder, quote_paths

__all__ = [
    "Refusal",
    "check_arguments",
    "command",
    "config_folder",
    "fail",
    "make_folder",
    "quote_paths",
    "say_anything",
    "sentences",
]
