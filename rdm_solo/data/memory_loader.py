"""Batches of images in memory, with their views made on the device that trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rdm_solo import distributed
from rdm_solo.data.draws import generator
from rdm_solo.data.views import Views

if TYPE_CHECKING:
    from rdm_solo.data.images import Files
from rdm_solo.data.images import Images

__all__ = ["EpochLoader"]


class EpochLoader:
    """Batches of one process, epoch after epoch.

    With ``views`` a batch is ``(indices, [view_1, ..., view_V], labels)``, shuffled; without, it is
    ``(x, labels)``, and every image comes once and in order (``shuffle`` and ``drop_last`` are for
    training only). Images are normalised float32.

    An epoch's order is drawn from ``(seed, epoch)`` and cut into *global* batches of
    ``batch_size * world_size``, of which each process takes its slice: step ``t`` of ``w``
    processes sees the images that one process with the ``w``-fold batch sees. A sample's
    augmentation is drawn from ``(seed, epoch, view)`` and the sample's index, so neither the batch
    size nor the number of processes changes it. A last, short batch (``drop_last=False``, or
    validation) is shared out evenly, or joins the one before where it could not feed every process.

    >>> from rdm_solo.data import synthetic
    >>> data = synthetic(num_train=10, num_val=5, size=8)
    >>> loader = EpochLoader(data.val, 2, mean=data.mean, std=data.std)
    >>> [tuple(x.shape) for x, labels in loader]
    [(2, 3, 8, 8), (2, 3, 8, 8), (1, 3, 8, 8)]

    Args:
        images: what to load.
        batch_size: images per process and step.
        mean: of each channel, in [0, 1] units.
        std: likewise.
        views: makes a sample's views; ``None`` loads plain images.
        seed: of the order and of the augmentation.
        shuffle: a new order every epoch.
        drop_last: leave out the last batch where it would be short.
        device: where the images are kept and the views are made.
        expand_channels: repeat grey images to this many channels.
        rank: of this process; by default torch.distributed's, read when iteration starts.
        world_size: likewise.
    """

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
        least = 1 if views is None else 2
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < least:
            raise ValueError(
                f"batch_size={batch_size!r} is not allowed: give a whole number of at least {least}"
            )
        channels = images.channels
        if not len(mean) == len(std) == channels:
            raise ValueError(
                f"mean and std need a value for each of {channels} channels, got {len(mean)} and "
                f"{len(std)}"
            )
        if not all(value > 0 for value in std):
            raise ValueError(f"std={tuple(std)} is not allowed: give numbers above 0")
        if expand_channels is not None and channels not in (1, expand_channels):
            raise ValueError(
                f"expand_channels={expand_channels} needs images of 1 channel, got {channels}"
            )
        if (rank is None) != (world_size is None):
            raise ValueError(
                f"rank={rank} and world_size={world_size} come together: give both or neither"
            )
        if rank is not None and world_size is not None and not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} must be at least 0 and below world_size={world_size}")
        self.images = images
        self.batch_size = batch_size
        self.mean, self.std = tuple(mean), tuple(std)
        self.views = views
        self.seed = seed
        self.shuffle = shuffle and views is not None
        self.drop_last = drop_last and views is not None
        self.device = torch.device(device)
        self.expand_channels = expand_channels
        self.epoch = 0
        self._process = None if rank is None or world_size is None else (rank, world_size)
        self._resident: Images | None = None

    # Lightning 2 asks every loader that has a sampler for this one too.
    batch_sampler = None

    @property
    def sampler(self) -> EpochLoader:
        """The loader itself: Lightning announces an epoch to ``loader.sampler``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order and augmentation the next iteration uses."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._slices())

    def __iter__(self) -> Iterator[tuple[Tensor, ...] | tuple[Tensor, list[Tensor], Tensor]]:
        order = self._order()
        uniforms = self.views.uniforms(order, self.seed, self.epoch) if self.views else []
        source = self._on_device()
        scale = 255 * self._per_channel(self.std)
        shift = self._per_channel(self.mean) / self._per_channel(self.std)
        for piece in self._slices():
            index = order[piece].to(self.device, non_blocking=True)
            x = source.images.index_select(0, index).float()
            labels = source.labels.index_select(0, index)
            if self.views is None:
                yield self._expand(x.div_(scale).sub_(shift)), labels
                continue
            x.div_(255)
            crops = [
                self._expand(self.views.view(x, v, u[piece]).mul_(255 / scale).sub_(shift))
                for v, u in enumerate(uniforms)
            ]
            yield index, crops, labels

    def _order(self) -> Tensor:
        """The epoch's order, of all processes together."""
        n = len(self.images)
        if self.shuffle:
            return torch.randperm(n, generator=generator(self.seed, self.epoch, "order"))
        return torch.arange(n)

    def _slices(self) -> list[slice]:
        """This process's part of the epoch's order, step by step."""
        rank, world = self._process or (distributed.rank(), distributed.world_size())
        n, step = len(self.images), self.batch_size * world
        ends = list(range(step, n + 1, step))
        rest = n % step
        if self.drop_last:
            if not ends:
                raise ValueError(
                    f"batch_size={self.batch_size} on {world} process{'es' * (world > 1)} takes "
                    f"{step} images a step, but the training set has {n}: give at most {n // world}"
                )
        elif rest >= world * (1 if self.views is None else 2):
            ends.append(n)
        elif rest and ends:
            ends[-1] = n
        elif rest:
            raise ValueError(
                f"batch_size={self.batch_size} on {world} process{'es' * (world > 1)} needs more "
                f"than {n} images to give every process a batch: use fewer processes"
            )
        starts = [0, *ends[:-1]]
        return [
            slice(low + (high - low) * rank // world, low + (high - low) * (rank + 1) // world)
            for low, high in zip(starts, ends, strict=True)
        ]

    def _on_device(self) -> Images:
        if not isinstance(self.images, Images):
            raise TypeError("an EpochLoader takes images in memory; files need a FileLoader")
        if self._resident is None or self._resident.images.device != self.device:
            self._resident = Images(
                self.images.images.to(self.device), self.images.labels.to(self.device)
            )
        return self._resident

    def _per_channel(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1).to(self.device)

    def _expand(self, x: Tensor) -> Tensor:
        if self.expand_channels is None or x.shape[1] == self.expand_channels:
            return x
        return x.repeat(1, self.expand_channels, 1, 1)
