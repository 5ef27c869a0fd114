"""Lightning as ``pl``, in the package whose classes the installed solo-learn is built on.

solo-learn's current main imports ``lightning.pytorch``; its release 1.0.2 ``pytorch_lightning``,
whose classes are others. Which one is installed shows in its folders, so that callbacks and loggers
need not import it. ``pl`` is imported when it is first asked for: a module of either package, and a
loop of one's own without any, can be watched.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Any

__all__ = ["CURRENT", "callback_classes", "pl", "slurm_environment"]

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
ABSENT = (
    "Lightning is not installed, which training needs: pip install 'rdm-solo[train]' brings it."
)


def _is_current() -> bool:
    """Whether solo-learn's current main is installed, or none at all."""
    found = importlib.util.find_spec("solo")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    return not folders or any((Path(folder) / "backbones").is_dir() for folder in folders)


CURRENT = _is_current()

pl: Any


@functools.cache
def _pl() -> Any:
    name = PACKAGES[0 if CURRENT else 1]
    if importlib.util.find_spec(name.split(".")[0]) is None:
        raise ModuleNotFoundError(ABSENT, name=name)
    return importlib.import_module(name)


def __getattr__(name: str) -> Any:
    if name == "pl":
        return _pl()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def callback_classes() -> tuple[type, ...]:
    """The classes of callbacks of every package that is installed, so that a Trainer of either
    takes a callback that is derived from all of them (the second takes 0.2 s to import)."""
    there = [name for name in PACKAGES if importlib.util.find_spec(name.split(".")[0])]
    if not there:
        raise ImportError("neither lightning nor pytorch_lightning is installed: pip install one.")
    return tuple(importlib.import_module(name).Callback for name in there)


def slurm_environment() -> Any:
    """Lightning's class for processes that ``srun`` has started."""
    fabric = "lightning.fabric" if CURRENT else "lightning_fabric"
    return importlib.import_module(f"{fabric}.plugins.environments").SLURMEnvironment
