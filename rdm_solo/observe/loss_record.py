"""The losses of an epoch's steps: their mean, and the steps in which the loss jumps."""

import math
import statistics
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.ground.devices import has_float64

WINDOW = 50  # steps that a loss is compared with
ROUNDING = 1e-6  # a smaller rise is no jump
BLOCK = 1000  # losses that stay on the device until they are read together


class Jump(NamedTuple):
    """A loss far above those of the steps before it."""

    step: int  # of the epoch, counted from 1
    median: float  # of the steps before
    loss: float


class LossRecord:
    """Add up an epoch's losses, and find jumps.

    A loss jumps if it exceeds the highest of the last 50 losses by more than twice their range, by
    more than 1 %, and by more than 1e-6: losses near zero may be sums of larger terms, whose
    rounding is no jump. On a GPU, one step in 1,000 waits for the device.

    >>> record = LossRecord()
    >>> for step in range(60):
    ...     record.add(torch.tensor(step % 2))
    >>> record.add(torch.tensor(3.5))
    >>> record.read()
    >>> record.count, record.jumps
    (61, [Jump(step=61, median=0.5, loss=3.5)])
    """

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=WINDOW)  # over epochs
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self.total = 0.0
        self.count = 0
        self.jumps: list[Jump] = []
        self._unread: list[Tensor] = []

    def add(self, loss: Tensor | float) -> None:
        """Add a step's loss; a loss per sample is averaged."""
        loss = torch.as_tensor(loss).detach()
        dtype = torch.double if has_float64(loss.device) else torch.float
        self._unread.append(loss.to(dtype).mean())
        self.count += 1
        if len(self._unread) == BLOCK:
            self.read()

    def read(self) -> None:
        """Read the losses that are still on the device."""
        if not self._unread:
            return
        first = self.count - len(self._unread) + 1
        for step, loss in enumerate(torch.stack(self._unread).tolist(), first):
            self.total += loss
            self._find_jump(step, loss)
        self._unread.clear()

    def _find_jump(self, step: int, loss: float) -> None:
        limit = math.inf
        if len(self._window) == WINDOW:
            highest = max(self._window)
            span = highest - min(self._window)
            # A loss that leaves a plateau exceeds the range of the losses there, but is no jump.
            limit = highest + max(2 * span, 0.01 * abs(highest), ROUNDING)
            if loss > limit:
                median = statistics.median(self._window)
                self.jumps.append(Jump(step, median, loss))
        if math.isfinite(loss):
            # A jump must not hide the next one, and a lasting higher level must become normal.
            self._window.append(min(loss, limit))
