"""Images, data sets, views and loaders."""

from importlib import import_module
from typing import Any, Literal

from rdm_solo.data.draws import generator
from rdm_solo.data.images import DataError, Dataset, Files, Images
from rdm_solo.data.loaders import Loader, MemoryLoader
from rdm_solo.data.views import Pipeline, Views

__all__ = [
    "DataError",
    "Dataset",
    "Files",
    "Images",
    "Loader",
    "Pipeline",
    "Views",
    "generator",
    "loader",
]


def loader(
    dataset: Dataset, part: Literal["train", "val"], batch_size: int, **options: Any
) -> Loader:
    """Return the `Loader` for one part of a data set; ``options`` are those of `Loader`.

    >>> from rdm_solo.data import synthetic
    >>> batches = loader(synthetic(num_train=10, num_val=5, size=8), "val", 2)
    >>> [tuple(x.shape) for x, labels in batches]
    [(2, 3, 8, 8), (2, 3, 8, 8), (1, 3, 8, 8)]
    """
    if not isinstance(getattr(dataset, part), Files):
        return MemoryLoader(dataset, part, batch_size, **options)
    from rdm_solo.data.file_loader import FileLoader  # not needed for images in memory

    return FileLoader(dataset, part, batch_size, **options)


def __getattr__(name: str) -> Any:
    """Import a name from a submodule when it is first used."""
    for module in ("sources", "gratings", "decoding", "folders"):
        module = f"rdm_solo.data.{module}"
        value = getattr(import_module(module), name, None)
        if getattr(value, "__module__", None) == module:
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
