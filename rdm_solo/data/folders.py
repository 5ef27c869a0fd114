"""Data sets that are folders of images, found and checked here.

:func:`folder` takes any tree of one folder per class, or images without labels; :func:`imagenet`
and :func:`imagenet100` ImageNet in its usual layout, ``train/n01440764/*.JPEG`` and
``val/n01440764/*.JPEG``. Only names are read at the start: what a file holds is noticed when it is
decoded.
"""

from __future__ import annotations

import logging
import os
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rdm_solo.data.images import DataError, Dataset, Files, Reading, check_moments, path_of
from rdm_solo.messages import check_switch

__all__ = ["folder", "imagenet", "imagenet100", "imagenet100_classes"]

log = logging.getLogger("rdm_solo")


IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and standard deviation

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")


def folder(
    root: str | Path,
    train: str = "train",
    val: str | None = None,
    labels: bool | None = None,
    mean: Sequence[float] = IMAGENET[0],
    std: Sequence[float] = IMAGENET[1],
    **reading: Any,
) -> Dataset:
    """Images below ``root/train`` and ``root/val``, or below ``root`` itself.

    With labels each folder in the training folder is a class, as for torchvision's ``ImageFolder``,
    and the classes of both parts must be the same. Without, every image below it is taken, however
    deep it lies, and nothing is validated.

    Args:
        root: the folder of the data set.
        train: the training folder in it; where ``root`` has no ``train``, ``root`` itself.
        val: the validation folder in it; by default ``val`` where there is one.
        labels: ``None`` finds out: images that lie in the training folder itself have none.
        mean: of each channel, in [0, 1] units.
        std: likewise.
        **reading: see :class:`Reading` (``image_size`` is its ``size``).
    """
    how = _reading(reading)
    if labels is not None:
        check_switch("dataset.labels", labels, alternative="null")
    moments = check_moments(mean, std, how.channels)
    root = _existing(root)
    train_root = root / path_of("train", train)
    val_root = root / ("val" if val is None else path_of("val", val))
    if not train_root.is_dir():
        if train != "train" or val_root.is_dir():
            raise _missing(train_root, "train", root)
        train_root = root
    if val is not None and not val_root.is_dir():
        raise _missing(val_root, "val", root)
    if labels is None:
        labels = _has_classes(train_root)
    if not labels:
        files = _unlabelled(train_root, how)
        log.info(
            f"{len(files)} images below {train_root} without labels: no validation, no accuracies"
        )
        return Dataset("folder", files, None, 1, *moments, labelled=False)
    if val_root.is_dir():
        return _labelled("folder", train_root, val_root, None, moments, how)
    log.info(f"{root} has no folder {val_root.name!r}: no validation, no accuracies")
    return _labelled("folder", train_root, None, None, moments, how)


def imagenet(root: str | Path, **reading: Any) -> Dataset:
    """ImageNet's 1000 classes below ``root/train`` and ``root/val``."""
    return _imagenet("imagenet", root, None, reading)


def imagenet100(root: str | Path, **reading: Any) -> Dataset:
    """The classes of :func:`imagenet100_classes`, from ImageNet or from a copy of just those."""
    return _imagenet("imagenet100", root, imagenet100_classes(), reading)


def imagenet100_classes() -> list[str]:
    """The WordNet ids of ImageNet-100 (Tian et al., Contrastive Multiview Coding), sorted.

    >>> len(imagenet100_classes()), imagenet100_classes()[0]
    (100, 'n01558993')
    """
    text = (Path(__file__).parent / "imagenet100.txt").read_text(encoding="ascii")
    return sorted(line for line in text.split("\n") if line and not line.startswith("#"))


def _imagenet(
    name: str, root: str | Path, classes: list[str] | None, reading: dict[str, Any]
) -> Dataset:
    how = _reading(reading)
    root = _existing(root)
    for part in ("train", "val"):
        if not (root / part).is_dir():
            raise DataError(
                f"dataset.root={root} holds no folder {part!r} ({root / part}): {name} is read "
                "from train/nXXXXXXXX/*.JPEG and val/nXXXXXXXX/*.JPEG"
            )
    if classes is None:
        found = [c for c in _folders(root / "train") if re.fullmatch(r"n\d{8}", c)]
        if len(found) != 1000:
            raise DataError(
                f"{root / 'train'} holds {len(found)} class folders nXXXXXXXX, ImageNet has 1000: "
                "unpack all of it, or use dataset=folder for other sets of classes"
            )
        classes = found
    return _labelled(name, root / "train", root / "val", classes, IMAGENET, how)


def _reading(options: dict[str, Any]) -> Reading:
    options = dict(options)
    if "image_size" in options:
        options["size"] = options.pop("image_size")
    return Reading(**options)


