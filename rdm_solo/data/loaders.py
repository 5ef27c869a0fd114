"""Batches of a data set's images or views, in memory or from files: `loader` picks which."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from rdm_solo import distributed
from rdm_solo.data.decoding import Decoded, Decoder, Task
from rdm_solo.data.draws import generator
from rdm_solo.data.images import DataError, Dataset, Files, Images, check_moments
from rdm_solo.data.views import Views
from rdm_solo.messages import check_whole

__all__ = ["EpochLoader", "FileLoader", "Loader", "loader"]

log = logging.getLogger("rdm_solo")


def loader(
    dataset: Dataset, part: Literal["train", "val"], batch_size: int, **options: Any
) -> Loader:
    """The loader of one part of a data set, with its mean and std.

    ``options`` are the other ones of `Loader`: ``views``, ``seed``, ``device``, ...

    >>> from rdm_solo.data import synthetic
    >>> batches = loader(synthetic(num_train=10, num_val=5, size=8), "val", 2)
    >>> [tuple(x.shape) for x, labels in batches]
    [(2, 3, 8, 8), (2, 3, 8, 8), (1, 3, 8, 8)]
    """
    images = getattr(dataset, part)
    kind = FileLoader if isinstance(images, Files) else EpochLoader
    return kind(images, batch_size, mean=dataset.mean, std=dataset.std, **options)


class Loader(ABC):
    """Batches of one process, epoch after epoch.

    With ``views`` a batch is ``(indices, [view_1, ..., view_V], labels)``, shuffled; without, it is
    ``(x, labels)``, and every image comes once and in order (``shuffle`` and ``drop_last`` are for
    training only). Images are normalised float32.

    An epoch's order is drawn from ``(seed, epoch)`` and cut into *global* batches of
    ``batch_size * world_size``, of which each process takes its slice: step ``t`` of ``w``
    processes sees the images that one process with the ``w``-fold batch sees. A sample's views
    depend on ``(seed, epoch, view)`` and the sample's index alone, so neither the batch size nor
    the number of processes or workers changes them, nor whether images are in memory or in files.
    A last, short batch (``drop_last=False``, or validation) is shared out evenly, or joins the one
    before where it could not feed every process.

    Args:
        images: what to load.
        batch_size: images per process and step.
        mean: of each channel, in [0, 1] units.
        std: likewise.
        views: makes a sample's views; ``None`` loads plain images.
        seed: of the order and of the augmentation.
        shuffle: a new order every epoch.
        drop_last: leave out the last batch where it would be short.
        device: where the views are made.
        expand_channels: repeat grey images to this many channels.
        rank: of this process; by default torch.distributed's, read when iteration starts.
        world_size: likewise.
    """

    # Lightning 2 asks every loader that has a sampler for this one too.
    batch_sampler = None

    def __init__(
        self,
        images: Images | Files,
        batch_size: int,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        views: Views | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        device: str | torch.device = "cpu",
        expand_channels: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._least = 1 if views is None else 2  # batch norm needs two
        check_whole("batch_size", batch_size, self._least)
        channels = images.channels
        self.mean, self.std = check_moments(mean, std, channels)
        if expand_channels is not None and channels not in (1, expand_channels):
            raise ValueError(
                f"the backbone takes {expand_channels} channels (expand_channels): give images of "
                f"1 or {expand_channels} channels (dataset.channels), not {channels}"
            )
        if (rank is None) != (world_size is None):
            raise ValueError(
                f"rank={rank} and world_size={world_size} come together: give both or neither"
            )
        if rank is not None and world_size is not None and not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} must be at least 0 and below world_size={world_size}")
        self.images = images
        self.batch_size = batch_size
        self.views = views
        self.seed = seed
        self.shuffle = shuffle and views is not None
        self.drop_last = drop_last and views is not None
        self.device = torch.device(device)
        self.expand_channels = expand_channels
        self.epoch = 0
        self._rank, self._world_size = rank, world_size

    @property
    def sampler(self) -> Loader:
        """The loader itself: Lightning announces an epoch to ``loader.sampler``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order and augmentation the next iteration uses."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._slices())

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def _order(self) -> Tensor:
        """The epoch's order, of all processes together."""
        n = len(self.images)
        if self.shuffle:
            return torch.randperm(n, generator=generator(self.seed, self.epoch, "order"))
        return torch.arange(n)

    def _processes(self) -> int:
        return self._world_size or distributed.world_size()

    def _slices(self) -> list[slice]:
        """This process's part of the epoch's order, step by step."""
        rank = distributed.rank() if self._rank is None else self._rank
        world = self._processes()
        n, step = len(self.images), self.batch_size * world
        ends = list(range(step, n + 1, step))
        rest = n % step
        if self.drop_last:
            if not ends:
                raise ValueError(
                    f"batch_size={self.batch_size} on {world} process{'es' if world > 1 else ''} "
                    f"takes {step} images a step, but the training set has {n}: give at most "
                    f"{n // world}"
                )
        elif rest >= world * self._least:
            ends.append(n)
        elif rest and ends:
            ends[-1] = n
        elif rest:
            raise ValueError(
                f"batch_size={self.batch_size} on {world} process{'es' if world > 1 else ''} needs "
                f"more than {n} images to give every process a batch: use fewer processes"
            )
        starts = [0, *ends[:-1]]
        return [
            slice(low + (high - low) * rank // world, low + (high - low) * (rank + 1) // world)
            for low, high in zip(starts, ends, strict=True)
        ]

    @cached_property
    def _moments(self) -> list[Tensor]:
        """Mean and standard deviation of each channel, on the device."""
        moments = (torch.tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        return [values.view(-1, 1, 1).to(self.device) for values in moments]

    def _normalise(self, x: Tensor) -> Tensor:
        """Values in [0, 1], normalised in place, then repeated to the channels that are wanted."""
        mean, std = self._moments
        x = x.sub_(mean).div_(std)
        if self.expand_channels is None or x.shape[1] == self.expand_channels:
            return x
        return x.repeat(1, self.expand_channels, 1, 1)


class EpochLoader(Loader):
    """A `Loader` of images in memory, which it keeps on the device.

    >>> from rdm_solo.data import synthetic
    >>> data = synthetic(num_train=10, num_val=5, size=8)
    >>> batches = EpochLoader(data.train, 4, mean=data.mean, std=data.std)
    >>> [len(labels) for x, labels in batches]
    [4, 4, 2]
    """

    images: Images
    _resident: Images | None = None

    def __iter__(self) -> Iterator[Any]:
        order = self._order()
        uniforms = self.views.uniforms(order, self.seed, self.epoch) if self.views else []
        source = self._on_device()
        for piece in self._slices():
            index = order[piece].to(self.device, non_blocking=True)
            x = source.images.index_select(0, index).float().div_(255)
            labels = source.labels.index_select(0, index)
            if self.views is None:
                yield self._normalise(x), labels
                continue
            crops = [
                self._normalise(self.views.view(x, v, u[piece])) for v, u in enumerate(uniforms)
            ]
            yield index, crops, labels

    def _on_device(self) -> Images:
        if self._resident is None:
            images, labels = self.images.images, self.images.labels
            self._resident = Images(images.to(self.device), labels.to(self.device))
        return self._resident


class FileLoader(Loader):
    """A `Loader` of image files, which worker processes decode and crop.

    Validation images are resized and cut out of the middle, see `Reading`.

    An image that cannot be read raises a DataError with its path. With ``skip_broken`` the next
    readable image takes its place in training, under its own index and label but by the draws of
    the one that it stands in for: batches keep their size, and a repeated run its views. Broken
    validation images are left out. The log names either at the end of the epoch.
    """

    images: Files

    def __init__(self, images: Files, batch_size: int, **options: Any) -> None:
        super().__init__(images, batch_size, **options)
        self._tasks: list[Task] = []  # of the epoch; the DataLoader's sampler, which outlives it
        self._decoder = Decoder(images, self.views, self.seed)
        self._workers: DataLoader[Decoded] | None = None
        self._skipped: set[str] = set()

    def __iter__(self) -> Iterator[Any]:
        order, epoch = self._order(), self.epoch
        batches = [order[piece].tolist() for piece in self._slices()]
        self._tasks[:] = [(epoch, samples) for samples in batches]
        broken: dict[str, str] = {}
        for samples, decoded in zip(batches, self._decoded()):
            broken.update(decoded.broken)
            self._refuse(decoded, len(samples))
            yield self._batch([samples[slot] for slot in decoded.slots], decoded, epoch)
        self._report(broken)

    def _batch(self, drawn: list[int], decoded: Decoded, epoch: int) -> Any:
        """Floats on the device from a worker's bytes; ``drawn`` are the samples of the draws."""
        samples = torch.tensor(decoded.samples)
        labels = self.images.labels[samples].to(self.device, non_blocking=True)
        crops = [crop.to(self.device, non_blocking=True) for crop in decoded.crops]
        if self.views is None:
            return self._normalise(crops[0].float().div_(255)), labels
        uniforms = self.views.uniforms(drawn, self.seed, epoch)
        views = [
            self._normalise(self.views.pipeline(v).finish(crop, u))
            for v, (crop, u) in enumerate(zip(crops, uniforms))
        ]
        return samples.to(self.device, non_blocking=True), views, labels

    def _decoded(self) -> DataLoader[Decoded]:
        """The DataLoader; the one of training keeps its workers from epoch to epoch."""
        if self._workers is not None:
            return self._workers
        workers = self._number_of_workers()
        made: DataLoader[Decoded] = DataLoader(
            self._decoder,
            batch_size=None,
            sampler=self._tasks,
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
            persistent_workers=workers > 0 and self.views is not None,
            # Its own: otherwise the run's random numbers would depend on how data are loaded.
            generator=torch.Generator(),
        )
        if self.views is not None:
            self._workers = made
        return made

    def _number_of_workers(self) -> int:
        if self.images.reading.workers is not None:
            return self.images.reading.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        processes = self._processes()
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
        """Log the images that were skipped for the first time."""
        new = sorted(set(broken) - self._skipped)
        if not new:
            return
        self._skipped.update(new)
        first = "; ".join(f"{path} {broken[path]}" for path in new[:3])
        more = f"; and {len(new) - 3} more" if len(new) > 3 else ""
        instead = "replaced by a neighbour" if self.views else "left out"
        log.warning(f"warning: {len(new)} unreadable image(s), {instead}: {first}{more}")
