"""Provide ``pl`` from the Lightning package that the installed solo-learn uses.

solo-learn's current main imports ``lightning.pytorch`` and its release 1.0.2 ``pytorch_lightning``.
Their classes differ. ``pl`` is imported on first use, because ``Watch`` works without Lightning.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from rdm_solo.ground.packages import check_installed

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _is_current() -> bool:
    """Return whether to use ``lightning.pytorch``, as solo-learn's current main does."""
    spec = importlib.util.find_spec("solo")
    if spec is None:  # any installed Lightning will do
        return importlib.util.find_spec("lightning") is not None
    folders = spec.submodule_search_locations or []
    return any((Path(folder) / "backbones").is_dir() for folder in folders)


CURRENT = _is_current()
pl: Any


def __getattr__(name: str) -> Any:
    if name == "pl":
        current, release = PACKAGES
        package = current if CURRENT else release
        check_installed("training", package.partition(".")[0])
        importlib.import_module(f"{package}.plugins.environments")  # not imported by the package
        return importlib.import_module(package)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def callback_classes() -> tuple[type, ...]:
    """Return the Callback class of each installed Lightning package.

    The Trainers of both packages accept a callback that is derived from these classes.
    """
    classes = []
    for name in PACKAGES:
        package = name.partition(".")[0]
        if importlib.util.find_spec(package):
            classes.append(importlib.import_module(name).Callback)
    if not classes:
        raise ImportError("neither lightning nor pytorch_lightning is installed; install one.")
    return tuple(classes)