def _existing(root: str | Path) -> Path:
    root = path_of("root", root)
    if root.is_dir():
        return root
    if not root.exists():
        raise DataError(
            f"dataset.root={root} does not exist (looked at {root.absolute()}): give the folder "
            "that holds the images"
        )
    try:
        archive = tarfile.is_tarfile(root) or zipfile.is_zipfile(root)
    except OSError as error:
        raise DataError(f"dataset.root={root} cannot be read: {error}") from error
    kind = "is an archive" if archive else "is a file (neither a folder nor an intact tar or zip)"
    raise DataError(f"dataset.root={root} {kind}: unpack the images and give their folder")


def _missing(path: Path, option: str, root: Path) -> DataError:
    there = ", ".join(_folders(root)[:5]) or "no folders"
    return DataError(
        f"{path} does not exist: dataset.root={root} holds {there}; set dataset.{option} to the "
        "folder's name"
    )


def _labelled(
    name: str,
    train: Path,
    val: Path | None,
    classes: list[str] | None,
    moments: tuple[tuple[float, ...], tuple[float, ...]],
    reading: Reading,
) -> Dataset:
    parts = [train] if val is None else [train, val]
    found = [_folders(part) for part in parts]
    for part, names in zip(parts, found):
        absent = sorted(set(classes or names) - set(names))
        if absent:
            raise DataError(
                f"{part} lacks {len(absent)} of {name}'s {len(classes or [])} class folders "
                f"({_first(absent)}){_loose(part)}"
            )
        if not names:
            raise DataError(
                f"{part} holds no class folders{_loose(part) or ': give one for each class'}"
            )
    files = [_class_files(part, classes or names, reading) for part, names in zip(parts, found)]
    if classes is None and found[0] != found[-1]:
        apart = sorted(set(found[0]) ^ set(found[-1]))
        raise DataError(
            f"{train} and {val} hold different classes ({_first(apart)} in one of them only): "
            "both need the same folders"
        )
    count = len(classes or found[0])
    seen = "none" if val is None else f"{len(files[1])} below {val}"
    log.info(
        f"{len(files[0])} training images of {count} classes below {train}; for validation {seen}"
    )
    return Dataset(name, files[0], files[1] if val else None, count, *moments)


def _class_files(root: Path, classes: Sequence[str], reading: Reading) -> Files:
    names: list[bytes] = []
    counts = []
    for label in classes:
        found = _images(root / label, root)
        if not found:
            raise DataError(
                f"the class folder {root / label} is empty of images ({_other(root / label)}): "
                "fill it or remove it"
            )
        names += found
        counts.append(len(found))
    labels = torch.arange(len(classes)).repeat_interleave(torch.tensor(counts))
    return Files(root, np.array(names), labels, reading)


def _unlabelled(root: Path, reading: Reading) -> Files:
    names = _images(root, root)
    if not names:
        raise DataError(f"{root} holds no images ({_other(root)}): give the folder that does")
    return Files(root, np.array(names), torch.zeros(len(names), dtype=torch.int64), reading)


def _folders(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _has_classes(root: Path) -> bool:
    """Whether there are folders and no images beside them."""
    with os.scandir(root) as entries:
        loose = any(_is_image(e.name) and e.is_file() for e in entries)
    return not loose and bool(_folders(root))


def _is_image(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(EXTENSIONS)


def _images(top: Path, root: Path) -> list[bytes]:
    """Every image below ``top``, sorted by path, relative to ``root``; links are followed."""
    found: list[bytes] = []
    seen: set[str] = set()
    for folder_name, folders, files in os.walk(top, followlinks=True):
        here = os.path.realpath(folder_name)
        if here in seen:  # a link to a folder above it
            folders.clear()
            continue
        seen.add(here)
        folders.sort()
        relative = os.path.relpath(folder_name, root)
        prefix = "" if relative == "." else relative + os.sep
        found += [os.fsencode(prefix + name) for name in sorted(files) if _is_image(name)]
    return found


def _other(top: Path) -> str:
    """What a folder without images holds instead."""
    endings = Counter(Path(f).suffix or f for _, _, files in os.walk(top) for f in files)
    seen = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(3))
    return f"it holds {seen}; images end in {' '.join(EXTENSIONS)}" if seen else "no files"


def _loose(part: Path) -> str:
    """A hint where images lie where their class folders should."""
    with os.scandir(part) as entries:
        loose = next((e.name for e in entries if _is_image(e.name)), None)
    return f": images such as {loose} lie in it, sort them into class folders" if loose else ""


def _first(names: Collection[str], most: int = 3) -> str:
    shown = list(names)[:most]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")
