"""Load batches of image files, which worker processes decode and crop.

A worker decodes an image once and crops all its views from it, with antialiasing and as bytes.
Flip, jitter, grey, blur and solarisation run on the training device.
"""

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as MapDataset

from rdm_solo.data.decoding import cut_views, evaluation_image, explain
from rdm_solo.data.images import DataError, Files
from rdm_solo.data.loaders import Loader
from rdm_solo.data.views import Views
from rdm_solo.ground import distributed
from rdm_solo.ground.errors import join_first, printable

log = logging.getLogger("rdm_solo")

# Maximum number of consecutive images to try until one is readable.
MAX_TRIES = 100

# A worker sends its tensors through a socket with a name like this in the temporary folder. On
# Linux, the training process hangs if the socket's whole path has more than 107 bytes.
MAX_TMPDIR_BYTES = 107 - len("/pymp-12345678/listener-12345678")

# An epoch and the image indices of one batch.
Task = tuple[int, list[int]]


class DecodedBatch(NamedTuple):
    """A decoded batch."""

    samples: Tensor  #: indices of the images
    crops: list[Tensor]  #: one stack of views per pipeline; without views, one of clean images
    uniforms: Tensor  #: each view's uniform random numbers
    broken: dict[str, str]  #: the reason for each unreadable image, by name


@dataclass
class Decoder(MapDataset[DecodedBatch]):
    """A map-style data set for the workers; its item for a task is the decoded batch.

    Errors of unreadable images are returned instead of raised, because a DataLoader would add the
    worker's traceback to the message.
    """

    files: Files
    views: Views | None
    seed: int

    def __getitem__(self, task: Task) -> DecodedBatch:
        epoch, samples = task
        uniforms = torch.empty(0, len(samples), 0)
        tries = 1
        if self.views:
            uniforms = self.views.uniforms(samples, self.seed, epoch)
            if self.files.decoding.skip_broken:
                tries = MAX_TRIES
        slots = []
        numbers = []
        images = []
        broken: dict[str, str] = {}
        for slot, first in enumerate(samples):
            for candidate in range(first, first + tries):
                number = candidate % len(self.files)
                try:
                    crops = self._cut(number, uniforms[:, slot])
                # Decoders raise OSError, SyntaxError, struct.error and others.
                except Exception as error:
                    broken[self.files.name(number)] = explain(error)
                    continue
                slots.append(slot)
                numbers.append(number)
                images.append(crops)
                break
        crops = [torch.stack(stack, dim=1) for stack in zip(*images)]
        indices = torch.tensor(numbers, dtype=torch.int64)
        return DecodedBatch(indices, crops, uniforms[:, slots], broken)

    def _cut(self, number: int, u: Tensor) -> list[Tensor]:
        """Return each pipeline's crops of image ``number``, or the image for evaluation."""
        image = self.files.open(number)
        if self.views is None:
            whole = evaluation_image(image, self.files.decoding)
            return [whole[None]]
        boxes = self.views.boxes(u, image.height, image.width)
        sizes: list[int] = []
        for pipeline in self.views.pipelines:
            sizes += [pipeline.size] * pipeline.num_crops
        crops = iter(cut_views(image, boxes, sizes, self.files.decoding))
        return [torch.stack(list(islice(crops, count))) for count in self.views.counts]


class FileLoader(Loader):
    """A `Loader` of image files.

    Validation images are resized and centre-cropped, see `DecodeOptions`.

    An unreadable image raises a DataError that names it. With ``skip_broken`` the next readable
    image replaces it in training. The replacement has its own index and label and uses the
    random numbers of the image that it replaces, so all other images keep their views. In
    evaluation, unreadable images are left out. `skipped` lists all of them.
    """

    images: Files

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reported = 0
        self._tasks: list[Task] = []  # the DataLoader's sampler, refilled in each epoch

    def report_skipped(self) -> None:
        if len(self.skipped) > self._reported:
            self._reported = len(self.skipped)
            log.warning(f"warning: {skipped_images(self.skipped)}")

    def _load_batches(self, batches: list[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        self._tasks[:] = [(self.epoch, samples.tolist()) for samples in batches]
        has_images = False
        for decoded, samples in zip(self._data_loader, batches):
            self.skipped |= decoded.broken
            incomplete = len(decoded.samples) < len(samples)
            if incomplete and (self.views or not self.images.decoding.skip_broken):
                raise self._error(decoded.broken)
            if not decoded.crops:
                continue
            has_images = True
            stacks = [crops.to(self.device, non_blocking=True) for crops in decoded.crops]
            if self.views is None:
                stacks = [x.float().div_(255) for x in stacks]
            else:
                stacks = self.views.finish(stacks, decoded.uniforms)
            yield [decoded.samples], stacks
        if not has_images:
            raise self._error(self.skipped)

    def _error(self, broken: dict[str, str]) -> DataError:
        """Return the error that names the first unreadable image."""
        name, why = next(iter(broken.items()))
        hint = "repair or remove it, or set dataset.skip_broken=true to skip such images"
        if self.images.decoding.skip_broken:
            hint = f"{len(broken)} unreadable images are too many for dataset.skip_broken=true"
        return DataError(f"{printable(name)} {why}: {hint}")

    @cached_property
    def _data_loader(self) -> DataLoader[DecodedBatch]:
        """Return the DataLoader of the tasks; in training, its workers persist across epochs."""
        workers = self._number_of_workers()
        tmpdir = tempfile.gettempdir()
        if workers and len(os.fsencode(tmpdir)) > MAX_TMPDIR_BYTES:
            raise DataError(
                f"worker processes need a TMPDIR of at most {MAX_TMPDIR_BYTES} bytes, got "
                f"{tmpdir}: set TMPDIR to a shorter path, or set dataset.workers=0"
            )
        return DataLoader(
            Decoder(self.images, self.views, self.seed),
            batch_size=None,
            sampler=self._tasks,
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
            persistent_workers=workers > 0 and self.views is not None,
            # By default DataLoader draws from the global generator, which would change the run.
            generator=torch.Generator(),
        )

    def _number_of_workers(self) -> int:
        if self.images.decoding.workers is not None:
            return self.images.decoding.workers
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        else:
            cores = os.cpu_count() or 1
        processes = distributed.world_size()
        if torch.cuda.is_available():  # some processes may be on other machines
            processes = min(processes, torch.cuda.device_count())
        return max(1, min(16, cores // processes))


def skipped_images(broken: Mapping[str, str]) -> str:
    """Return how many images were skipped, and the first three with their reasons.

    >>> skipped_images({"a.jpg": "is not an image"})
    '1 unreadable image was skipped: a.jpg is not an image'
    """
    first = join_first(f"{printable(path)} {why}" for path, why in broken.items())
    were = "images were" if len(broken) > 1 else "image was"
    return f"{len(broken)} unreadable {were} skipped: {first}"
