"""Data sets that fit into memory: digits, CIFAR-10, CIFAR-100, generated images."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rdm_solo.data.draws import generator
from rdm_solo.data.images import DataError, Dataset, Images
from rdm_solo.ground.errors import first_line
from rdm_solo.ground.values import check_bool


def digits() -> Dataset:
    """Load scikit-learn's handwritten digits: 8 by 8 pixels, grey, 1437 to train, 360 to test.

    They come with scikit-learn, so nothing is downloaded.

    >>> data = digits()
    >>> len(data.train), len(data.val), tuple(data.train.images.shape[1:])
    (1437, 360, (1, 8, 8))
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped, unused-ignore]

    source = load_digits()
    values = np.rint(source.images * (255 / 16))  # shades are 0 to 16
    images = torch.from_numpy(values.astype(np.uint8))[:, None]
    labels = torch.from_numpy(source.target.astype(np.int64))
    train_rows, val_rows = train_test_split(range(len(labels)), test_size=360, random_state=0)
    train = Images(images[train_rows], labels[train_rows])
    val = Images(images[val_rows], labels[val_rows])
    return Dataset("digits", train, val, 10, *channel_moments(train.images))


def cifar10(root: str | Path, download: bool = False) -> Dataset:
    """Load CIFAR-10 from ``root``, the folder that contains ``cifar-10-batches-py``.

    With ``download``, fetch it into ``root`` if it is missing.
    """
    from torchvision.datasets import CIFAR10  # type: ignore[import-untyped, unused-ignore]

    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)
    train, val = _cifar(CIFAR10, root, download)
    return Dataset("cifar10", train, val, 10, mean, std)


def cifar100(root: str | Path, download: bool = False) -> Dataset:
    """Load CIFAR-100 like `cifar10`, from the folder that contains ``cifar-100-python``."""
    from torchvision.datasets import CIFAR100

    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    train, val = _cifar(CIFAR100, root, download)
    return Dataset("cifar100", train, val, 100, mean, std)


def _cifar(source: Any, root: str | Path, download: bool) -> tuple[Images, Images]:
    """Return the training and the test images; torchvision compares the files' checksums."""
    check_bool("dataset.download", download)
    root = Path(root).expanduser()
    parts = []
    for train in (True, False):
        try:
            part = source(str(root), train=train, download=download and train)
        except (OSError, RuntimeError, EOFError) as error:
            raise DataError(
                f"dataset.root={root} holds no intact {source.base_folder} ({first_line(error)}): "
                f"set dataset.download=true to fetch it from {source.url}, or point dataset.root "
                "at a folder that holds it"
            ) from error
        images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
        parts.append(Images(images, torch.tensor(part.targets, dtype=torch.int64)))
    return parts[0], parts[1]


def synthetic(
    num_train: int = 2048,
    num_val: int = 512,
    size: int = 32,
    channels: int = 3,
    num_classes: int = 10,
    seed: int = 0,
) -> Dataset:
    """Generate images: a smooth pattern for each class, and a variation and noise for each image.

    Use them to test a run of any size without a download. Accuracies on them mean nothing.

    >>> synthetic(num_train=8, num_val=4, size=16).train.images.shape
    torch.Size([8, 3, 16, 16])
    """

    def smooth(n: int, random: torch.Generator) -> Tensor:
        coarse = torch.randn(n, channels, 4, 4, generator=random)
        return F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)

    templates = smooth(num_classes, generator(seed, "templates"))
    parts = []
    for part, n in (("train", num_train), ("val", num_val)):
        random = generator(seed, part)
        labels = torch.randperm(n, generator=random) % num_classes
        images = torch.empty(n, channels, size, size, dtype=torch.uint8)
        for low in range(0, n, 512):  # in chunks: only the bytes of all images must fit into memory
            chunk = labels[low : low + 512]
            variation = smooth(len(chunk), random)
            x = 0.5 + 0.18 * templates[chunk] + 0.09 * variation
            x += 0.05 * torch.randn(x.shape, generator=random)
            images[low : low + 512] = x.clamp(0, 1).mul(255).round()
        parts.append(Images(images, labels))
    train, val = parts
    return Dataset("synthetic", train, val, num_classes, *channel_moments(train.images))


def channel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return each channel's mean and standard deviation, computed exactly from its histogram."""
    values = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for channel in images.unbind(1):
        counts = torch.bincount(channel.flatten(), minlength=256)
        share = counts.double() / channel.numel()
        m = (share * values).sum()
        variance = (share * (values - m) ** 2).sum()
        mean.append(float(m))
        std.append(float(variance.sqrt()))
    return tuple(mean), tuple(std)
