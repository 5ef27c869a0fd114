"""Images, data sets, views and loaders."""

from typing import Any, Literal

from rdm_solo import import_on_first_use
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
    dataset: Dataset,
    part: Literal["train", "val"],
    batch_size: int,
    **options: Any,
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


# Data sets: config files name their functions.
__getattr__ = import_on_first_use(
    None,
    "rdm_solo.data.sources",
    "rdm_solo.data.gratings",
    "rdm_solo.data.decoding",
    "rdm_solo.data.folders",
)
