"""The Rank Differential Mechanism for solo-learn: spectral filters in place of predictors."""

import atexit
import os
import signal
import sys
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdm_solo.notebook import Run, Sweep, fit

__version__ = "0.1.0"
__all__ = ["Run", "Sweep", "fit", "register_methods"]

_process = os.getpid()


def _end(number: int, frame: FrameType | None) -> None:
    """End a command on Ctrl-C or SIGTERM, where nothing else answers them: a line, no traceback."""
    if os.getpid() != _process:  # forked by a library
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    elif not _is_over(frame):
        if os.environ.get("LOCAL_RANK", "0") == "0":  # one of a run's processes says so
            word = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
            sys.stdout.write(f"{word}: the command ends\n")
            sys.stdout.flush()
        if _imports(frame):  # native code that is being loaded may abort on an exception
            os._exit(128 + number)
        # A library may make an error of its own of it, as torch does while it writes a file.
        sys.excepthook = lambda *_: sys.exit(128 + number)
        raise SystemExit(128 + number)
    else:  # all is written, and Python takes its time to end; a second signal ends it at once
        signal.signal(number, signal.SIG_DFL)


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _is_over(frame: FrameType | None) -> bool:
    """Whether the program has returned: what Python calls while it ends was not called by it."""
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame is None or frame.f_code.co_name not in ("_run_module_as_main", "<module>")


def _say_what_to_install(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Name the packages that a command needs beside the light installation, in one sentence."""
    from rdm_solo.messages import what_to_install

    if sentence := what_to_install(error):
        sys.stderr.write(f"error: {sentence}\n")
        sys.exit(2)
    sys.__excepthook__(kind, error, trace)


def _ignore() -> None:
    """From where Python would not call :func:`_end` any more."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


# Of a command alone, and here, since the imports of its own module take seconds already. While
# Python looks for the module of `python -m`, the name of the program is "-m".
_started = sys.orig_argv[1:] if sys.argv[:1] == ["-m"] else []
if any(w.startswith("rdm_solo") for w in _started) or "".join(sys.argv[:1]).endswith("rdm-solo"):
    for _number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(_number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(_number, _end)
    atexit.register(_ignore)
    sys.excepthook = _say_what_to_install


def register_methods() -> None:
    """Add ``rdm_simsiam``, ``rdm_byol`` and ``symsimsiam`` to solo-learn's own table of methods.

    Its entry points then run them from its own YAML files. Needs solo-learn's current main.
    """
    from rdm_solo.methods import plugin, solo_learn

    solo_learn.register(plugin.METHODS)


# What people type in a notebook: it needs torch, which a command need not wait for.
_OF_NOTEBOOK = ("Run", "Sweep", "fit")


def __getattr__(name: str) -> Any:
    if name not in _OF_NOTEBOOK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rdm_solo import notebook

    return getattr(notebook, name)


def __dir__() -> list[str]:
    return [*globals(), *_OF_NOTEBOOK]
