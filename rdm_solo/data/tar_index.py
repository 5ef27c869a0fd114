"""Where the images of a tar file lie: its index, beside the file, or made by one pass over it.

Samples are named as webdataset names them: ``a/0001.jpg`` and ``a/0001.cls`` are the image and the
class number of the sample ``a/0001``. A name is split at its first dot, so that ``0001.seg.png`` is
another kind of data, which is left out, as is everything that is neither image nor class number.
"""

import io
import logging
import os
import re
import secrets
import tarfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rdm_solo.data.images import DataError
from rdm_solo.data.listing import EXTENSIONS
from rdm_solo.messages import UserError, printable

log = logging.getLogger("rdm_solo")

ENDING = ".index.npz"  # of an index, in the place of the ".tar" of its file
BLOCK = 512  # bytes, of which a tar file is made
NO_LABEL = -1

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class TarIndex(NamedTuple):
    """The images of a tar file, in its order."""

    names: np.ndarray[Any, np.dtype[np.bytes_]]  #: as ``os.fsencode`` gives them, ``(N,)``
    offsets: Numbers  #: of their first byte, ``(N,)``
    sizes: Numbers  #: in bytes, ``(N,)``
    labels: Numbers  #: class numbers, or ``NO_LABEL``


def read_index(tar: Path, write: bool = True) -> TarIndex:
    """The index beside a tar file; where it is missing or of another file, it is made anew, and
    written there unless ``write`` is False."""
    beside = tar.with_name(tar.name.removesuffix(".tar") + ENDING)
    try:
        return _load(beside, tar)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        log.info(f"making the index of {printable(tar)}")
    made = _pass_over(tar)
    if not write:
        return made
    try:
        _save(beside, tar, made)
    except OSError as error:
        log.info(f"{printable(beside)} cannot be written ({error.strerror}); the next start looks "
                 "through the tar file again")  # fmt: skip
    return made


def _state(tar: Path, offset: int) -> tuple[int, bytes]:
    """What tells a tar file from another: its size, and the header of its last image."""
    with open(tar, "rb") as file:
        file.seek(max(0, offset - BLOCK))
        return os.fstat(file.fileno()).st_size, file.read(BLOCK)


def _load(beside: Path, tar: Path) -> TarIndex:
    with np.load(beside, allow_pickle=False) as stored:
        index = TarIndex(*(stored[name] for name in TarIndex._fields))
        size, header = int(stored["size"]), stored["header"].tobytes()
    numbers = (index.offsets, index.sizes, index.labels)
    shapes = {column.shape for column in index}
    if len(shapes) > 1 or index.names.ndim != 1 or index.names.dtype.kind != "S":
        raise UserError("columns of different lengths")
    if len(index.names) == 0 or any(column.dtype != np.int64 for column in numbers):
        raise UserError("no images, or no whole numbers")
    if (index.offsets < 0).any() or (index.sizes < 0).any() or (index.sizes > size).any():
        raise UserError("images outside the file")
    if (index.labels < NO_LABEL).any() or _state(tar, int(index.offsets[-1])) != (size, header):
        raise UserError("the index of another file")
    return index


def _save(beside: Path, tar: Path, index: TarIndex) -> None:
    """Whole at any moment: other processes may look for it."""
    size, header = _state(tar, int(index.offsets[-1]))
    content = io.BytesIO()
    np.savez(
        content,
        allow_pickle=False,
        size=np.int64(size),
        header=np.frombuffer(header, np.uint8),
        **index._asdict(),
    )
    partial = beside.with_name(f".{beside.name}.{secrets.token_hex(8)}")
    try:
        partial.write_bytes(content.getvalue())
        partial.replace(beside)
    finally:
        partial.unlink(missing_ok=True)


def _pass_over(tar: Path) -> TarIndex:
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with open(tar, "rb") as raw, tarfile.open(fileobj=raw, mode="r:") as file:
            while (member := file.next()) is not None:
                file.members = []  # type: ignore[attr-defined]  # or it keeps all of them
                named = re.fullmatch(r"((?:.*/|)[^./][^.]*)\.([^./]+)", member.name)
                if not member.isreg() or member.issparse() or not named:
                    continue
                key, ending = named.group(1), named.group(2).lower()
                if f".{ending}" in EXTENSIONS:
                    if key in images:
                        raise _refusal(tar, f"has two images of the sample {printable(key)}")
                    images[key] = (member.name, member.offset_data, member.size)
                elif ending == "cls":
                    raw.seek(member.offset_data)
                    text = raw.read(min(member.size, 32))
                    if len(text) < min(member.size, 32):
                        raise _refusal(tar, f"is cut off or damaged in {printable(member.name)}")
                    labels[key] = _class_number(tar, member.name, text)
            raw.seek(file.offset)
            # tarfile ends at what is no header without a word.
            if raw.read(BLOCK) != bytes(BLOCK):
                raise _refusal(tar, f"is cut off or damaged after {file.offset} bytes")
    except OSError as error:
        raise _refusal(tar, f"cannot be read ({error.strerror or error})") from error
    except tarfile.TarError as error:
        raise _refusal(tar, f"is no whole, uncompressed tar file ({printable(error)})") from error
    if not images:
        raise _refusal(tar, f"holds no images (they end in {' '.join(EXTENSIONS)})")
    names, offsets, sizes = zip(*images.values())
    return TarIndex(
        np.array([os.fsencode(name) for name in names]),
        np.array(offsets, np.int64),
        np.array(sizes, np.int64),
        np.array([labels.get(key, NO_LABEL) for key in images], np.int64),
    )


def _class_number(tar: Path, name: str, content: bytes) -> int:
    text = content.decode("ascii", "replace").strip()
    if not re.fullmatch(r"\d{1,9}", text):
        raise _refusal(tar, f"has {printable(text)!r} in {printable(name)}, not a class number")
    return int(text)


def _refusal(tar: Path, why: str) -> DataError:
    return DataError(f"the shard {printable(tar)} {why}: copy or write it again")
