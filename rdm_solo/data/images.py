"""Images in memory or in files, and data sets of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["DataError", "Dataset", "Files", "Images", "Reading", "check_switch"]


class DataError(ValueError):
    """A data set is not where the configuration says, or cannot be read."""


def check_switch(name: str, value: object, null: bool = False) -> None:
    """Refuse what is neither true nor false; Hydra hands over the words ``no`` and ``off``.

    >>> check_switch("download", "no")
    Traceback (most recent call last):
    ValueError: dataset.download='no' is not allowed: give true or false
    """
    if not isinstance(value, bool) and not (null and value is None):
        allowed = "true, false or null" if null else "true or false"
        raise ValueError(f"dataset.{name}={value!r} is not allowed: give {allowed}")


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
        for part, split in (("train", self.train), ("val", self.val)):
            if split is None:
                continue
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= self.num_classes:
                raise ValueError(
                    f"num_classes={self.num_classes} allows labels from 0 to "
                    f"{self.num_classes - 1}, got {low} to {high} in {self.name}'s {part} set"
                )


INTERPOLATIONS = ("bilinear", "bicubic")


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
        check_switch("skip_broken", self.skip_broken)
        _check_whole("image_size", self.size, 1)
        if self.resize is not None:
            _check_whole("resize", self.resize, self.size)
        if self.workers is not None:
            _check_whole("workers", self.workers, 0)
        if self.channels not in (1, 3):
            raise ValueError(f"dataset.channels={self.channels!r} is not allowed: give 3 or 1")
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(
                f"dataset.interpolation={self.interpolation!r} is not allowed: give "
                f"{' or '.join(INTERPOLATIONS)}"
            )

    @property
    def shorter_side(self) -> int:
        """Pixels of a clean image's shorter side before the crop."""
        return round(self.size * 8 / 7) if self.resize is None else self.resize


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"dataset.{name}={value!r} is not allowed: give a whole number of at least {least}"
        )


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
