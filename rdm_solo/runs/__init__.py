"""A run's folder: what it is called, its config, tables and spectra."""

from rdm_solo.runs.folder import Run, find, load, read_metrics, survey
from rdm_solo.runs.labels import exponent, filter_name, title

__all__ = ["Run", "exponent", "filter_name", "find", "load", "read_metrics", "survey", "title"]
