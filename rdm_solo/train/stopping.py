"""Stop a run after the current step on SIGINT (Ctrl-C, status 130) or SIGTERM (status 143)."""

import contextlib
import logging
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

from rdm_solo.ground.lightning import pl

log = logging.getLogger("rdm_solo")

SIGNALS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Stopped(KeyboardInterrupt):
    """A signal stopped the run; ``status`` is the exit status that shells report for it."""

    def __init__(self, number: int) -> None:
        super().__init__(SIGNALS[number])
        self.status = 128 + number


class StopBetweenSteps(pl.Callback):
    """Raise KeyboardInterrupt before the first step after a signal, at once after a second one."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def on_train_start(self, *args: Any) -> None:
        for number in SIGNALS:  # replaces Lightning's handlers
            signal.signal(number, self._handle_signal)

    def on_train_batch_start(self, *args: Any) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt

    on_validation_batch_start = on_train_batch_start

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            signal.signal(number, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.signal = number
        log.info(f"{SIGNALS[number]}: the run stops after this step")


@contextlib.contextmanager
def stoppable(trainer: Any) -> Iterator[None]:
    """Raise :class:`Stopped` if a signal stops training in the body."""
    callback = StopBetweenSteps()
    trainer.callbacks.insert(0, callback)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    except BaseException as error:
        # Lightning turns a KeyboardInterrupt into SystemExit. If another process stops first, this
        # process fails because the connection is closed.
        if callback.signal or isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise Stopped(callback.signal or signal.SIGINT) from None
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
