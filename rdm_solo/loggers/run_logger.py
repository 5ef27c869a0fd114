"""The interface of a run's loggers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.loggers import RunInfo

PICTURE = "pictures/spectra"

# What to look at first, under names that sort before all others: TensorBoard and W&B sort by name,
# and W&B's names start with a letter.
FIRST_CHARTS = {
    "val/knn_acc1": "a_health/knn",
    "train/loss": "a_health/loss",
    "erank/online": "a_health/rank_online",
    "erank/target": "a_health/rank_target",
    "erank/centred": "a_health/rank_around_mean",
    "erank/features_centred": "a_health/rank_features",
}
VERDICT = "a_health/verdict"
# The verdict by the level of a run's :class:`~rdm_solo.collapse.health.Outcome`: 1 alive, 0 too
# early to say or undecided, -1 a note or a last value below a bound, -2 collapsed or destroyed.
VERDICTS = {"good": 1, "": 0, "suspect": -1, "bad": -2}


class RunLogger(ABC):
    """Extend a Lightning logger with pictures, histograms, and scalars added after the run.

    To add a logger, derive a class from this one and a Lightning logger, write
    ``conf/logger/NAME.yaml`` with its ``open`` as ``_target_``, and list the class in
    :data:`rdm_solo.loggers.LOGGER_CLASSES`. ``cls(folder, record)`` continues logging after the run
    has finished. Lightning calls ``finalize`` when training ends, and the run calls ``close`` once
    its summary is written.
    """

    record: dict[str, Any]  # what a later start needs; saved in the run's folder
    takes_files = False  # whether `file` uploads

    @classmethod
    @abstractmethod
    def open(cls, run: RunInfo, previous: Mapping[str, Any], **options: Any) -> "RunLogger":
        """Start or continue logging, and log the hyperparameters and the config.

        ``previous`` is the last start's ``record``, or empty; ``options`` come from the YAML file.
        """

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log scalars, those of :data:`FIRST_CHARTS` under both names.

        ``epoch`` counts from 0 in Lightning and is logged from 1.
        """
        metrics = {**metrics, **first_charts(metrics)}
        if "epoch" in metrics:
            metrics["epoch"] += 1
        super().log_metrics(metrics, step)  # type: ignore[misc]

    @abstractmethod
    def picture(self, image: np.ndarray, step: int) -> None:
        """Log :data:`PICTURE`, an array of bytes of shape ``(height, width, 3)``."""

    @abstractmethod
    def histograms(self, values: Mapping[str, np.ndarray], step: int) -> None:
        """Log a histogram of each name's values."""

    def alert(self, kind: str, text: str, is_note: bool, step: int) -> None:  # noqa: B027
        """Log a warning of collapse or a note. By default nothing is logged."""

    def file(self, path: Path) -> None:  # noqa: B027
        """Upload a result of the run, if ``takes_files``."""

    def close(self) -> None:  # noqa: B027
        """End logging. It is called after ``summary.json`` is written; a failed run has none."""


def first_charts(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalars of :data:`FIRST_CHARTS` under their second names.

    >>> first_charts({"val/knn_acc1": 58.5, "val/acc1": 40.6})
    {'a_health/knn': 58.5}
    """
    return {FIRST_CHARTS[name]: value for name, value in metrics.items() if name in FIRST_CHARTS}


def log10_eigenvalues(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the base-10 logarithms of an epoch's eigenvalues by histogram name.

    >>> log10_eigenvalues({"lam_online": np.array([100.0, 0.0]), "rows": np.array(64)})
    {'spectra/log10_online': array([2.])}
    """
    logarithms = {}
    for name, array in arrays.items():
        if name.startswith("lam_") and (array > 0).any():
            positive = array[array > 0]
            logarithms[name.replace("lam_", "spectra/log10_")] = np.log10(positive)
    return logarithms
