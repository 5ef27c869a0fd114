"""The order of batches, and batches of images in memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from rdm_solo.data.draws import generator
from rdm_solo.data.images import Dataset, Files, Images
from rdm_solo.data.views import Views
from rdm_solo.ground import distributed
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_integer

# On a GPU, launching a call's operators takes longer than augmenting a batch of small images
# (benchmarks/gpu.md). So one call augments several batches, up to this many values: of CIFAR's
# images 4 batches of 256. Their views take 24 MiB, and about four times that during the call. The
# tables of their parameters stay below 64 KiB, because larger copies from the host may wait.
CALL_VALUES = 6 * 2**20


class Loader(ABC):
    """Batches of one process, epoch after epoch.

    With ``views``, a batch is ``(indices, [view_1, ..., view_V], labels)``, and images are
    shuffled. Without, it is ``(x, labels)``, and each image comes once, in order. Images are
    normalised float32.

    An epoch's order depends on ``(seed, epoch)`` and is split into *global* batches of
    ``batch_size * world_size``. Each process takes its slice, so step ``t`` of ``w`` processes sees
    the images that one process with a ``w`` times larger batch sees. A sample's views depend only
    on ``(seed, epoch, view)`` and its index. A short last batch (``drop_last=False``, or without
    views) is split evenly, or merged into the previous batch if it has too few images.

    Args:
        dataset: the data set.
        part: ``train`` or ``val``.
        batch_size: images per process and step.
        views: the augmentation; ``None`` loads clean images.
        seed: seed of the order and of the augmentation.
        drop_last: drop a short last batch; ignored without views.
        device: device that computes the views.
        expand_channels: repeat grey images to this many channels.
    """

    # Lightning 2 reads this attribute of every loader that has a sampler.
    batch_sampler = None

    def __init__(
        self,
        dataset: Dataset,
        part: Literal["train", "val"],
        batch_size: int,
        *,
        views: Views | None = None,
        seed: int = 0,
        drop_last: bool = True,
        device: str | torch.device = "cpu",
        expand_channels: int | None = None,
    ) -> None:
        self._min_images = 1 if views is None else 2  # batch norm needs two
        check_integer("batch_size", batch_size, self._min_images)
        self.images: Images | Files = getattr(dataset, part)
        self.channels = expand_channels or self.images.channels
        if self.images.channels not in (1, self.channels):
            raise UserError(
                f"the backbone takes {self.channels} channels: give images of 1 or "
                f"{self.channels} channels (dataset.channels), not {self.images.channels}"
            )
        self.batch_size = batch_size
        self.views = views
        self.seed = seed
        self.drop_last = drop_last and views is not None
        self.device = torch.device(device)
        self.epoch = 0
        self.skipped: dict[str, str] = {}  #: the reason for each skipped image, by name
        moments = torch.tensor([dataset.mean, dataset.std], dtype=torch.float32)
        moments = moments[..., None, None].to(self.device)
        self._mean, self._std = moments

    @property
    def sampler(self) -> "Loader":
        """Return the loader itself, because Lightning calls ``loader.sampler.set_epoch``."""
        return self

    @property
    def dataset(self) -> Images | Files:
        """Return the images; solo-learn's DeepCluster v2 reads this attribute."""
        return self.images

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order and the augmentation."""
        self.epoch = epoch

    def report_skipped(self) -> None:  # noqa: B027 (images in memory are always readable)
        """Log all skipped images if any were skipped since the last report."""

    def __len__(self) -> int:
        return len(self._slices())

    def __iter__(self) -> Iterator[Any]:
        for samples, views, labels in self.indexed():
            if self.views is None:
                yield views[0], labels
            else:
                yield samples.to(self.device, non_blocking=True), views, labels

    def indexed(self) -> Iterator[tuple[Tensor, list[Tensor], Tensor]]:
        """Yield each batch's indices, on the CPU, its views and its labels."""
        order = torch.arange(len(self.images))
        if self.views:
            random = generator(self.seed, self.epoch, "order")
            order = torch.randperm(len(self.images), generator=random)
        batches = [order[rows] for rows in self._slices()]
        for group, stacks in self._load_batches(batches):
            for x in stacks:
                x.sub_(self._mean)
                x.div_(self._std)
            sizes = [len(samples) for samples in group]
            by_batch = [torch.split(x, sizes, dim=1) for x in stacks]
            for samples, *parts in zip(group, *by_batch):
                views: list[Tensor] = []
                for x in parts:
                    if self.channels != self.images.channels:
                        x = x.repeat(1, 1, self.channels, 1, 1)
                    views.extend(x)
                labels = self.images.labels[samples]
                yield samples, views, labels.to(self.device, non_blocking=True)

    @abstractmethod
    def _load_batches(self, batches: list[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Yield the indices of one or several batches and the views of their readable images.

        Views are in [0, 1] and in stacks ``(V, n, C, H, W)``, one for each pipeline, where ``n``
        counts the images of all these batches.
        """

    def _slices(self) -> list[slice]:
        """Return this process's slice of the epoch's order for each step."""
        rank, world = distributed.rank(), distributed.world_size()
        n = len(self.images)
        step = self.batch_size * world
        ends = list(range(step, n + 1, step))
        rest = n % step
        if not self.drop_last and rest >= world * self._min_images:
            ends.append(n)
        if not ends:
            raise UserError(
                f"batch_size={self.batch_size} on {world} process(es) needs {step} images, but "
                f"there are only {n}: lower batch_size or use fewer processes"
            )
        if not self.drop_last:
            ends[-1] = n
        slices = []
        low = 0
        for high in ends:
            count = high - low
            start = low + count * rank // world
            stop = low + count * (rank + 1) // world
            slices.append(slice(start, stop))
            low = high
        return slices


class MemoryLoader(Loader):
    """A `Loader` of images in memory; it keeps them on the device."""

    images: Images

    @cached_property
    def _pixels(self) -> Tensor:
        return self.images.images.to(self.device)

    def _load_batches(self, batches: list[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        at_once = self._batches_at_once()
        for first in range(0, len(batches), at_once):
            group = batches[first : first + at_once]
            samples = torch.cat(group)
            indices = samples.to(self.device, non_blocking=True)
            pixels = self._pixels.index_select(0, indices)
            x = pixels.float().div_(255)
            if self.views is None:
                yield group, [x[None]]
            else:
                u = self.views.uniforms(samples, self.seed, self.epoch)
                yield group, self.views(x, u)

    def _batches_at_once(self) -> int:
        """Return how many batches are augmented in one call."""
        if self.device.type == "cpu" or self.views is None:
            return 1
        channels, height, width = self._pixels.shape[1:]
        values = channels * self.views.pixels(height, width)
        return max(1, CALL_VALUES // (self.batch_size * values))
