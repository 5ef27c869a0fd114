"""Weights & Biases: one W&B run, online or offline, however often our run is resumed.

Its files are in ``RUN_FOLDER/wandb``. Each start uses the same id, so ``wandb sync`` merges them.
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import wandb

from rdm_solo.ground.errors import first_line
from rdm_solo.ground.lightning import pl
from rdm_solo.loggers import RunInfo
from rdm_solo.loggers.run_logger import FIRST_CHARTS, PICTURE, VERDICT, RunLogger, first_charts
from rdm_solo.runs import files, metrics_file
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.runs.files import METRICS, SUMMARY

log = logging.getLogger("rdm_solo")

INIT_OPTIONS = ("id", "project", "entity", "name", "group", "tags")  # passed from the record
KNN = "val/knn_acc1"


class WeightsAndBiases(RunLogger, pl.loggers.WandbLogger):  # type: ignore[misc]
    """Lightning's W&B logger, but offline if the server is unreachable.

    A later failure logs a warning and does not stop training.
    """

    takes_files = True

    def __init__(self, folder: Path, record: dict[str, Any]) -> None:
        options = {name: record[name] for name in INIT_OPTIONS}
        # Linear evaluations log to the run that trained the network, so they leave it as it is.
        options["job_type"] = "train"
        options["settings"] = wandb.Settings(
            init_timeout=20.0,  # seconds; W&B's default is 90
            finish_timeout=60.0,  # seconds to wait for uploads when the run ends
            silent=record.get("silent", False),
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
        self.status = "success"
        self.folder = folder
        self._define_axes()
        if "appended" in record:
            # `wandb sync` replaces the whole summary, so all of it is written again.
            self.experiment.summary.update(run_summary(folder) | record["appended"])

    def _define_axes(self) -> None:
        """Plot what is measured once per epoch over epochs, and keep the best kNN accuracy."""
        run = self.experiment
        run.define_metric("epoch")
        for name in [*COLUMNS, *FIRST_CHARTS.values(), VERDICT]:
            if name != "epoch":
                run.define_metric(name, step_metric="epoch")
        run.define_metric(FIRST_CHARTS[KNN], step_metric="epoch", summary="max,last")

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
            "silent": "sweep_folder" in run.config,  # a sweep prints one line per run
        }
        logger = cls(run.folder, record)
        logger.log_hyperparams({**run.config, "derived": dict(run.hyperparameters)})
        return logger

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self._try(super().log_metrics, metrics, step)

    def picture(self, image: np.ndarray, step: int) -> None:
        self.log_metrics({PICTURE: wandb.Image(image)}, step)

    def histograms(self, values: Mapping[str, np.ndarray], step: int) -> None:
        charts = {name: wandb.Histogram(array.tolist()) for name, array in values.items()}
        self.log_metrics(charts, step)

    def alert(self, kind: str, text: str, is_note: bool, step: int) -> None:
        level = "INFO" if is_note else "WARN"
        self._try(self.experiment.alert, kind, text, level)

    def file(self, path: Path) -> None:
        """Upload a file as an artifact that is named after it and the W&B run."""
        name = f"{path.stem}-{self.record['id']}"
        self._try(self.experiment.log_artifact, str(path), name, path.stem)

    def finalize(self, status: str) -> None:
        self.status = status

    def close(self) -> None:
        """Write the summary and finish the W&B run, which Lightning leaves open."""
        self._try(self.experiment.summary.update, run_summary(self.folder))
        self._try(self.experiment.finish, int(self.status == "failed"))

    def _try(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call one of W&B's functions; after a failure, log a warning and call no more."""
        if self.failed:
            return
        try:
            function(*arguments)
        except Exception as error:  # e.g. SLURM stopped W&B's process before ours
            self.failed = True
            log.warning(f"warning: Weights & Biases failed ({error}); metrics.csv has all values")


def run_summary(folder: Path) -> dict[str, Any]:
    """Return what W&B's table of runs shows of a run that ended: last values, outcome, warnings."""
    summary = files.read_object(folder, SUMMARY)
    if not summary:
        return {}
    values = {name: value for name, value in summary["last"].items() if value is not None}
    values |= first_charts(values)
    values["a_health/outcome"] = summary.get("outcome")
    kinds = [f"{warning['kind']} in epoch {warning['epoch']}" for warning in summary["warnings"]]
    values["a_health/warnings"] = ", ".join(kinds)
    if (folder / METRICS).is_file():
        table = metrics_file.read(folder)
        knn = [table.untrained.get(KNN, np.nan), *table.columns.get(KNN, ())]
        if np.isfinite(knn).any():
            measured = np.array(knn)[np.isfinite(knn)]
            values[FIRST_CHARTS[KNN]] = {"max": float(measured.max()), "last": float(measured[-1])}
        values = dict(table.untrained) | values
    return values
