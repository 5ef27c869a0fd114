"""``python -m rdm_solo COMMAND ...``, or the same as a console script: ``rdm-solo COMMAND ...``."""

from __future__ import annotations

import runpy
import sys

COMMANDS = {
    "train": "pretrain with a predictor, a spectral filter, or none",
    "linear": "train a linear classifier on a run's frozen backbone",
    "export": "write a run's backbone as files that other programs load",
    "report": "draw one HTML page with pictures, verdicts and tables of runs",
    "preview": "draw a filter before training",
    "paper": "list the paper's tables with the commands that run them",
    "dashboard": "make a page of panels at Weights & Biases",
    "plugin": "run solo-learn's own scripts with this package's methods",
}


def main() -> None:
    """List the commands, or run the one that is named."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print("usage: rdm-solo COMMAND ...   (or python -m rdm_solo.COMMAND ...)\n")
        width = max(map(len, COMMANDS))
        for name, purpose in COMMANDS.items():
            print(f"  {name:<{width}}  {purpose}")
        print("\nrdm-solo COMMAND --help explains a command's options.")
        return
    name = sys.argv.pop(1)
    if name not in COMMANDS:
        from rdm_solo.messages import suggest

        hint = suggest(name, list(COMMANDS)) or "; rdm-solo --help lists them"
        sys.stderr.write(f"error: there is no command {name!r}{hint}\n")
        raise SystemExit(2)
    runpy.run_module(f"rdm_solo.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
