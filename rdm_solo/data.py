"""Data sets as tensors, and the loader that makes their views on the device.

A source (:func:`digits`, :func:`cifar10`, :func:`cifar100`, :func:`synthetic`) returns a
:class:`Dataset` of two :class:`Images`; an :class:`EpochLoader` iterates over one of them. There
are no workers: images are moved to the device once, as bytes, and augmented there in batches.
Data sets that do not fit into memory are files: see `rdm_solo.folders` and `rdm_solo.decoding`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rdm_solo.augment import Views, generator

if TYPE_CHECKING:
    from rdm_solo.folders import Files

__all__ = [
    "DataError",
    "Dataset",
    "EpochLoader",
    "Images",
    "check_switch",
    "cifar10",
    "cifar100",
    "digits",
    "synthetic",
]


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


def digits() -> Dataset:
    """scikit-learn's 1797 handwritten digits, 8 by 8 pixels and grey: 1437 to train, 360 to test.

    They come with scikit-learn, so nothing is downloaded.

    >>> data = digits()
    >>> len(data.train), len(data.val), tuple(data.train.images.shape[1:])
    (1437, 360, (1, 8, 8))
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped, unused-ignore]

    source = load_digits()
    values = np.rint(source.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = source.target.astype(np.int64)
    x_train, x_val, y_train, y_val = train_test_split(values, labels, test_size=360, random_state=0)
    train = Images(torch.from_numpy(x_train), torch.from_numpy(y_train))
    val = Images(torch.from_numpy(x_val), torch.from_numpy(y_val))
    return Dataset("digits", train, val, 10, *_moments(train.images))


def cifar10(root: str | Path, download: bool = False) -> Dataset:
    """CIFAR-10 from the folder ``root`` that holds ``cifar-10-batches-py``.

    With ``download`` it is fetched into ``root`` first, unless it is there already.
    """
    return _cifar("cifar10", root, download, 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def cifar100(root: str | Path, download: bool = False) -> Dataset:
    """CIFAR-100 from the folder ``root`` that holds ``cifar-100-python``.

    With ``download`` it is fetched into ``root`` first, unless it is there already.
    """
    return _cifar(
        "cifar100", root, download, 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    )


def _cifar(
    name: str,
    root: str | Path,
    download: bool,
    num_classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Dataset:
    check_switch("download", download)
    from torchvision.datasets import CIFAR10, CIFAR100  # type: ignore[import-untyped, unused-ignore]
    from torchvision.datasets.utils import check_integrity  # type: ignore[import-untyped, unused-ignore]

    source = CIFAR10 if name == "cifar10" else CIFAR100
    root = Path(root).expanduser()
    folder = root / source.base_folder
    checksums = [*source.train_list, *source.test_list]
    checksums.append([source.meta["filename"], source.meta["md5"]])
    if download and not all(check_integrity(folder / file, md5) for file, md5 in checksums):
        try:
            source(str(root), download=True)
        except (OSError, RuntimeError, EOFError) as error:
            reason = str(error).rstrip(".")
            raise DataError(
                f"dataset.download=true failed to fetch {source.url} into dataset.root={root} "
                f"({type(error).__name__}: {reason}): fetch it elsewhere, or point dataset.root "
                f"at a folder that holds {source.base_folder}"
            ) from error
    if not folder.is_dir():
        raise DataError(
            f"dataset.root={root} holds no {source.base_folder} (looked at {folder.absolute()}): "
            "set dataset.download=true, or point dataset.root at the folder that holds "
            f"{source.base_folder}"
        )
    for file, md5 in checksums:
        if not check_integrity(folder / file, md5):
            state = "does not match its checksum" if (folder / file).exists() else "is missing"
            raise DataError(
                f"{folder / file} {state}: set dataset.download=true to fetch {name} again, or "
                "point dataset.root at an intact copy"
            )
    parts = []
    for train in (True, False):
        part = source(str(root), train=train)
        # torchvision hands out height, width, channel.
        images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
        parts.append(Images(images, torch.tensor(part.targets, dtype=torch.int64)))
    return Dataset(name, parts[0], parts[1], num_classes, mean, std)


def synthetic(
    num_train: int = 2048,
    num_val: int = 512,
    size: int = 32,
    channels: int = 3,
    num_classes: int = 10,
    seed: int = 0,
) -> Dataset:
    """Generated images: a smooth pattern for each class, and for each image a variation and noise.

    A rehearsal of any shape without a download; accuracies on it mean nothing.

    >>> synthetic(num_train=8, num_val=4, size=16).train.images.shape
    torch.Size([8, 3, 16, 16])
    """
    options = {
        "num_train": num_train,
        "num_val": num_val,
        "size (dataset.image_size)": size,
        "channels": channels,
        "num_classes": num_classes,
    }
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"the synthetic data set's {name} must be a whole number of at least 1, "
                f"got {value!r}"
            )

    def smooth(n: int, draw: torch.Generator) -> Tensor:
        coarse = torch.randn(n, channels, 4, 4, generator=draw)
        return F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)

    templates = smooth(num_classes, generator(seed, "templates"))
    parts = []
    for part, n in (("train", num_train), ("val", num_val)):
        draw = generator(seed, part)
        labels = (torch.arange(n) % num_classes)[torch.randperm(n, generator=draw)]
        images = torch.empty(n, channels, size, size, dtype=torch.uint8)
        for low in range(0, n, 512):  # floats of a piece at a time: the bytes alone have to fit
            chosen = labels[low : low + 512]
            x = 0.5 + 0.18 * templates[chosen] + 0.09 * smooth(len(chosen), draw)
            x += 0.05 * torch.randn(x.shape, generator=draw)
            images[low : low + 512] = x.clamp_(0, 1).mul_(255).round_().to(torch.uint8)
        parts.append(Images(images, labels))
    train, val = parts
    return Dataset("synthetic", train, val, num_classes, *_moments(train.images))


def _moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, exact from the histogram of its bytes."""
    values = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for channel in images.unbind(1):
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        m = (share * values).sum()
        mean.append(float(m))
        std.append(float((share * (values - m) ** 2).sum().sqrt()))
    return tuple(mean), tuple(std)


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
        tables = self.views.tables(len(order), self.seed, self.epoch) if self.views else []
        source = self._on_device()
        scale = 255 * self._per_channel(self.std)
        shift = self._per_channel(self.mean) / self._per_channel(self.std)
        for piece in self._slices():
            rows = order[piece]
            index = rows.to(self.device, non_blocking=True)
            x = source.images.index_select(0, index).float()
            labels = source.labels.index_select(0, index)
            if self.views is None:
                yield self._expand(x.div_(scale).sub_(shift)), labels
                continue
            x.div_(255)
            crops = [
                self._expand(self.views.view(x, v, table[rows]).mul_(255 / scale).sub_(shift))
                for v, table in enumerate(tables)
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
        rank, world = self._process or _process()
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


def _process() -> tuple[int, int]:
    """Rank and number of processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
