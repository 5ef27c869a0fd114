"""The methods, for both versions of solo-learn; solo-learn is imported on first use."""

import importlib
from typing import Any

_MODULES = {
    "BYOL": "models",
    "DINO": "unfiltered",
    "SimSiam": "models",
    "SwAV": "unfiltered",
    "SymSimSiam": "symmetric",
    "build": "building",
    "prepare": "building",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"rdm_solo.methods.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
