"""Reading what torch saved: nothing in the file is executed, and changed bytes are noticed.

torch writes a zip with a checksum (CRC-32) of each record, which it does not compare when it reads.
Comparing takes 0.1 s for 100 MB.

What torch refuses under ``weights_only`` (a checkpoint of another program may hold configs,
schedulers, argparse results beside its weights) is read by an unpickler that makes tensors, and
puts an object without effect in place of everything else. torch's own way around a refusal,
``safe_globals``, takes no subclass of dict, as Lightning's hyper-parameters are.
"""

import logging
import pickle
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rdm_solo.messages import UserError, first_line, listed

log = logging.getLogger("rdm_solo")

# What pickles call to make a tensor. Storages are torch.load's own concern.
TENSOR_PARTS = (
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor_v2"),
)


def read(path: Path, other_objects: bool = False) -> Any:
    """What a file of torch's holds; ValueError, in one sentence, where it cannot be read.

    With ``other_objects`` it may hold more than tensors, numbers and texts; they are not made.
    """
    try:
        _compare_checksums(path)
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            if not other_objects:
                raise
            return _read_tensors_alone(path)
    except Exception as error:  # what a torn file raises depends on where it is torn
        raise UserError(
            f"{path} cannot be read as a checkpoint of torch: {first_line(error)}"
        ) from error


def _compare_checksums(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        if _is_tar(path):  # torch's format of before 2017, for which it makes a folder
            raise UserError("it is a tar archive, or holds zeros alone")
        return  # torch's format of before 2020 has none; anything else torch refuses
    with zipfile.ZipFile(path) as file:
        records = file.infolist()
        if any(record.compress_type != zipfile.ZIP_STORED for record in records):
            raise UserError("it is compressed, which torch's files are not")
        if sum(record.file_size for record in records) > path.stat().st_size:
            raise UserError("its records overlap")
        broken = file.testzip()
    if broken is not None:
        raise UserError(f"bytes of it have changed since it was written (in {broken})")


def _is_tar(path: Path) -> bool:
    """Whether torch would take it for a tar archive; ``is_tarfile`` would decompress it, too, which
    takes minutes for a file of zeros."""
    try:
        tarfile.open(path, "r:").close()
    except tarfile.TarError:
        return False
    return True


def _read_tensors_alone(path: Path) -> Any:
    left: set[str] = set()

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) in TENSOR_PARTS:
                return super().find_class(module, name)
            left.add(f"{module}.{name}")
            return _Inert

    def load(file: Any, **options: Any) -> Any:
        return Unpickler(file, **options).load()

    like_pickle = SimpleNamespace(__name__="inert", Unpickler=Unpickler, load=load)
    saved = torch.load(path, map_location="cpu", weights_only=False, pickle_module=like_pickle)
    log.info(f"{path}: not read, because these are not weights: {listed(sorted(left))}")
    return saved


class _Inert:
    """Stands where a file asks for an object that is no tensor, and does nothing."""

    def __new__(cls, *args: object, **kwargs: object) -> "_Inert":
        return super().__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __call__(self, *args: object, **kwargs: object) -> "_Inert":
        return self

    # What unpickling calls on the objects that it has made.
    __setstate__ = __setitem__ = append = extend = add = __init__
