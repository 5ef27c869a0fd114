"""TensorBoard: event files in the run's folder, with pictures, histograms and hyperparameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.ground.lightning import pl
from rdm_solo.loggers import RunInfo
from rdm_solo.loggers.run_logger import PICTURE, VERDICT, RunLogger


class TensorBoard(RunLogger, pl.loggers.TensorBoardLogger):  # type: ignore[misc]
    """Lightning's logger, with event files in ``RUN_FOLDER/tensorboard``."""

    def __init__(self, folder: Path, record: dict[str, Any], first_step: int | None = None) -> None:
        super().__init__(
            folder,
            name="tensorboard",
            version="",
            default_hp_metric=False,
            purge_step=first_step,  # TensorBoard hides earlier files' values from it on
        )
        self.record = record

    @classmethod
    def open(  # type: ignore[override]  # it has no options, so that all are refused
        cls, run: RunInfo, previous: Mapping[str, Any]
    ) -> "TensorBoard":
        """Open a new event file, and log the hyperparameters and the config."""
        from torch.utils.tensorboard.summary import hparams

        logger = cls(run.folder, {}, run.step)
        logger.log_hyperparams(dict(run.config))  # to hparams.yaml
        # For the HPARAMS tab; Lightning writes hyperparameters only with metrics.
        settings = {name: value for name, value in run.hyperparameters.items() if value is not None}
        _, session_start, _ = hparams(settings, {})  # type: ignore[no-untyped-call]
        logger.experiment.file_writer.add_summary(session_start)
        return logger

    def picture(self, image: np.ndarray, step: int) -> None:
        self.experiment.add_image(PICTURE, image, step, dataformats="HWC")

    def histograms(self, values: Mapping[str, np.ndarray], step: int) -> None:
        for name, array in values.items():
            self.experiment.add_histogram(name, array, step)

    def alert(self, kind: str, text: str, is_note: bool, step: int) -> None:
        """Log the text for the TEXT tab."""
        tag = VERDICT.replace("verdict", "warnings")
        self.experiment.add_text(tag, text, step)
