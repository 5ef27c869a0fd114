"""Batches of images in memory, and the loader for each kind of data set."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from rdm_solo.data.batches import Loader, skipped_images
from rdm_solo.data.images import Dataset, Files, Images

__all__ = ["Loader", "MemoryLoader", "loader", "skipped_images"]


class MemoryLoader(Loader):
    """A `Loader` of images in memory, which it keeps on the device."""

    images: Images

    @cached_property
    def _pixels(self) -> Tensor:
        return self.images.images.to(self.device)

    def _batches(self, batches: list[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        for samples in batches:
            place = samples.to(self.device, non_blocking=True)
            x = self._pixels.index_select(0, place).float().div_(255)
            if self.views is None:
                yield samples, [x]
            else:
                uniforms = self.views.uniforms(samples, self.seed, self.epoch or 0)
                each = zip(self.views.each, uniforms)
                yield samples, [view(x, u) for view, u in each]


def loader(
    dataset: Dataset, part: Literal["train", "val"], batch_size: int, **options: Any
) -> Loader:
    """Return the `Loader` of one part of a data set, with its options.

    >>> from rdm_solo.data import synthetic
    >>> batches = loader(synthetic(num_train=10, num_val=5, size=8), "val", 2)
    >>> [tuple(x.shape) for x, labels in batches]
    [(2, 3, 8, 8), (2, 3, 8, 8), (1, 3, 8, 8)]
    """
    if not isinstance(getattr(dataset, part), Files):
        return MemoryLoader(dataset, part, batch_size, **options)
    from rdm_solo.data.file_loader import FileLoader  # runs on images in memory do without it

    return FileLoader(dataset, part, batch_size, **options)
