"""Images in memory or in files, and data sets of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rdm_solo.messages import check_choice, check_number, check_switch, check_whole

__all__ = [
    "DataError",
    "Dataset",
    "Files",
    "Images",
    "Reading",
    "check_moments",
    "check_side",
    "path_of",
]


class DataError(ValueError):
    """A data set is not where the configuration says, or cannot be read."""


# Sides of an image in pixels. Crops, rotations and blurs of fewer show nothing, and a batch of more
# fits into no memory.
SMALLEST, LARGEST = 4, 4096


def check_side(name: str, value: object) -> None:
    """Refuse a side of an image or view that is too small to be cropped, or far too large.

    >>> check_side("dataset.image_size", 1)
    Traceback (most recent call last):
    ValueError: dataset.image_size must be a whole number from 4 to 4096, got 1.
    """
    check_whole(name, value, SMALLEST, LARGEST)


def check_moments(
    mean: Sequence[float], std: Sequence[float], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation as tuples of a number for each channel.

    >>> check_moments([0.5], [0.0], 1)
    Traceback (most recent call last):
    ValueError: dataset.std must be a number above 0, got 0.0.
    """
    for name, values in (("mean", mean), ("std", std)):
        if not isinstance(values, (list, tuple)) or len(values) != channels:
            raise ValueError(
                f"dataset.{name} must be a list of {channels} numbers, one for each channel "
                f"(dataset.channels), got {values!r}."
            )
        for value in values:
            check_number(f"dataset.{name}", value, above=0 if name == "std" else None)
    return tuple(mean), tuple(std)


def path_of(name: str, value: object) -> Path:
    """The value of an option as a path, with ``~`` expanded."""
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError(f"dataset.{name} must be a path, got {value!r}.")
    return Path(value).expanduser()


@dataclass(frozen=True, eq=False)
class Images:
    """Images and their labels in memory.

    >>> len(Images(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64)))
    5

    Args:
        images: bytes of shape ``(N, C, H, W)``.
        labels: ``int64`` class numbers of shape ``(N,)``.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            raise ValueError(
                "images must be uint8 of shape (N, C, H, W), got "
                f"{self.images.dtype} of shape {tuple(self.images.shape)}"
            )
        if self.labels.ndim != 1 or self.labels.dtype != torch.int64:
            raise ValueError(
                "labels must be int64 of shape (N,), got "
                f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )
        if len(self.images) != len(self.labels):
            raise ValueError(
                f"a data set needs one label for each image, got {len(self.images)} images and "
                f"{len(self.labels)} labels"
            )
        if self.images.numel() == 0:
            raise ValueError(
                f"a data set needs at least one image, got shape {tuple(self.images.shape)}"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def channels(self) -> int:
        return self.images.shape[1]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a validation set, in memory or as files.

    Args:
        name: what results are filed under.
        train: images to pretrain on.
        val: images to evaluate on; ``None`` where there are none.
        num_classes: labels run from 0 to ``num_classes - 1``.
        mean: of each channel, with values between 0 and 1.
        std: likewise.
        labelled: whether labels mean anything; without, they are 0, and accuracies are left out.
    """

    name: str
    train: Images | Files
    val: Images | Files | None
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    labelled: bool = True

    def __post_init__(self) -> None:
        check_moments(self.mean, self.std, self.train.channels)
        for part, split in (("train", self.train), ("val", self.val)):
            if split is None:
                continue
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= self.num_classes:
                raise ValueError(
                    f"num_classes={self.num_classes} allows labels from 0 to "
                    f"{self.num_classes - 1}, got {low} to {high} in {self.name}'s {part} set"
                )


@dataclass(frozen=True)
class Reading:
    """How files become pixels.

    Args:
        size: side of a clean image (validation, kNN) in pixels.
        resize: its shorter side before the central crop; by default 8/7 of ``size``.
        channels: 3 reads everything as RGB, 1 as grey.
        interpolation: ``bilinear`` or ``bicubic``, both antialiased.
        workers: processes that decode for one training process; 0 decodes in the process itself,
            ``None`` takes one for each CPU core that this process may call its own, at most 16.
        skip_broken: put the next readable image in the place of one that cannot be read.
    """

    size: int = 224
    resize: int | None = None
    channels: int = 3
    interpolation: str = "bilinear"
    workers: int | None = None
    skip_broken: bool = False

    def __post_init__(self) -> None:
        check_switch("dataset.skip_broken", self.skip_broken)
        check_side("dataset.image_size", self.size)
        if self.resize is not None:
            check_whole("dataset.resize", self.resize, self.size, 2 * LARGEST, alternative="null")
        if self.workers is not None:
            check_whole("dataset.workers", self.workers, 0, 1024, alternative="null")
        if self.channels not in (1, 3):
            raise ValueError(f"dataset.channels must be 3 or 1, got {self.channels!r}.")
        check_choice("dataset.interpolation", self.interpolation, ("bilinear", "bicubic"))

    @property
    def shorter_side(self) -> int:
        """Pixels of a clean image's shorter side before the crop."""
        return round(self.size * 8 / 7) if self.resize is None else self.resize


@dataclass(frozen=True, eq=False)
class Files:
    """Image files and their labels; the counterpart of :class:`rdm_solo.data.Images` on disk.

    Names are one array of bytes, which worker processes share; a list of a million strings would
    be copied into each of them page by page.

    Args:
        root: the folder that ``names`` are relative to.
        names: paths as ``os.fsencode`` gives them, shape ``(N,)``.
        labels: ``int64`` class numbers, ``(N,)``.
        reading: how they become pixels.
    """

    root: Path
    names: np.ndarray[Any, np.dtype[np.bytes_]]
    labels: Tensor
    reading: Reading

    def __len__(self) -> int:
        return len(self.names)

    @property
    def channels(self) -> int:
        return self.reading.channels

    def path(self, index: int) -> Path:
        """Where image number ``index`` lies."""
        return self.root / os.fsdecode(bytes(self.names[index]))
