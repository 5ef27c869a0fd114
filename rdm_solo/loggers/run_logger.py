"""The interface of a run's loggers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from rdm_solo.loggers import RunInfo

PICTURE = "pictures/spectra"


class RunLogger(ABC):
    """Extend a Lightning logger with pictures, histograms, and scalars added after the run.

    To add a logger, derive a class from this one and a Lightning logger, write
    ``conf/logger/NAME.yaml`` with its ``open`` as ``_target_``, and list the class in
    :data:`rdm_solo.loggers.LOGGER_CLASSES`. ``cls(folder, record)`` continues logging after the run
    has finished. Lightning calls ``finalize`` when training ends.
    """

    record: dict[str, Any]  # what a later start needs; saved in the run's folder

    @classmethod
    @abstractmethod
    def open(cls, run: RunInfo, previous: Mapping[str, Any], **options: Any) -> "RunLogger":
        """Start or continue logging, and log the hyperparameters and the config.

        ``previous`` is the last start's ``record``, or empty; ``options`` come from the YAML file.
        """

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log scalars; ``epoch`` counts from 0 in Lightning and is logged from 1."""
        if "epoch" in metrics:
            metrics = {**metrics, "epoch": metrics["epoch"] + 1}
        super().log_metrics(metrics, step)  # type: ignore[misc]

    @abstractmethod
    def picture(self, image: np.ndarray, step: int) -> None:
        """Log :data:`PICTURE`, an array of bytes of shape ``(height, width, 3)``."""

    @abstractmethod
    def histograms(self, values: Mapping[str, np.ndarray], step: int) -> None:
        """Log a histogram of each name's values."""


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
