"""Log to the terminal, and report errors there in one sentence with an exit status."""

import contextlib
import logging
import os
import select
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import NoReturn

from rdm_solo.ground.errors import UserError

IRRELEVANT_WARNINGS = (
    # Lightning's advice on any machine with SLURM.
    "The `srun` command is available on your system",
    # torch 2.15 deprecates what Lightning 2.6 and solo-learn's SwAV and DINO use.
    ".*isinstance.treespec, LeafSpec.*",
    ".*torch.nn.utils.weight_norm.*",
    # Without labels or a validation folder there is nothing to validate on.
    "Total length of `list` across ranks is zero",
)
# Lightning logs absent devices, tips and ranks; matplotlib logs that it builds its font cache.
NOISY_LOGGERS = ["lightning.pytorch", "lightning.fabric", "lightning_fabric", "pytorch_lightning"]
NOISY_LOGGERS += ["matplotlib.font_manager"]


def log_to_terminal() -> None:
    """Log to stdout at level INFO."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(logging.StreamHandler(sys.stdout))


def only_warnings() -> None:
    """Log only warnings and errors to the terminal; files such as train.log get all messages."""
    for handler in logging.getLogger().handlers:
        is_terminal = isinstance(handler, logging.StreamHandler)
        if is_terminal and not isinstance(handler, logging.FileHandler):
            handler.setLevel(logging.WARNING)


def silence_third_party() -> None:
    """Silence irrelevant warnings and INFO logs of third-party packages."""
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in IRRELEVANT_WARNINGS:
        warnings.filterwarnings("ignore", message=message)


def fail(message: str) -> NoReturn:
    """Print one sentence and exit with status 2."""
    sys.stderr.write(f"error: {message}\n")  # one write keeps processes' lines apart
    raise SystemExit(2)


@contextlib.contextmanager
def errors_without_traceback() -> Iterator[None]:
    """Exit without a traceback on Ctrl-C, on errors that the user can fix, and if output is closed.

    A reader such as ``head`` closes a command's output. A write then raises BrokenPipeError, and
    :mod:`logging` would print a traceback for each message instead of raising it. Python ignores
    the signal SIGPIPE, which comes with the error; here it exits. A run that trains stops in good
    order instead (:mod:`rdm_solo.train.stopping`).
    """
    if hasattr(signal, "SIGPIPE"):  # Windows has none
        signal.signal(signal.SIGPIPE, _exit_if_output_is_closed)
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # closed by the shell
                sys.stdout.flush()  # a short output is written only now
    except UserError as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        _exit_if_output_is_closed()
        raise


def _exit_if_output_is_closed(*_: object) -> None:
    if discard_closed_output():
        raise SystemExit(128 + signal.SIGPIPE)


def discard_closed_output() -> bool:
    """Return whether the output lost its reader; what is written to it later is discarded.

    SIGPIPE alone does not say so, because a closed connection sends it as well.
    """
    was_closed = False
    for stream in (1, 2):  # stdout and stderr, which may be the same pipe
        poll = select.poll()
        poll.register(stream, 0)  # reports only errors
        if poll.poll(0):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            was_closed = True
    return was_closed
