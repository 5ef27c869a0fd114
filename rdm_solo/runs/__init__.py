"""A run's folder: its file names, config, tables and spectra.

Modules are imported on first use: training does not need those that read other runs.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdm_solo.runs.folder import Run, find, load, scan
    from rdm_solo.runs.metrics_file import read_metrics

_MODULES = dict.fromkeys(["Run", "find", "load", "scan"], "folder")
_MODULES["read_metrics"] = "metrics_file"
__all__ = ["Run", "find", "load", "read_metrics", "scan"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"rdm_solo.runs.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
