"""Images in memory or in files, and data sets of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rdm_solo.data.image_files import content_of
from rdm_solo.messages import UserError, check_choice, check_number, check_switch, check_whole

# Smallest and largest side of an image in pixels. Crops, rotations and blurs of fewer show nothing,
# and a batch of more fits into no memory.
SIDES = 4, 4096

# What to do about an image that cannot be read.
REMEDY = "repair or remove it, or set dataset.skip_broken=true to go on without such images"


class DataError(UserError):
    """A data set is not where the configuration says, or cannot be read."""


def path_of(name: str, value: object) -> Path:
    """The value of an option as a path, with ``~`` expanded."""
    if not isinstance(value, (str, Path)) or not str(value):
        raise UserError(f"dataset.{name} must be a path, got {value!r}.")
    return Path(value).expanduser()


@dataclass(frozen=True, eq=False)
class Images:
    """Images and their labels in memory.

    >>> len(Images(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64)))
    5
    """

    images: Tensor  #: bytes of shape ``(N, C, H, W)``
    labels: Tensor  #: ``int64`` class numbers of shape ``(N,)``

    def __post_init__(self) -> None:
        x, y = self.images, self.labels
        bytes_of_images = x.ndim == 4 and x.dtype == torch.uint8 and x.numel() > 0
        if not bytes_of_images or y.dtype != torch.int64 or y.shape != x.shape[:1]:
            raise UserError(
                "images must be uint8 of shape (N, C, H, W), at least one, and labels int64 of "
                f"shape (N,), got {x.dtype} of shape {tuple(x.shape)} and {y.dtype} of shape "
                f"{tuple(y.shape)}"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def channels(self) -> int:
        return self.images.shape[1]


@dataclass(frozen=True)
class Reading:
    """How files become pixels.

    ``workers=0`` decodes in the training process itself; ``None`` takes a worker for each CPU core
    that this process may call its own, at most 16.
    """

    image_size: int = 224  #: side of a clean image (validation, kNN) in pixels
    resize: int | None = None  #: its shorter side before the central crop; None: 8/7 of image_size
    channels: int = 3  #: 3 reads everything as RGB, 1 as grey
    interpolation: str = "bilinear"  #: or ``bicubic``, both antialiased
    workers: int | None = None  #: processes that decode for one training process
    skip_broken: bool = False  #: put the next readable image in the place of an unreadable one

    def __post_init__(self) -> None:
        check_switch("dataset.skip_broken", self.skip_broken)
        check_whole("dataset.image_size", self.image_size, *SIDES)
        if self.resize is not None:
            most = 2 * SIDES[1]
            check_whole("dataset.resize", self.resize, self.image_size, most, alternative="null")
        if self.workers is not None:
            check_whole("dataset.workers", self.workers, 0, 256, alternative="null")
        if self.channels not in (1, 3):
            raise UserError(f"dataset.channels must be 3 or 1, got {self.channels!r}.")
        check_choice("dataset.interpolation", self.interpolation, ("bilinear", "bicubic"))


@dataclass(frozen=True, eq=False)
class Files:
    """Image files and their labels; the counterpart of `Images` on disk.

    Names are one array of bytes, which worker processes share; a list of a million strings would
    be copied into each of them page by page.
    """

    root: Path  #: the folder that ``names`` are relative to
    names: np.ndarray[Any, np.dtype[np.bytes_]]  #: as ``os.fsencode`` gives them, ``(N,)``
    labels: Tensor  #: ``int64`` class numbers, ``(N,)``
    reading: Reading  #: how they become pixels

    def __len__(self) -> int:
        return len(self.names)

    @property
    def channels(self) -> int:
        return self.reading.channels

    def path(self, index: int) -> Path:
        """Where image number ``index`` lies."""
        return self.root / os.fsdecode(bytes(self.names[index]))

    def content(self, index: int) -> bytes:
        """The bytes of image number ``index``; Unreadable where there are none."""
        return content_of(self.path(index))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a validation set, in memory or as files."""

    name: str  #: what results are filed under
    train: Images | Files  #: images to pretrain on
    val: Images | Files | None  #: images to evaluate on, where there are any
    num_classes: int  #: labels run from 0 to ``num_classes - 1``
    mean: Sequence[float]  #: of each channel, with values between 0 and 1
    std: Sequence[float]  #: likewise
    labelled: bool = True  #: without, labels are 0 and mean nothing, and accuracies are left out

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not isinstance(values, (list, tuple)) or len(values) != self.train.channels:
                raise UserError(
                    f"dataset.{name} must be a list of {self.train.channels} numbers, one for each "
                    f"channel (dataset.channels), got {values!r}."
                )
            for value in values:
                check_number(f"dataset.{name}", value, above=0 if name == "std" else None)
        for part in (self.train, self.val or self.train):
            low, high = int(part.labels.min()), int(part.labels.max())
            if low < 0 or high >= self.num_classes:
                raise UserError(
                    f"num_classes={self.num_classes} allows labels from 0 to "
                    f"{self.num_classes - 1}, got {low} to {high} in {self.name}"
                )
