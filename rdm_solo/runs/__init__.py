"""A run's folder: the names in it, its config, tables and spectra."""

from rdm_solo.runs.folder import Run, find, load, survey
from rdm_solo.runs.metrics_file import read_metrics

__all__ = ["Run", "find", "load", "read_metrics", "survey"]
