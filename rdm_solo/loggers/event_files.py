"""TensorBoard: event files in the run's folder, with pictures, histograms and hyperparameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.ground.lightning import pl
from rdm_solo.loggers import RunInfo, charts
from rdm_solo.loggers.run_logger import RunLogger

FOLDER = "tensorboard"


class TensorBoard(RunLogger, pl.loggers.TensorBoardLogger):  # type: ignore[misc]
    """Lightning's logger, with event files in ``RUN_FOLDER/tensorboard``."""

    @classmethod
    def open(  # type: ignore[override]  # it has no options, so that all are refused
        cls, run: RunInfo, previous: Mapping[str, Any]
    ) -> "TensorBoard":
        """Open a new event file; TensorBoard hides earlier files' values from ``run.step`` on."""
        from torch.utils.tensorboard.summary import hparams

        logger = cls(
            run.folder, name=FOLDER, version="", default_hp_metric=False, purge_step=run.step
        )
        logger.record = {}
        logger.log_hyperparams(dict(run.config))  # to hparams.yaml
        # For the HPARAMS tab; Lightning writes hyperparameters only with metrics.
        settings = {name: value for name, value in run.hyperparameters.items() if value is not None}
        _, session_start, _ = hparams(settings, {})  # type: ignore[no-untyped-call]
        logger.experiment.file_writer.add_summary(session_start)
        return logger

    def picture(self, name: str, image: np.ndarray, step: int) -> None:
        self.experiment.add_image(name, image, step, dataformats="HWC")

    def spectra(self, epochs: Mapping[int, Mapping[str, np.ndarray]], step: int) -> None:
        last_epoch = epochs[max(epochs)]
        for key, values in charts.histograms(last_epoch).items():
            self.experiment.add_histogram(key, values, step)

    @classmethod
    def append(
        cls, folder: Path, record: Mapping[str, Any], scalars: Mapping[str, float], step: int
    ) -> None:
        """Write the scalars to another event file."""
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(folder / FOLDER)) as writer:
            for name, value in scalars.items():
                writer.add_scalar(name, value, step)
