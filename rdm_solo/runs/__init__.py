"""A run's folder: its file names, config, tables and spectra.

Modules are imported on first use: training does not need those that read other runs.
"""

from typing import TYPE_CHECKING

from rdm_solo import import_on_first_use

if TYPE_CHECKING:
    from rdm_solo.runs.folder import RunFolder, load, scan
    from rdm_solo.runs.metrics_file import read_metrics

__all__ = ["RunFolder", "load", "read_metrics", "scan"]

__getattr__ = import_on_first_use(__all__, "rdm_solo.runs.metrics_file", "rdm_solo.runs.folder")
