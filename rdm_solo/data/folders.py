"""Data sets that are folders of images, found and checked here.

`folder` takes any tree of one folder per class, or images without labels; `imagenet` and
`imagenet100` ImageNet in its usual layout, ``train/n01440764/*.JPEG`` and
``val/n01440764/*.JPEG``. Only names are read at the start: what a file holds is noticed when it is
decoded.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rdm_solo.data import listing
from rdm_solo.data.images import DataError, Dataset, Files, Reading, path_of
from rdm_solo.messages import check_switch, listed

log = logging.getLogger("rdm_solo")

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and standard deviation


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
        **reading: the options of `Reading`.
    """
    how = Reading(**reading)
    if labels is not None:
        check_switch("dataset.labels", labels, alternative="null")
    root = _existing(root)
    train_root = root / path_of("train", train)
    val_root = root / path_of("val", "val" if val is None else val)
    if train == "train" and not (train_root.is_dir() or val_root.is_dir()):
        train_root = root
    _check_part(train_root, root, "set dataset.train to its name")
    if val is not None:
        _check_part(val_root, root, "set dataset.val to its name")
    if labels is None:
        labels = bool(listing.folders(train_root)) and not listing.loose_image(train_root)
    if labels:
        validation = val_root if val_root.is_dir() else None
        return _labelled("folder", train_root, validation, None, (mean, std), how)
    files = _files(train_root, ["."], how, {})
    log.info(f"{len(files)} images below {train_root} without labels: no validation, no accuracies")
    return Dataset("folder", files, None, 1, mean, std, labelled=False)


def imagenet(root: str | Path, **reading: Any) -> Dataset:
    """ImageNet's 1000 classes below ``root/train`` and ``root/val``."""
    return _imagenet("imagenet", root, None, reading)


def imagenet100(root: str | Path, **reading: Any) -> Dataset:
    """The classes of `imagenet100_classes`, from ImageNet or from a copy of just those."""
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
    how = Reading(**reading)
    root = _existing(root)
    for part in ("train", "val"):
        layout = f"{name} is read from train/nXXXXXXXX/*.JPEG and val/nXXXXXXXX/*.JPEG"
        _check_part(root / part, root, layout)
    if classes is None:
        classes = [c for c in listing.folders(root / "train") if re.fullmatch(r"n\d{8}", c)]
        if len(classes) != 1000:
            raise DataError(
                f"{root / 'train'} holds {len(classes)} class folders nXXXXXXXX, ImageNet has "
                "1000: unpack all of it, or use dataset=folder for other sets of classes"
            )
    return _labelled(name, root / "train", root / "val", classes, IMAGENET, how)


def _existing(root: str | Path) -> Path:
    root = path_of("root", root)
    if not root.is_dir():
        state = "is a file" if root.exists() else f"does not exist (looked at {root.absolute()})"
        raise DataError(
            f"dataset.root={root} {state}: give the folder that holds the images; unpack it first "
            "where it is an archive"
        )
    return root


def _check_part(part: Path, root: Path, remedy: str) -> None:
    if not part.is_dir():
        there = ", ".join(listing.folders(root)[:5]) or "no folders"
        raise DataError(
            f"dataset.root={root} has no folder {part.name!r} ({part} does not exist; there are "
            f"{there}): {remedy}"
        )


def _labelled(
    name: str,
    train: Path,
    val: Path | None,
    classes: list[str] | None,
    moments: tuple[Sequence[float], Sequence[float]],
    reading: Reading,
) -> Dataset:
    """A data set of those classes, or of all that either part has; both must have each."""
    parts = [part for part in (train, val) if part]
    found = [listing.folders(part) for part in parts]
    classes = classes or sorted(set().union(*found))
    files, links = [], dict[Path, list[str]]()
    for part, names in zip(parts, found):
        absent = sorted(set(classes) - set(names))
        if absent or not classes:
            lacks = f"lacks {len(absent)} of {len(classes)} class folders ({listed(absent)})"
            loose = listing.loose_image(part)
            hint = f": images such as {loose} lie in it, sort them into class folders"
            raise DataError(
                f"{part} {lacks if classes else 'holds no class folders'}{hint if loose else ''}"
            )
        files.append(_files(part, classes, reading, links))
    listing.warn_of_links(links)
    seen = f"{len(files[1])} to validate below {val}" if val else "no validation, no accuracies"
    log.info(f"{len(files[0])} training images of {len(classes)} classes below {train}; {seen}")
    return Dataset(name, files[0], files[1] if val else None, len(classes), *moments)


def _files(
    root: Path, classes: Sequence[str], reading: Reading, links: dict[Path, list[str]]
) -> Files:
    names: list[bytes] = []
    counts = []
    for name in classes:
        links[root / name] = [str(root / name)] if (root / name).is_symlink() else []
        found = listing.images(root / name, root, reading.skip_broken, links[root / name])
        if not found:
            endings = " ".join(listing.EXTENSIONS)
            raise DataError(
                f"the folder {root / name} holds no images (they end in {endings}): fill it or "
                "remove it"
            )
        names += found
        counts.append(len(found))
    labels = torch.arange(len(classes)).repeat_interleave(torch.tensor(counts))
    return Files(root, np.array(names), labels, reading)
