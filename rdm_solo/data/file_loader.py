"""Batches of images from files, decoded and cropped by worker processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from rdm_solo.data.decoding import Decoded, Task, _Decoder
from rdm_solo.data.images import DataError, Files
from rdm_solo.data.memory_loader import EpochLoader
from rdm_solo.distributed import world_size

__all__ = ["FileLoader"]

log = logging.getLogger("rdm_solo")


class _Tasks:
    """The sampler of a DataLoader that outlives its epochs."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)


class FileLoader(EpochLoader):
    """An :class:`EpochLoader` of files: the same batches in the same order, decoded by workers.

    A sample's views depend on ``(seed, epoch, view)`` and the sample's index alone, so neither the
    batch size nor the number of workers or processes changes them. Validation images are resized
    and cut out of the middle, see `Reading`.

    An image that cannot be read raises a DataError with its path. With ``skip_broken`` the next
    readable image takes its place in training, under its own index and label but by the draws of
    the one that it stands in for: batches keep their size, and a repeated run its views. Clean
    images are left out. Either is said in the log at the end of the epoch.
    """

    images: Files

    def __init__(self, images: Files, batch_size: int, **options: Any) -> None:
        super().__init__(images, batch_size, **options)
        self._tasks = _Tasks()
        self._decoder = _Decoder(images, self.views, self.seed)
        self._workers: DataLoader[Decoded] | None = None
        self._skipped: set[str] = set()

    def __iter__(self) -> Iterator[tuple[Tensor, ...] | tuple[Tensor, list[Tensor], Tensor]]:
        order, epoch = self._order(), self.epoch
        batches = [order[piece].tolist() for piece in self._slices()]
        self._tasks.tasks = [(epoch, samples) for samples in batches]
        broken: dict[str, str] = {}
        for samples, decoded in zip(batches, self._loader()):
            broken.update(decoded.broken)
            self._refuse(decoded, len(samples))
            yield self._batch([samples[slot] for slot in decoded.slots], decoded, epoch)
        self._report(broken)

    def _batch(self, drawn: list[int], decoded: Decoded, epoch: int) -> Any:
        """Floats on the device from a worker's bytes."""
        samples = torch.tensor(decoded.samples)
        labels = self.images.labels[samples].to(self.device, non_blocking=True)
        crops = [crop.to(self.device, non_blocking=True) for crop in decoded.crops]
        scale, shift = self._per_channel(self.std), self._per_channel(self.mean)
        if self.views is None:
            x = crops[0].float().div_(255).sub_(shift).div_(scale)
            return self._expand(x), labels
        rows = self.views.uniforms(drawn, self.seed, epoch)
        views = [
            self._expand(self.views.pipeline(v).finish(crop, u).sub_(shift).div_(scale))
            for v, (crop, u) in enumerate(zip(crops, rows))
        ]
        return samples.to(self.device, non_blocking=True), views, labels

    def _loader(self) -> DataLoader[Decoded]:
        """The DataLoader; the one of training keeps its workers from epoch to epoch."""
        if self._workers is not None:
            return self._workers
        workers = self._number_of_workers()
        loader: DataLoader[Decoded] = DataLoader(
            self._decoder,
            batch_size=None,
            sampler=self._tasks,
            num_workers=workers,
            collate_fn=_as_is,
            pin_memory=self.device.type == "cuda",
            persistent_workers=workers > 0 and self.views is not None,
            # Its own: otherwise the run's random numbers would depend on how data are loaded.
            generator=torch.Generator(),
        )
        if self.views is not None:
            self._workers = loader
        return loader

    def _number_of_workers(self) -> int:
        if self.images.reading.workers is not None:
            return self.images.reading.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        processes = self._process[1] if self._process else world_size()
        if torch.cuda.is_available():  # some of them may be on other machines
            processes = min(processes, torch.cuda.device_count())
        return max(1, min(16, (cores or 1) // processes))

    def _refuse(self, decoded: Decoded, wanted: int) -> None:
        """Raise for what could not be read, unless it may be skipped and something is left."""
        if not decoded.broken:
            return
        path, why = decoded.broken[0]
        if not self.images.reading.skip_broken:
            raise DataError(
                f"{path} {why}: repair or remove it, or set dataset.skip_broken=true to go on "
                "without such images"
            )
        if not decoded.slots or (self.views and len(decoded.slots) < wanted):
            raise DataError(
                f"{path} {why}, and {len(decoded.broken) - 1} images near it cannot be read "
                "either: too many for dataset.skip_broken=true"
            )

    def _report(self, broken: dict[str, str]) -> None:
        """A line on the images that were skipped for the first time."""
        new = sorted(set(broken) - self._skipped)
        if not new:
            return
        self._skipped.update(new)
        first = "; ".join(f"{path} {broken[path]}" for path in new[:3])
        more = f"; and {len(new) - 3} more" if len(new) > 3 else ""
        instead = "replaced by a neighbour" if self.views else "left out"
        log.warning(f"warning: {len(new)} unreadable image(s), {instead}: {first}{more}")


def _as_is(batch: Any) -> Any:
    return batch
