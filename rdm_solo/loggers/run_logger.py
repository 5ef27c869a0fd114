"""The interface of a run's loggers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.loggers import RunInfo


class RunLogger(ABC):
    """Extend a Lightning logger with pictures, spectra, and scalars that are added after the run.

    To add a logger, derive a class from this one and a Lightning logger, write
    ``conf/logger/NAME.yaml`` with its ``open`` as ``_target_``, and list the class in
    :data:`rdm_solo.loggers.LOGGER_CLASSES`. Lightning calls ``finalize`` when training ends.
    """

    record: dict[str, Any]  # what ``open`` and ``append`` need later; saved in the run's folder

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
    def picture(self, name: str, image: np.ndarray, step: int) -> None:
        """Log a picture, an array of bytes of shape ``(height, width, 3)``."""

    @abstractmethod
    def spectra(self, epochs: Mapping[int, Mapping[str, np.ndarray]], step: int) -> None:
        """Log the last of ``epochs``, the arrays in a run's ``spectra`` folder by epoch."""

    @classmethod
    @abstractmethod
    def append(
        cls, folder: Path, record: Mapping[str, Any], scalars: Mapping[str, float], step: int
    ) -> None:
        """Add scalars to a finished run."""
