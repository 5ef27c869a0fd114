"""Images, data sets, views and loaders."""

from importlib import import_module
from typing import Any

from rdm_solo.data.draws import generator
from rdm_solo.data.images import DataError, Dataset, Files, Images, Reading
from rdm_solo.data.loaders import Loader, loader
from rdm_solo.data.views import Pipeline, Views

__all__ = [
    "DataError",
    "Dataset",
    "Files",
    "Images",
    "Loader",
    "Pipeline",
    "Reading",
    "Views",
    "generator",
    "loader",
]


def __getattr__(name: str) -> Any:
    """Return the data set that `sources` or `folders` define by that name."""
    for module in ("rdm_solo.data.sources", "rdm_solo.data.folders"):
        value = getattr(import_module(module), name, None)
        if getattr(value, "__module__", None) == module:
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
