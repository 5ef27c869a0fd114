"""Stop a run so that it can resume: on SIGINT (Ctrl-C, exit status 130), SIGTERM (143), or if its
output is closed (141)."""

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

from rdm_solo.cli.terminal import discard_closed_output
from rdm_solo.ground.lightning import pl
from rdm_solo.train.processes import is_rank_zero

log = logging.getLogger("rdm_solo")

SIGNALS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
if hasattr(signal, "SIGPIPE"):  # Windows has none
    SIGNALS[signal.SIGPIPE] = "closed output"


class Stopped(KeyboardInterrupt):
    """A signal stopped the run; ``status`` is the exit status that shells report for it."""

    def __init__(self, number: int) -> None:
        super().__init__(SIGNALS[number])
        self.number = number
        self.status = 128 + number


class StopOnSignal(pl.Callback):
    """Raise KeyboardInterrupt after a signal: before the next step, or at once in a measurement.

    A step is finished first, and so is the writing of an epoch's results. Measurements of the
    untrained network and in validation may take minutes; files are written whole or not at all.
    After a second signal the exception is raised at once.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.is_measuring = False

    def on_train_start(self, *args: Any) -> None:
        self.process = os.getpid()
        self.is_measuring = True  # later callbacks measure the untrained network
        for number in SIGNALS:  # replaces Lightning's handlers
            signal.signal(number, self._handle_signal)

    def on_train_epoch_start(self, *args: Any) -> None:
        self.is_measuring = False

    def on_validation_start(self, *args: Any) -> None:
        self.is_measuring = True

    def on_validation_end(self, *args: Any) -> None:
        self.is_measuring = False

    def on_train_batch_start(self, *args: Any) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt

    on_validation_batch_start = on_train_batch_start

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:  # a loader's worker, which inherits this handler
            return
        if SIGNALS[number] == "closed output" and not discard_closed_output():
            return  # a connection was closed
        if self.signal is not None:
            signal.signal(number, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.signal = number  # logged later, because a handler may interrupt a write
        if self.is_measuring:
            raise KeyboardInterrupt


@contextlib.contextmanager
def stoppable(trainer: Any) -> Iterator[None]:
    """Raise :class:`Stopped` if a signal stops training in the body."""
    callback = StopOnSignal()
    trainer.callbacks.insert(0, callback)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    except BaseException as error:
        # Lightning turns a KeyboardInterrupt into SystemExit. If another process stops first, this
        # process fails because the connection is closed.
        if callback.signal or isinstance(error, (KeyboardInterrupt, SystemExit)):
            stop = Stopped(callback.signal or signal.SIGINT)
            if is_rank_zero():
                log.info(f"{stop}: the run stops")
            raise stop from None
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
