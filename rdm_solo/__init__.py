"""The Rank Differential Mechanism for solo-learn: spectral filters in place of predictors."""

import os
import sys
from types import TracebackType

__version__ = "0.1.0"


def _end_in_a_line(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """What a command says of a Ctrl-C that nothing has answered: no traceback, status 130."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    if os.environ.get("LOCAL_RANK", "0") == "0":  # one of a run's processes says so
        sys.stdout.write("Ctrl-C: the command ends\n")
        sys.stdout.flush()
    raise SystemExit(130)


# Of a command alone, and here, since the imports of its own module take seconds already. While
# Python looks for the module of `python -m`, the name of the program is "-m".
_started = sys.orig_argv[1:] if sys.argv[:1] == ["-m"] else []
if any(w.startswith("rdm_solo") for w in _started) or "".join(sys.argv[:1]).endswith("rdm-solo"):
    sys.excepthook = _end_in_a_line


def register_methods() -> None:
    """Add ``rdm_simsiam``, ``rdm_byol`` and ``symsimsiam`` to solo-learn's own table of methods.

    Its entry points then run them from its own YAML files. Needs solo-learn's current main.
    """
    from rdm_solo.methods import plugin, solo_learn

    solo_learn.register(plugin.METHODS)
