"""Ctrl-C: the run says that it stops, keeps what it has, and says how to go on."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any

from rdm_solo.lightning import pl
from rdm_solo.runs.files import CHECKPOINT

__all__ = ["SaysThatItStops", "how_to_go_on"]

log = logging.getLogger("rdm_solo")

REASON = "Ctrl-C"


class SaysThatItStops(pl.Callback):  # type: ignore[misc,name-defined]
    """Answers Ctrl-C at once; closing the loggers and drawing take a moment."""

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if isinstance(exception, KeyboardInterrupt) and trainer.is_global_zero:
            log.info(f"{REASON}: the run stops in epoch {trainer.current_epoch + 1}")


def how_to_go_on(folder: Path) -> str:
    """The command that goes on with a run that was stopped."""
    if not (folder / CHECKPOINT).is_file():
        return "no epoch has ended: there is no checkpoint to go on from"
    return f"to go on: python -m rdm_solo.train {shlex.quote(f'resume={folder}')}"
