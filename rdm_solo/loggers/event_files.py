"""TensorBoard: event files in the run's folder, with pictures, histograms and hyperparameters."""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.lightning import pl
from rdm_solo.loggers import charts
from rdm_solo.loggers.run_logger import RunInfo, RunLogger
from rdm_solo.runs import reading

FOLDER = "tensorboard"
# Hyperparameters and how the run ended are in files of their own. TensorBoard shows the first of
# each that it reads, so a run that goes on must not keep those of the run before.
SUFFIX = ".hparams"


class TensorBoard(RunLogger, pl.loggers.TensorBoardLogger):  # type: ignore[misc,name-defined]
    """Lightning's logger, whose event files are in ``RUN_FOLDER/tensorboard``."""

    @classmethod
    def open(cls, run: RunInfo, earlier: Mapping[str, Any]) -> "TensorBoard":
        """Start the event files; those of a run that this one resumes come first.

        TensorBoard hides what they hold from ``run.step`` on, which this run logs again
        (``purge_step``; given to a new run as well, since TensorBoard skips the first of a folder).
        """
        from torch.utils.tensorboard.summary import hparams

        folder = reading.inside(run.folder, FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        if run.goes_on_from not in (None, run.folder):
            for path in (run.goes_on_from / FOLDER).glob("events.out.tfevents.*"):
                name = path.relative_to(run.goes_on_from)
                shutil.copy(reading.regular(run.goes_on_from, name), folder)
        for path in folder.glob(f"*{SUFFIX}"):
            path.unlink()
        made = cls(
            run.folder, name=FOLDER, version="", default_hp_metric=False, purge_step=run.step
        )
        made.record = {"folder": FOLDER}
        given = {name: value for name, value in run.hyperparameters.items() if value is not None}
        _, start, _ = hparams(given, {})
        made._add_summary(start)
        made.log_hyperparams(dict(run.config))  # to hparams.yaml
        return made

    def picture(self, name: str, image: np.ndarray, step: int) -> None:
        self.experiment.add_image(name, image, step, dataformats="HWC")

    def spectra(self, epochs: Mapping[int, Mapping[str, np.ndarray]], step: int) -> None:
        """Histograms of the last epoch's eigenvalues, as powers of ten."""
        for key, powers in charts.histograms(epochs[max(epochs)]).items():
            self.experiment.add_histogram(key, powers, step)

    def close(self, failed: bool) -> None:
        from tensorboard.plugins.hparams.api_pb2 import Status
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo
        from torch.utils.tensorboard.summary import hparams

        self.finalize("failed" if failed else "success")
        # torch 2.15's function always says "success", and that of tensorboard 2.21
        # (hparams.summary.session_end_pb) needs TensorFlow: so its message is replaced.
        _, _, end = hparams({}, {})
        status = Status.STATUS_FAILURE if failed else Status.STATUS_SUCCESS
        info = SessionEndInfo(status=status, end_time_secs=time.time())
        message = HParamsPluginData(session_end_info=info)
        end.value[0].metadata.plugin_data.content = message.SerializeToString()
        self._add_summary(end)

    def _add_summary(self, summary: Any) -> None:
        from torch.utils.tensorboard import FileWriter

        writer = FileWriter(self.log_dir, filename_suffix=SUFFIX)
        writer.add_summary(summary)
        writer.close()

    @classmethod
    def append(
        cls, folder: Path, record: Mapping[str, Any], scalars: Mapping[str, float], step: int
    ) -> None:
        """Scalars in a further event file; TensorBoard reads all files of a folder as one run."""
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(reading.inside(folder, FOLDER))) as writer:
            for name, value in scalars.items():
                writer.add_scalar(name, value, step)
