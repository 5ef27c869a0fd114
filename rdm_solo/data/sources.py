"""Data sets that fit into memory: digits, CIFAR-10, CIFAR-100, generated images."""

from collections.abc import Callable, Sequence
from pathlib import Path

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
    images = torch.from_numpy(source.images)[:, None]
    images = to_bytes(images / 16)  # shades are 0 to 16
    labels = torch.tensor(source.target, dtype=torch.int64)
    parts = []
    for rows in train_test_split(range(len(labels)), test_size=360, random_state=0):
        parts.append(Images(images[rows], labels[rows]))
    train, val = parts
    return Dataset("digits", train, val, 10, *channel_moments(train.images))


def cifar10(root: str | Path, download: bool = False) -> Dataset:
    """Load CIFAR-10 from ``root``, the folder that contains ``cifar-10-batches-py``.

    With ``download``, fetch it into ``root`` if it is missing.
    """
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)
    return _cifar("CIFAR10", root, download, mean, std)


def cifar100(root: str | Path, download: bool = False) -> Dataset:
    """Load CIFAR-100 like `cifar10`, from the folder that contains ``cifar-100-python``."""
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    return _cifar("CIFAR100", root, download, mean, std)


def _cifar(
    name: str,
    root: str | Path,
    download: bool,
    mean: Sequence[float],
    std: Sequence[float],
) -> Dataset:
    """Return torchvision's data set of that name; torchvision compares the files' checksums."""
    from torchvision import datasets  # type: ignore[import-untyped, unused-ignore]

    check_bool("dataset.download", download)
    source = getattr(datasets, name)
    folder = Path(root).expanduser()
    parts = []
    for is_train in (True, False):
        try:
            part = source(folder, train=is_train, download=download and is_train)
        except (OSError, RuntimeError, EOFError) as error:
            raise DataError(
                f"dataset.root={root} holds no intact {source.base_folder} ({first_line(error)}): "
                f"set dataset.download=true to fetch it from {source.url}, or point dataset.root "
                "at a folder that holds it"
            ) from error
        images = torch.from_numpy(part.data)
        images = images.permute(0, 3, 1, 2).contiguous()
        labels = torch.tensor(part.targets)
        parts.append(Images(images, labels))
    train, val = parts
    return Dataset(name.lower(), train, val, len(part.classes), mean, std)


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

    def draw(labels: Tensor, random: torch.Generator) -> Tensor:
        chunks = []
        for chunk in torch.split(labels, 512):  # only the bytes of all images must fit into memory
            variation = smooth(len(chunk), random)
            x = 0.5 + 0.18 * templates[chunk] + 0.09 * variation
            x += 0.05 * torch.randn(x.shape, generator=random)
            chunks.append(to_bytes(x))
        return torch.cat(chunks)

    return generated("synthetic", draw, num_train, num_val, num_classes, seed)


def generated(
    name: str,
    draw: Callable[[Tensor, torch.Generator], Tensor],
    num_train: int,
    num_val: int,
    num_classes: int,
    *key: int | str,
) -> Dataset:
    """Return a data set of images ``draw(labels, random)``; ``key`` is the seed of both parts."""
    parts = []
    for part, n in (("train", num_train), ("val", num_val)):
        random = generator(*key, part)
        labels = torch.randperm(n, generator=random) % num_classes
        images = draw(labels, random)
        parts.append(Images(images, labels))
    train, val = parts
    return Dataset(name, train, val, num_classes, *channel_moments(train.images))


def to_bytes(x: Tensor) -> Tensor:
    """Round values in [0, 1] to bytes, and clip the others."""
    levels = 255 * x.clamp(0, 1)
    return levels.round().to(torch.uint8)


def channel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return each channel's mean and standard deviation, computed exactly from its histogram."""
    values = torch.arange(256, dtype=torch.float64) / 255
    counts = []
    for channel in images.unbind(1):
        levels = channel.flatten()
        counts.append(torch.bincount(levels, minlength=256))
    shares = torch.stack(counts).double() / images[:, 0].numel()
    means = (shares * values).sum(1)
    deviations = values - means[:, None]
    variances = (shares * deviations**2).sum(1)
    return tuple(means.tolist()), tuple(variances.sqrt().tolist())
