"""Images in memory or on disk, and data sets of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_number

if TYPE_CHECKING:
    from rdm_solo.data.decoding import DecodeOptions

# Smallest and largest side of an image in pixels. Smaller crops show nothing, and a batch of
# larger images does not fit into memory.
SIDES = 4, 4096


class DataError(UserError):
    """Raised if a data set is missing at the configured path or cannot be read."""


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
        valid_images = x.ndim == 4 and x.dtype == torch.uint8 and x.numel() > 0
        valid_labels = y.dtype == torch.int64 and y.shape == x.shape[:1]
        if not valid_images or not valid_labels:
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


@dataclass(frozen=True, eq=False)
class Files:
    """Images that are decoded only when a batch needs them, and their labels.

    ``source`` is any map-style data set of torch. Its sample ``i`` is a PIL image, or a tuple that
    starts with one.

    >>> from PIL import Image
    >>> from rdm_solo.data import DecodeOptions
    >>> photos = [(Image.new("RGB", (60, 40)), "anything") for _ in range(5)]
    >>> Files(photos, torch.zeros(5, dtype=torch.int64), DecodeOptions()).open(3).size
    (60, 40)
    """

    source: Any  #: a map-style data set
    labels: Tensor  #: ``int64`` class numbers, ``(N,)``
    decoding: "DecodeOptions"  #: how images become pixels

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        return self.decoding.channels

    def name(self, index: int) -> str:
        """Return an image's name for messages: its path, or its index if it has no path."""
        path = getattr(self.source, "path", None)
        if callable(path):
            return str(path(index))
        return f"image {index}"

    def open(self, index: int) -> Any:
        """Return image number ``index`` as a PIL image."""
        sample = self.source[index]
        if isinstance(sample, (tuple, list)):
            return sample[0]
        return sample


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a validation set, in memory or on disk."""

    name: str  #: name used in results
    train: Images | Files  #: images to pretrain on
    val: Images | Files | None  #: images to evaluate on, or None
    num_classes: int  #: labels run from 0 to ``num_classes - 1``
    mean: Sequence[float]  #: mean of each channel, for values in [0, 1]
    std: Sequence[float]  #: standard deviation of each channel
    labelled: bool = True  #: False: labels are all 0 and no accuracy is computed

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not isinstance(values, (list, tuple)) or len(values) != self.train.channels:
                raise UserError(
                    f"dataset.{name} must be a list of {self.train.channels} numbers, one for each "
                    f"channel (dataset.channels), got {values!r}."
                )
            for value in values:
                check_number(f"dataset.{name}", value, above=0 if name == "std" else float("-inf"))
        for part in (self.train, self.val or self.train):
            low = int(part.labels.min())
            high = int(part.labels.max())
            if low < 0 or high >= self.num_classes:
                raise UserError(
                    f"num_classes={self.num_classes} allows labels from 0 to "
                    f"{self.num_classes - 1}, got {low} to {high} in {self.name}"
                )
