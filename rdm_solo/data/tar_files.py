"""Data sets in tar files of images, as webdataset writes them: few large files for a shared disk.

An index says where in its tar file each image lies, so that any image is one read at an offset.
Epochs are therefore shuffled, shared out and resumed exactly as those of a folder of files.
"""

import glob
import itertools
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rdm_solo.data import remote
from rdm_solo.data.folders import IMAGENET
from rdm_solo.data.image_files import MAX_BYTES, Unreadable, cannot_be_read
from rdm_solo.data.images import DataError, Dataset, Files, Reading, path_of
from rdm_solo.data.tar_index import NO_LABEL, Numbers, read_index
from rdm_solo.messages import check_switch, printable

log = logging.getLogger("rdm_solo")

MOST_OPEN = 64  # tar files that a process keeps open
MOST_SHARDS = 100_000


class OpenTars:
    """Reads pieces of tar files, of which it keeps the last ones open; a copy starts anew."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenTars, ()

    def __del__(self) -> None:
        for number in self._open.values():
            os.close(number)

    def read(self, tar: Path, offset: int, size: int) -> bytes:
        number = self._open.pop(tar, None)
        if number is None:
            number = os.open(tar, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._open[tar] = number  # the last one is the one read last
        if len(self._open) > MOST_OPEN:
            os.close(self._open.popitem(last=False)[1])
        if hasattr(os, "pread"):  # workers that were forked share the position in a file
            return os.pread(number, size, offset)
        os.lseek(number, offset, os.SEEK_SET)
        return os.read(number, size)


@dataclass(frozen=True, eq=False)
class Shards(Files):
    """Images in tar files; ``names`` are those of their members, ``root`` serves relative ones."""

    tars: Sequence[Path]  #: the tar files
    tar: Numbers  #: number of the one that holds an image, ``(N,)``
    offsets: Numbers  #: of an image's first byte in it, ``(N,)``
    sizes: Numbers  #: in bytes, ``(N,)``
    opened: OpenTars = field(default_factory=OpenTars)

    def path(self, index: int) -> Path:
        """A name for image number ``index``: its tar file, and its place in that."""
        tar: Path = self.tars[self.tar[index]]
        return tar / os.fsdecode(bytes(self.names[index]))

    def content(self, index: int) -> bytes:
        tar, size = self.tars[self.tar[index]], int(self.sizes[index])
        if size > MAX_BYTES:
            raise Unreadable(f"has {size} bytes; images of at most {MAX_BYTES} are read")
        try:
            content = self.opened.read(tar, int(self.offsets[index]), size)
        except OSError as error:
            raise Unreadable(cannot_be_read(tar, error)) from error
        if len(content) < size:
            raise Unreadable("lies beyond the end of its shard, which became shorter")
        return content


def shards(
    root: str | Path,
    train: str = "train-*.tar",
    val: str | None = None,
    labels: bool | None = None,
    mean: Sequence[float] = IMAGENET[0],
    std: Sequence[float] = IMAGENET[1],
    cache: str | Path | None = None,
    download: bool = False,
    write_index: bool = True,
    **reading: Any,
) -> Dataset:
    """Images in the tar files that ``train`` and ``val`` name.

    A pattern may have ranges (``train-{000000..000146}.tar``) and, for local files, ``*``. A URL is
    copied to ``cache`` once, by the package ``webdataset``, and read from there.

    Args:
        root: the folder that patterns without a folder of their own are relative to.
        train: the training shards.
        val: the shards to validate on; by default ``val-*.tar`` where there are any.
        labels: ``True``: each sample has a ``.cls``; ``None`` finds out.
        mean: of each channel, in [0, 1] units.
        std: likewise.
        cache: a folder with room for the copies of shards that are named by URLs.
        download: copy what is not there yet; otherwise that is refused.
        write_index: write an index beside a shard that has none; otherwise it is made each time.
        **reading: the options of `Reading`.
    """
    how = Reading(**reading)
    if labels is not None:
        check_switch("dataset.labels", labels, alternative="null")
    check_switch("dataset.download", download)
    check_switch("dataset.write_index", write_index)
    root, copies = path_of("root", root), None if cache is None else path_of("cache", cache)

    def copy(url: str) -> Path:
        return remote.local_copy(url, copies, download)

    parts = [_files(_tars("train", train, root, copy), root, how, write_index)]
    if val is not None or glob.glob(str(Path(glob.escape(str(root))) / "val-*.tar")):
        found = _tars("val", val or "val-*.tar", root, copy)
        parts.append(_files(found, root, how, write_index))
    if labels is None:
        labels = any(bool((part.labels != NO_LABEL).any()) for part in parts)
    seen = f"{len(parts[0])} training images in {len(parts[0].tars)} shards"
    if not labels:
        log.info(f"{seen}, without labels: no validation, no accuracies")
        parts[0].labels.zero_()
        return Dataset("shards", parts[0], None, 1, mean, std, labelled=False)
    for part in parts:
        for number in (part.labels == NO_LABEL).nonzero()[:1, 0].tolist():
            raise DataError(
                f"{printable(part.path(number))} has no class number beside it (.cls): add it, or "
                "set dataset.labels=false"
            )
    classes = max(int(part.labels.max()) for part in parts) + 1
    log.info(f"{seen}, {classes} classes; {len(parts[1]) if parts[1:] else 'none'} to validate")
    return Dataset("shards", parts[0], parts[1] if parts[1:] else None, classes, mean, std)


def expanded(pattern: str) -> list[str]:
    """The names that a pattern with ranges stands for.

    >>> expanded("a-{08..10}.tar")
    ['a-08.tar', 'a-09.tar', 'a-10.tar']
    """
    pieces = re.split(r"\{(\d+)\.\.(\d+)\}", pattern)
    ranges: list[Sequence[str]] = []
    number = 1
    for low, high in zip(pieces[1::3], pieces[2::3]):
        number *= max(0, int(high) - int(low) + 1)
        if not 0 < number <= MOST_SHARDS:
            raise DataError(
                f"the range {{{low}..{high}}} in {pattern!r} gives {number} names; from 1 to "
                f"{MOST_SHARDS} shards are read"
            )
        ranges.append([f"{i:0{len(low)}}" for i in range(int(low), int(high) + 1)])
    texts = pieces[::3]
    return [
        texts[0] + "".join(itertools.chain(*zip(chosen, texts[1:])))
        for chosen in itertools.product(*ranges)
    ]


def _tars(option: str, pattern: str, root: Path, copy_to: Callable[[str], Path]) -> list[Path]:
    names = expanded(os.fspath(path_of(option, pattern)) if not _is_url(pattern) else pattern)
    if _is_url(pattern):
        return [copy_to(name) for name in names]
    found: list[Path] = []
    for name in names:
        whole = str(root / name)
        starred = glob.has_magic(name)
        there = sorted(glob.glob(str(Path(glob.escape(str(root))) / name))) if starred else [whole]
        if not there or not os.path.isfile(there[0]):
            raise DataError(
                f"dataset.{option}={pattern}: there is no shard {printable(whole)}: give the tar "
                "files, relative to dataset.root; `python -m rdm_solo.shards` writes them from a "
                "folder"
            )
        found += map(Path, there)
    return found


def _is_url(pattern: object) -> bool:
    return isinstance(pattern, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", pattern) is not None


def _files(tars: Sequence[Path], root: Path, reading: Reading, write_index: bool) -> Shards:
    each = [read_index(tar, write_index) for tar in tars]
    columns = [np.concatenate(column) for column in zip(*each)]
    names, offsets, sizes, labels = columns
    tar = np.repeat(np.arange(len(tars)), [len(index.names) for index in each])
    return Shards(root, names, torch.from_numpy(labels), reading, tars, tar, offsets, sizes)
