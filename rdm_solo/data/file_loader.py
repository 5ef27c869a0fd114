"""Batches of image files, which worker processes decode and crop.

A worker reads an image once and cuts all its views out, antialiased and as bytes. Flip, jitter,
grey, blur and solarisation follow on the device that trains.
"""

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as MapDataset

from rdm_solo import distributed
from rdm_solo.data.decoding import clean, cut_views, explain
from rdm_solo.data.images import DataError, Files
from rdm_solo.data.loaders import Loader
from rdm_solo.data.views import Views
from rdm_solo.messages import listed, printable

log = logging.getLogger("rdm_solo")

# How many images in a row are tried until one is readable.
TRIES = 100

# A worker passes its tensors through a socket of this name below the folder for temporary files.
# If the whole name has more than 107 bytes, the training process waits for ever (Linux).
LONGEST_TMPDIR = 107 - len("/pymp-12345678/listener-12345678")

# An epoch, and the numbers of the images of one batch.
Task = tuple[int, list[int]]


class Decoded(NamedTuple):
    """A decoded batch."""

    samples: Tensor  #: numbers of the images
    crops: list[Tensor]  #: for each view; without views, the clean images alone
    uniforms: list[Tensor]  #: the draws of each view
    broken: dict[str, str]  #: unreadable images by name, and why


class Decoder(MapDataset[Decoded]):
    """The map-style data set of the workers: turns a task into a decoded batch.

    Unreadable images are returned and not raised, since a DataLoader would add a worker's traceback
    to the message.
    """

    def __init__(self, files: Files, views: Views | None, seed: int) -> None:
        self.files, self.views, self.seed = files, views, seed

    def __getitem__(self, task: Task) -> Decoded:
        epoch, samples = task
        skip = self.files.reading.skip_broken
        tries = min(TRIES, len(self.files)) if skip and self.views else 1
        tables = self.views.uniforms(samples, self.seed, epoch) if self.views else []
        broken: dict[str, str] = {}
        rows: list[tuple[int, int, list[Tensor]]] = []
        for slot, first in enumerate(samples):
            draws = [table[slot : slot + 1] for table in tables]
            for number in range(first, first + tries):
                crops = self._cut(number % len(self.files), draws, broken)
                if crops:
                    rows.append((slot, number % len(self.files), crops))
                    break
            if broken and not skip:
                break
        if not rows:
            return Decoded(torch.tensor([], dtype=torch.int64), [], [], broken)
        slots, numbers, images = zip(*rows)
        crops = [torch.stack(view) for view in zip(*images)]
        return Decoded(torch.tensor(numbers), crops, [u[list(slots)] for u in tables], broken)

    def _cut(self, number: int, draws: list[Tensor], broken: dict[str, str]) -> list[Tensor]:
        """Return the crops of an image; of an unreadable one none, and note it in ``broken``."""
        name = self.files.name(number)
        if name in broken:
            return []
        try:
            image = self.files.open(number)
            if self.views is None:
                return [clean(image, self.files.reading)]
            boxes = self.views.boxes(draws, image.height, image.width)
            sizes = [view.size for view in self.views.each]
            return cut_views(image, boxes, sizes, self.files.reading)
        except Exception as error:  # decoders raise OSError, SyntaxError, struct.error and others
            broken[name] = explain(error)
            return []


class FileLoader(Loader):
    """A `Loader` of image files.

    Validation images are resized and cut out of the middle, see `Reading`.

    An unreadable image raises a DataError that names it. With ``skip_broken`` the next readable
    image takes its place in training. It keeps its own index and label and takes the draws of the
    image that it replaces, so batches keep their size, and a repeated run its views. Clean images
    that are unreadable are left out. Either way they are in `skipped`.
    """

    images: Files

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reported = 0
        self._tasks: list[Task] = []  # the sampler of the DataLoader, which outlives an epoch

    def report_skipped(self) -> None:
        new = dict(list(self.skipped.items())[self._reported :])
        self._reported = len(self.skipped)
        if new:
            log.warning(f"warning: {skipped_images(new)}")

    def _batches(self, batches: list[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        self._tasks[:] = [(self.epoch or 0, samples.tolist()) for samples in batches]
        any_image = False
        for decoded, samples in zip(self._decoded, batches):
            self.skipped |= decoded.broken
            lacking = len(decoded.samples) < len(samples)
            if lacking and (self.views or not self.images.reading.skip_broken):
                raise self._refusal(decoded.broken)
            if not decoded.crops:
                continue
            any_image = True
            crops = [crop.to(self.device, non_blocking=True) for crop in decoded.crops]
            if self.views is None:
                views = [crops[0].float().div_(255)]
            else:
                each = zip(self.views.each, crops, decoded.uniforms)
                views = [view.finish(crop, u) for view, crop, u in each]
            yield decoded.samples, views
        if not any_image:
            raise self._refusal(self.skipped)

    def _refusal(self, broken: dict[str, str]) -> DataError:
        """Return the error that names the first unreadable image."""
        name, why = next(iter(broken.items()))
        epoch = "" if self.epoch is None else f" in epoch {self.epoch + 1}"
        remedy = "repair or remove it, or set dataset.skip_broken=true to skip such images"
        if self.images.reading.skip_broken:
            remedy = f"{len(broken)} images in a row are too many for dataset.skip_broken=true"
        return DataError(f"{printable(name)} {why}{epoch}: {remedy}")

    @cached_property
    def _decoded(self) -> DataLoader[Decoded]:
        """The decoded tasks; in training, every epoch uses the same worker processes."""
        workers = self._number_of_workers()
        if workers and len(os.fsencode(tempfile.gettempdir())) > LONGEST_TMPDIR:
            raise DataError(
                f"worker processes need a TMPDIR of at most {LONGEST_TMPDIR} bytes, got "
                f"{tempfile.gettempdir()}: set TMPDIR to a shorter path, or set dataset.workers=0"
            )
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


def skipped_images(broken: Mapping[str, str]) -> str:
    """Return how many images were skipped, and the first three with their reasons.

    >>> skipped_images({"a.jpg": "is not an image"})
    '1 unreadable image was skipped: a.jpg is not an image'
    """
    first = listed(f"{printable(path)} {why}" for path, why in broken.items())
    were = "images were" if len(broken) > 1 else "image was"
    return f"{len(broken)} unreadable {were} skipped: {first}"
