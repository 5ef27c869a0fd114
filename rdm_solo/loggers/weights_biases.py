"""Weights & Biases: one W&B run, online or offline, however often our run is resumed.

Its files are in ``RUN_FOLDER/wandb``. Each start uses the same id, so ``wandb sync`` merges them.
"""

import contextlib
import logging
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import wandb

from rdm_solo.ground.errors import first_line
from rdm_solo.ground.lightning import pl
from rdm_solo.loggers import RunInfo
from rdm_solo.loggers.run_logger import PICTURE, RunLogger
from rdm_solo.runs import files
from rdm_solo.runs.files import SUMMARY

log = logging.getLogger("rdm_solo")

INIT_OPTIONS = ("id", "project", "entity", "name", "group", "tags")  # passed from the record


class WeightsAndBiases(RunLogger, pl.loggers.WandbLogger):  # type: ignore[misc]
    """Lightning's W&B logger, but offline if the server is unreachable.

    A later failure logs a warning and does not stop training.
    """

    def __init__(self, folder: Path, record: dict[str, Any]) -> None:
        options = {name: record[name] for name in INIT_OPTIONS}
        options["settings"] = wandb.Settings(
            init_timeout=20.0,  # seconds; W&B's default is 90
            finish_timeout=60.0,  # seconds to wait for uploads when the run ends
        )
        if record["offline"]:
            options["mode"] = "offline"
        super().__init__(save_dir=folder, **options)
        try:
            _ = self.experiment  # starts the W&B run
        except wandb.errors.Error as error:
            log.warning(f"warning: Weights & Biases: {first_line(error)}; the run is kept offline")
            wandb.teardown()  # otherwise its service process rejects the id
            options["mode"] = "offline"
            super().__init__(save_dir=folder, **options)
        self.record = record
        self.failed = False
        if "appended" in record:
            self._restore_summary(folder)

    def _restore_summary(self, folder: Path) -> None:
        """Write all last values again, because `wandb sync` replaces the whole summary."""
        summary = dict(self.record["appended"])
        if (folder / SUMMARY).is_file():
            for name, value in files.read_object(folder, SUMMARY)["last"].items():
                if value is not None:
                    summary.setdefault(name, value)
        self.experiment.summary.update(summary)

    @classmethod
    def open(cls, run: RunInfo, previous: Mapping[str, Any], **options: Any) -> "WeightsAndBiases":
        """Start a W&B run, or continue the ``previous`` one. A sweep's runs share a tag."""
        tags = list(options["tags"])
        if "sweep_folder" in run.config:
            tag = f"sweep:{run.config['sweep_folder']}"
            tags.append(tag[:64])  # W&B's longest tag
        record = {
            **options,
            "id": previous.get("id") or secrets.token_hex(4),
            "name": options["name"] or run.name,
            "group": options["group"] or run.group,
            "tags": tags,
        }
        logger = cls(run.folder, record)
        logger.log_hyperparams({**run.config, "derived": dict(run.hyperparameters)})
        return logger

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if not self.failed:
            with self._warn_on_failure():
                super().log_metrics(metrics, step)

    def picture(self, image: np.ndarray, step: int) -> None:
        self.log_metrics({PICTURE: wandb.Image(image)}, step)

    def histograms(self, values: Mapping[str, np.ndarray], step: int) -> None:
        charts = {name: wandb.Histogram(array.tolist()) for name, array in values.items()}
        self.log_metrics(charts, step)

    def finalize(self, status: str) -> None:
        """Finish the W&B run, which Lightning leaves open."""
        with self._warn_on_failure():
            self.experiment.finish(exit_code=int(status == "failed"))

    @contextlib.contextmanager
    def _warn_on_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # e.g. SLURM stopped W&B's process before ours
            self.failed = True
            log.warning(f"warning: Weights & Biases failed ({error}); metrics.csv has all values")
