"""Data sets in folders of images.

Only file names are read at the start. Unreadable files are found when they are decoded.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from rdm_solo.data.decoding import DecodeOptions, open_image
from rdm_solo.data.images import DataError, Dataset, Files
from rdm_solo.ground.errors import join_first, printable
from rdm_solo.ground.values import check_bool

log = logging.getLogger("rdm_solo")

EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".webp",
    ".bmp",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and standard deviation
IMAGENET_CLASSES = 1000


class Paths:
    """Image files below a folder, as a map-style data set.

    Names are stored in one array of bytes, which worker processes share. A list of strings would be
    copied into each worker, because Python writes reference counts into it.
    """

    def __init__(self, root: Path, names: Sequence[bytes]) -> None:
        self.root = root
        self.names = np.array(names)

    def __getitem__(self, index: int) -> Image.Image:
        return open_image(self.path(index))

    def path(self, index: int) -> Path:
        """Return the path of image number ``index``."""
        return self.root / os.fsdecode(bytes(self.names[index]))


def folder(
    root: str | Path,
    train: str = "train",
    val: str | None = None,
    labels: bool | None = None,
    mean: Sequence[float] = IMAGENET[0],
    std: Sequence[float] = IMAGENET[1],
    **options: Any,
) -> Dataset:
    """Read images below ``root/train`` and ``root/val``, or below ``root`` itself.

    With labels each folder in the training folder is a class, as for torchvision's ``ImageFolder``,
    and the classes of both parts must be the same. Without labels every image below the training
    folder is read, and there is no validation.

    Args:
        root: the folder of the data set.
        train: the training folder below ``root``; without ``root/train``, ``root`` itself.
        val: the validation folder below ``root``; by default ``val``, if it exists.
        labels: ``None`` means True, unless images lie in the training folder itself.
        mean: mean of each channel, for values in [0, 1].
        std: standard deviation of each channel.
        **options: the options of `DecodeOptions`.
    """
    decoding = DecodeOptions(**options)
    if labels is not None:
        check_bool("dataset.labels", labels, alternative="null")
    top = _existing("root", root)
    train_root = top / train
    val_root = None
    if val or (top / "val").is_dir():
        val_root = top / (val or "val")
    if train == "train" and not train_root.is_dir() and val_root is None:
        train_root = top
    if labels is None:
        classes, images = _entries(_existing("train", train_root))
        labels = bool(classes) and not images
    if labels:
        return _labelled("folder", train_root, val_root, None, (mean, std), decoding)
    files = _files(train_root, ["."], decoding)
    log.info(f"{len(files)} unlabelled images below {train_root}, so no accuracies")
    return Dataset("folder", files, None, 1, mean, std, labelled=False)


def imagenet(root: str | Path, **options: Any) -> Dataset:
    """Read ImageNet's 1000 classes below ``root/train`` and ``root/val``."""
    top = _existing("root", root)
    train = _existing("root", top / "train")
    classes, _ = _entries(train)
    if len(classes) != IMAGENET_CLASSES:
        raise DataError(
            f"{train} has {len(classes)} class folders, but ImageNet has {IMAGENET_CLASSES}: "
            "unpack all of it, or use dataset=folder for other classes"
        )
    decoding = DecodeOptions(**options)
    return _labelled("imagenet", train, top / "val", classes, IMAGENET, decoding)


def imagenet100(root: str | Path, **options: Any) -> Dataset:
    """Read the classes of `imagenet100_classes` from ImageNet, or a copy with only these."""
    top = _existing("root", root)
    classes = imagenet100_classes()
    decoding = DecodeOptions(**options)
    return _labelled("imagenet100", top / "train", top / "val", classes, IMAGENET, decoding)


def imagenet100_classes() -> list[str]:
    """Return the WordNet ids of ImageNet-100 (Tian et al., Contrastive Multiview Coding), sorted.

    >>> len(imagenet100_classes()), imagenet100_classes()[0]
    (100, 'n01558993')
    """
    path = Path(__file__).with_name("imagenet100.txt")
    lines = path.read_text(encoding="ascii").splitlines()
    return sorted(line for line in lines if not line.startswith("#"))


def _existing(option: str, path: str | Path) -> Path:
    """Return the path of a folder, with ``~`` expanded."""
    path = Path(path).expanduser()
    if not path.is_dir():
        raise DataError(
            f"{path.absolute()} is not a folder: set dataset.{option} to a folder of images"
        )
    return path


def _labelled(
    name: str,
    train: Path,
    val: Path | None,
    classes: list[str] | None,
    moments: tuple[Sequence[float], Sequence[float]],
    decoding: DecodeOptions,
) -> Dataset:
    """Return a labelled data set; training and validation folders must have the same classes."""
    folders = {"train": _existing("train", train)}
    if val:
        folders["val"] = _existing("val", val)
    names = {part: set(_entries(path)[0]) for part, path in folders.items()}
    classes = classes or sorted(set.union(*names.values()))
    if not classes:
        raise DataError(f"{train} has no class folder: make one for each class")
    parts: dict[str, Files] = {}
    for part, path in folders.items():
        missing = sorted(set(classes) - names[part])
        if missing:
            raise DataError(
                f"{path} lacks {len(missing)} of {len(classes)} class folders "
                f"({join_first(missing)}): training and validation need one for each class"
            )
        parts[part] = _files(path, classes, decoding)
        log.info(f"{len(parts[part])} images of {len(classes)} classes below {path}")
    if "val" not in parts:
        log.info("no validation images, so no accuracies")
    return Dataset(name, parts["train"], parts.get("val"), len(classes), *moments)


def _files(root: Path, classes: Sequence[str], decoding: DecodeOptions) -> Files:
    names: list[bytes] = []
    counts = []
    for name in classes:
        images = _images(root / name, root)
        if not images:
            raise DataError(
                f"the folder {root / name} holds no images (they end in {' '.join(EXTENSIONS)}): "
                "fill it or remove it"
            )
        names += images
        counts.append(len(images))
    labels = torch.arange(len(classes)).repeat_interleave(torch.tensor(counts))
    return Files(Paths(root, names), labels, decoding)


def _images(top: Path, root: Path) -> list[bytes]:
    """Return the name of every image below ``top``, sorted by path, relative to ``root``.

    Links are followed, except to a folder that was visited before or that holds ``top``.
    """
    names: list[bytes] = []
    visited = {str(parent) for parent in top.resolve().parents}
    pending = [str(top)]
    while pending:
        current = pending.pop()
        resolved = os.path.realpath(current)
        if resolved in visited:
            continue
        visited.add(resolved)
        folders, images = _entries(current)
        relative = os.path.relpath(current, root)
        for name in images:
            path = os.path.join(relative, name)
            names.append(os.fsencode(path))
        for name in reversed(folders):
            pending.append(os.path.join(current, name))
    return names


def _entries(folder: str | Path) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders and of the images in a folder, without hidden ones.

    A broken link raises a DataError, because its target may be on a disk that is not mounted.
    """
    folders = []
    images = []
    try:
        for entry in os.scandir(folder):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif entry.name.lower().endswith(EXTENSIONS):
                images.append(entry.name)
            elif entry.is_symlink():
                os.stat(entry.path)
    except OSError as error:
        path = printable(error.filename or folder)
        raise DataError(f"{path} cannot be read ({error.strerror}): repair or remove it") from error
    return sorted(folders), sorted(images)
