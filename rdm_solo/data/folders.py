"""Data sets in folders of images.

Only file names are read at the start. Unreadable files are found when they are decoded.
"""

import logging
import os
import re
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

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and standard deviation
IMAGENET_CLASSES = 1000


class Paths:
    """Image files below a folder, as a map-style data set.

    Names are stored in one array of bytes, which worker processes share. A list of strings would be
    copied into each worker, because Python writes reference counts into it.
    """

    def __init__(self, root: Path, names: Sequence[bytes]) -> None:
        self.root, self.names = root, np.array(names)

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
    train_root, val_root = top / train, top / (val or "val")
    if train == "train" and not train_root.is_dir() and not val_root.is_dir():
        train_root = top
    _existing("train", train_root)
    if val is not None:
        _existing("val", val_root)
    if labels is None:
        classes, images = _entries(train_root)
        labels = bool(classes) and not images
    if labels:
        val_folder = val_root if val_root.is_dir() else None
        return _labelled("folder", train_root, val_folder, None, (mean, std), decoding)
    files = _files(train_root, ["."], decoding)
    log.info(f"{len(files)} unlabelled images below {train_root}, so no accuracies")
    return Dataset("folder", files, None, 1, mean, std, labelled=False)


def imagenet(root: str | Path, **options: Any) -> Dataset:
    """Read ImageNet's 1000 classes below ``root/train`` and ``root/val``."""
    return _imagenet("imagenet", root, None, options)


def imagenet100(root: str | Path, **options: Any) -> Dataset:
    """Read the classes of `imagenet100_classes` from ImageNet, or a copy with only these."""
    return _imagenet("imagenet100", root, imagenet100_classes(), options)


def imagenet100_classes() -> list[str]:
    """Return the WordNet ids of ImageNet-100 (Tian et al., Contrastive Multiview Coding), sorted.

    >>> len(imagenet100_classes()), imagenet100_classes()[0]
    (100, 'n01558993')
    """
    text = (Path(__file__).parent / "imagenet100.txt").read_text(encoding="ascii")
    return sorted(line for line in text.split("\n") if line and not line.startswith("#"))


def _imagenet(
    name: str, root: str | Path, classes: list[str] | None, options: dict[str, Any]
) -> Dataset:
    top = _existing("root", root)
    train, val = (_existing("root", top / part) for part in ("train", "val"))
    if classes is None:
        classes = [name for name in _entries(train)[0] if re.fullmatch(r"n\d{8}", name)]
        if len(classes) != IMAGENET_CLASSES:
            raise DataError(
                f"{train} has {len(classes)} class folders (nXXXXXXXX), but ImageNet has 1000: "
                "unpack all of it, or use dataset=folder for other classes"
            )
    return _labelled(name, train, val, classes, IMAGENET, DecodeOptions(**options))


def _existing(option: str, path: str | Path) -> Path:
    """Return the path of a folder, with ``~`` expanded."""
    path = Path(path).expanduser()
    if not path.is_dir():
        state = "is a file, not a folder" if path.exists() else "does not exist"
        raise DataError(f"{path.absolute()} {state}: set dataset.{option} to a folder of images")
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
    folders = {part: _entries(part)[0] for part in (train, val) if part}
    classes = classes or sorted(set().union(*folders.values()))
    parts = []
    for part, names in folders.items():
        missing = sorted(set(classes) - set(names))
        if missing or not classes:
            lacks = f"lacks {len(missing)} of {len(classes)} class folders ({join_first(missing)})"
            raise DataError(
                f"{part} {lacks if missing else 'has no class folder'}: training and validation "
                "need one for each class"
            )
        parts.append(_files(part, classes, decoding))
    rest = (
        f"{len(parts[1])} for validation below {val}"
        if val
        else "without a folder val there are no accuracies"
    )
    log.info(f"{len(parts[0])} training images of {len(classes)} classes below {train}; {rest}")
    return Dataset(name, parts[0], parts[1] if val else None, len(classes), *moments)


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
        folders, images = _entries(current, hidden=True)
        relative = os.path.relpath(current, root)
        names += [os.fsencode(os.path.join(relative, name)) for name in images]
        pending += [os.path.join(current, name) for name in reversed(folders)]
    return names


def _entries(folder: str | Path, hidden: bool = False) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders and of the images in a folder.

    A broken link raises a DataError, because its target may be on a disk that is not mounted.
    """
    folders, images = [], []
    try:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            visible = not entry.name.startswith(".")
            if entry.is_dir():
                folders += [entry.name] if visible or hidden else []
            elif visible and entry.name.lower().endswith(EXTENSIONS):
                images.append(entry.name)
            elif visible and entry.is_symlink():
                os.stat(entry.path)
    except OSError as error:
        path = printable(error.filename or folder)
        raise DataError(f"{path} cannot be read ({error.strerror}): repair or remove it") from error
    return folders, images
