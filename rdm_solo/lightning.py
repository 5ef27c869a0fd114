"""Lightning as ``pl``, in the package whose classes the installed solo-learn is built on.

solo-learn's current main imports ``lightning.pytorch``; its release 1.0.2 ``pytorch_lightning``,
whose classes are others. Which one is installed shows in its folders, so that callbacks and loggers
need not import it.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

__all__ = ["CURRENT", "pl", "slurm_environment"]


def _is_current() -> bool:
    """Whether solo-learn's current main is installed, or none at all."""
    found = importlib.util.find_spec("solo")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    return not folders or any((Path(folder) / "backbones").is_dir() for folder in folders)


CURRENT = _is_current()

pl: Any = importlib.import_module("lightning.pytorch" if CURRENT else "pytorch_lightning")


def slurm_environment() -> Any:
    """Lightning's class for processes that ``srun`` has started."""
    fabric = "lightning.fabric" if CURRENT else "lightning_fabric"
    return importlib.import_module(f"{fabric}.plugins.environments").SLURMEnvironment
