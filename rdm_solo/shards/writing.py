"""Writes image files as shards: tar files that webdataset and `dataset=shards` read."""

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from rdm_solo.data import DataError, Files
from rdm_solo.data.image_files import Unreadable
from rdm_solo.data.images import REMEDY
from rdm_solo.data.tar_index import read_index
from rdm_solo.messages import printable


def write_part(files: Files, out: Path, part: str, labelled: bool, size: int) -> int:
    """Write ``out/part-000000.tar`` and so on, of about ``size`` bytes each; returns how many.

    A tar file has its name once it is whole, and its index follows.
    """
    members, number = _members(files, labelled), 0
    member = next(members, None)
    while member is not None:
        tar = out / f"{part}-{number:06}.tar"
        partial = tar.with_suffix(".partial")
        with tarfile.open(partial, "w", format=tarfile.GNU_FORMAT) as file:
            while member is not None:
                for name, content in member:
                    head = tarfile.TarInfo(name)
                    head.size, head.mode = len(content), 0o644
                    file.addfile(head, io.BytesIO(content))
                member = next(members, None)
                if file.offset >= size:
                    break
        partial.replace(tar)
        read_index(tar)
        number += 1
    return number


def _members(files: Files, labelled: bool) -> Iterator[list[tuple[str, bytes]]]:
    """For each image the members of its sample: names, and what they hold."""
    taken: set[str] = set()
    for number, label in enumerate(files.labels.tolist()):
        name = os.fsdecode(bytes(files.names[number])).removeprefix("./")
        key, ending = sample_name(name, taken)
        try:
            content = files.content(number)
        except Unreadable as error:
            raise DataError(f"{printable(files.path(number))} {error}: {REMEDY}") from error
        sample = [(f"{key}.{ending}", content)]
        yield [*sample, (f"{key}.cls", str(label).encode())] if labelled else sample


def sample_name(name: str, taken: set[str]) -> tuple[str, str]:
    """A sample's name that none of ``taken`` has, and the ending of its image.

    A sample's name ends at its first dot, so that other dots become lines.

    >>> taken = set()
    >>> sample_name("cat/a.1.JPEG", taken), sample_name("cat/a_1.png", taken)
    (('cat/a_1', 'JPEG'), ('cat/a_1~2', 'png'))
    """
    folder, slash, last = name.replace(os.sep, "/").rpartition("/")
    stem, _, ending = last.rpartition(".")
    plain = key = folder + slash + stem.replace(".", "_")
    again = 2
    while key in taken:
        key = f"{plain}~{again}"
        again += 1
    taken.add(key)
    return key, ending
