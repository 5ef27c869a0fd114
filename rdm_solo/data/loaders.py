"""Batches of a data set's images or views, in memory or from files: `loader` picks which."""

import logging
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from rdm_solo import distributed
from rdm_solo.data.decoding import Decoded, Decoder, Task
from rdm_solo.data.draws import generator
from rdm_solo.data.images import REMEDY, DataError, Dataset, Files, Images
from rdm_solo.data.memory import BatchMemory
from rdm_solo.data.views import Views
from rdm_solo.messages import UserError, check_whole, listed, printable

log = logging.getLogger("rdm_solo")

# A worker hands over its tensors by a socket of that name in the folder for temporary files. With a
# longer name it prints a traceback, and the training process waits for ever.
LONGEST_TMPDIR = 107 - len("/pymp-12345678/listener-12345678")


class Loader(ABC):
    """Batches of one process, epoch after epoch.

    With ``views`` a batch is ``(indices, [view_1, ..., view_V], labels)``, shuffled; without, it is
    ``(x, labels)``, and every image comes once and in order. Images are normalised float32.

    An epoch's order is drawn from ``(seed, epoch)`` and cut into *global* batches of
    ``batch_size * world_size``, of which each process takes its slice: step ``t`` of ``w``
    processes sees the images that one process with the ``w``-fold batch sees. A sample's views
    depend on ``(seed, epoch, view)`` and the sample's index alone, so neither the batch size nor
    the number of processes or workers changes them, nor whether images are in memory or in files.
    A last, short batch (``drop_last=False``, or without views) is shared out evenly, or joins the
    one before where it could not feed every process.

    Args:
        dataset: what to load.
        part: ``train`` or ``val``.
        batch_size: images per process and step.
        views: makes a sample's views; ``None`` loads clean images, without augmentation.
        seed: of the order and of the augmentation.
        drop_last: leave out the last batch of views where it would be short.
        device: where the views are made.
        expand_channels: repeat grey images to this many channels.
    """

    # Lightning 2 asks every loader that has a sampler for this one too.
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
        self._least = 1 if views is None else 2  # batch norm needs two
        check_whole("batch_size", batch_size, self._least)
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
        self.epoch: int | None = None
        self.skipped: dict[str, str] = {}  #: of images that were left out, by path, and why
        self._reported = 0
        self._memory = BatchMemory()
        moments = torch.tensor([dataset.mean, dataset.std], dtype=torch.float32)
        self._mean, self._std = moments.view(2, -1, 1, 1).to(self.device)

    @property
    def sampler(self) -> "Loader":
        """The loader itself: Lightning announces an epoch to ``loader.sampler``."""
        return self

    @property
    def dataset(self) -> Images | Files:
        """The images, by the name that solo-learn's DeepCluster v2 and torch's loader have."""
        return self.images

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order and augmentation the next iteration uses."""
        self.epoch = epoch

    def report_skipped(self) -> None:
        """Log the images that were left out since the last report."""
        new = dict(list(self.skipped.items())[self._reported :])
        self._reported = len(self.skipped)
        if new:
            log.warning(f"warning: {skipped_images(new)}")

    def __len__(self) -> int:
        return len(self._slices())

    def __iter__(self) -> Iterator[Any]:
        order = torch.arange(len(self.images))
        if self.views:
            drawn = generator(self.seed, self.epoch or 0, "order")
            order = torch.randperm(len(self.images), generator=drawn)
        for samples, views in self._batches([order[piece] for piece in self._slices()]):
            views = [x.sub_(self._mean).div_(self._std) for x in views]
            if self.channels != self.images.channels:
                views = [x.repeat(1, self.channels, 1, 1) for x in views]
            labels = self.images.labels[samples].to(self.device, non_blocking=True)
            if self.views is None:
                yield views[0], labels
            else:
                yield samples.to(self.device, non_blocking=True), views, labels

    @abstractmethod
    def _batches(self, batches: list[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """For each batch of samples those that were read, and their views in [0, 1]."""

    def _slices(self) -> list[slice]:
        """This process's part of the epoch's order, step by step."""
        rank, world = distributed.rank(), distributed.world_size()
        n, step = len(self.images), self.batch_size * world
        ends = list(range(step, n + 1, step))
        rest = n % step
        if not self.drop_last and rest >= world * self._least:
            ends.append(n)
        if not ends:
            raise UserError(
                f"batch_size={self.batch_size} on {world} process{'es' if world > 1 else ''} takes "
                f"{step} images a step, but there are {n}: lower it, or use fewer processes"
            )
        if not self.drop_last:
            ends[-1] = n
        return [
            slice(low + (high - low) * rank // world, low + (high - low) * (rank + 1) // world)
            for low, high in zip([0, *ends], ends)
        ]


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
                yield samples, [view(x, u, self._memory) for view, u in each]


class FileLoader(Loader):
    """A `Loader` of image files, which worker processes decode and crop.

    Validation images are resized and cut out of the middle, see `Reading`.

    An image that cannot be read raises a DataError with its path. With ``skip_broken`` the next
    readable image takes its place in training, under its own index and label but by the draws of
    the one that it stands in for: batches keep their size, and a repeated run its views. Of clean
    images they are left out. Either way they are in `skipped`.
    """

    images: Files

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tasks: list[Task] = []  # of the epoch; the DataLoader's sampler, which outlives it

    def _batches(self, batches: list[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        self._tasks[:] = [(self.epoch or 0, samples.tolist()) for samples in batches]
        shown = 0
        for number, decoded in enumerate(self._decoded):
            self.skipped |= decoded.broken
            lacking = len(decoded.samples) < len(batches[number])
            if lacking and (self.views or not self.images.reading.skip_broken):
                raise self._refusal(decoded.broken)
            if not decoded.crops:
                continue
            shown += 1
            crops = [crop.to(self.device, non_blocking=True) for crop in decoded.crops]
            if self.views is None:
                views = [crops[0].float().div_(255)]
            else:
                each = zip(self.views.each, crops, decoded.uniforms)
                views = [view.finish(crop, u, self._memory) for view, crop, u in each]
            yield decoded.samples, views
        if not shown:
            raise self._refusal(self.skipped)

    def _refusal(self, broken: dict[str, str]) -> DataError:
        """The sentence about the first of the images that cannot be read."""
        path, why = next(iter(broken.items()))
        when = "" if self.epoch is None else f" in epoch {self.epoch + 1}"
        others, remedy = "", REMEDY
        if self.images.reading.skip_broken:
            others = f", and {len(broken) - 1} images near it cannot be read either"
            remedy = "too many for dataset.skip_broken=true"
        return DataError(f"{printable(path)} {why}{when}{others}: {remedy}")

    @cached_property
    def _decoded(self) -> DataLoader[Decoded | DataError]:
        """Decodes the tasks; in training with the same worker processes in every epoch."""
        workers = self._number_of_workers()
        if workers:
            _check_tmpdir()
        return DataLoader(
            Decoder(self.images, self.views, self.seed),
            batch_size=None,
            sampler=self._tasks,
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
            persistent_workers=workers > 0 and self.views is not None,
            # Its own: otherwise the run's random numbers would depend on how data are loaded.
            generator=torch.Generator(),
        )

    def _number_of_workers(self) -> int:
        if self.images.reading.workers is not None:
            return self.images.reading.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        processes = distributed.world_size()
        if torch.cuda.is_available():  # some of them may be on other machines
            processes = min(processes, torch.cuda.device_count())
        return max(1, min(16, (cores or 1) // processes))


def _check_tmpdir() -> None:
    folder = tempfile.gettempdir()
    length = len(os.fsencode(folder))
    strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    if strategy == "file_descriptor" and length > LONGEST_TMPDIR:
        raise DataError(
            f"{folder}, the folder for temporary files, has a name of {length} bytes; processes "
            f"that decode images need one of at most {LONGEST_TMPDIR}: set TMPDIR to a shorter "
            "one, or decode in the training process by dataset.workers=0."
        )


def skipped_images(broken: Mapping[str, str]) -> str:
    """How many images were skipped, and the first of them with the reason.

    >>> skipped_images({"a.jpg": "is empty", "b.jpg": "is no image"})
    '2 unreadable images were skipped: a.jpg is empty; b.jpg is no image'
    """
    first = listed(f"{printable(path)} {why}" for path, why in broken.items())
    were = "images were" if len(broken) > 1 else "image was"
    return f"{len(broken)} unreadable {were} skipped: {first}"


def loader(
    dataset: Dataset, part: Literal["train", "val"], batch_size: int, **options: Any
) -> Loader:
    """The `Loader` of one part of a data set, with its options.

    >>> from rdm_solo.data import synthetic
    >>> batches = loader(synthetic(num_train=10, num_val=5, size=8), "val", 2)
    >>> [tuple(x.shape) for x, labels in batches]
    [(2, 3, 8, 8), (2, 3, 8, 8), (1, 3, 8, 8)]
    """
    kind = FileLoader if isinstance(getattr(dataset, part), Files) else MemoryLoader
    return kind(dataset, part, batch_size, **options)
