"""A task for processes: some of its kind fail."""

from __future__ import annotations

import time
from pathlib import Path

FAILING = 3


def measure(number: int, folder: Path) -> int:
    """Leave a file of that name; number 3 fails, and those after it take their time."""
    (folder / str(number)).touch()
    if number == FAILING:
        raise FloatingPointError("the loss is nan")
    if number > FAILING:
        time.sleep(0.2)
    return number
