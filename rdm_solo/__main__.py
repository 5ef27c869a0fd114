"""The entry point of ``python -m rdm_solo COMMAND ...`` and of the script ``rdm-solo``."""

import os
import runpy
import sys

from rdm_solo import __version__
from rdm_solo.cli import terminal
from rdm_solo.ground.errors import suggest

COMMANDS = {
    "train": "pretrain with a predictor, a spectral filter, or none",
    "linear": "train a linear classifier on a run's frozen backbone",
    "export": "write a run's backbone as files that other programs load",
    "report": "write an HTML page with figures, verdicts and tables of runs",
    "measure": "judge encoders that exist already",
    "preview": "draw a filter before training",
    "paper": "list the paper's tables with the commands that run them",
    "dashboard": "create a Weights & Biases workspace",
    "plugin": "run solo-learn's own scripts with this package's methods",
}


def main() -> None:
    """Run the named command, or list all commands."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else "--help"
    with terminal.errors_without_traceback():
        if name in COMMANDS:
            # The user's own modules, after all installed ones.
            sys.path.append(os.getcwd())
            runpy.run_module(f"rdm_solo.{name}", run_name="__main__", alter_sys=True)
        elif name == "--version":
            print(f"rdm-solo {__version__}")
        elif name in ("-h", "--help"):
            print("usage: rdm-solo COMMAND ...   (or python -m rdm_solo.COMMAND ...)\n")
            for command, purpose in COMMANDS.items():
                print(f"  {command:<{max(map(len, COMMANDS))}}  {purpose}")
            print("\nrdm-solo COMMAND --help explains a command's options.")
        else:
            hint = suggest(name, COMMANDS) or "; rdm-solo --help lists them"
            terminal.fail(f"unknown command {name!r}{hint}")


if __name__ == "__main__":
    main()
