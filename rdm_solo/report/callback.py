"""Write the page of a run that has finished, and upload it."""

import contextlib
import io
import logging
from pathlib import Path
from typing import Any

from rdm_solo.callbacks.logged import RunEnd
from rdm_solo.loggers.run_logger import RunLogger
from rdm_solo.report.entry import write

log = logging.getLogger("rdm_solo")


class ReportPage(RunEnd):
    """Write the page, as ``rdm-solo report`` does, for loggers that upload it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_run_end(self, trainer: Any) -> None:
        uploading = []
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger) and logger.takes_files:
                uploading.append(logger)
        if not uploading:
            return
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # the command prints tables
                path = write([self.folder])
            for logger in uploading:
                logger.file(path)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            log.warning(f"warning: the run's page cannot be written ({reason})")
