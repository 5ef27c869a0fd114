"""Read files that torch has saved, without executing anything in them."""

import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rdm_solo.messages import UserError, first_line

# The functions by which a pickle creates a tensor; torch.load itself creates the storages.
TENSOR_PARTS = (
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor_v2"),
)


def read(path: Path, other_objects: bool = False) -> Any:
    """Return the content of a file that torch has saved, or raise a :class:`UserError`.

    With ``other_objects``, the file may hold configs, schedulers or argparse results beside its
    weights, as solo-learn's checkpoints do. They are replaced by placeholders.

    torch does not compare the checksums (CRC-32) in the zip; this function does (0.1 s for 100 MB).
    """
    try:
        zipped = zipfile.is_zipfile(path)  # since torch 1.6
        if zipped:
            with zipfile.ZipFile(path) as file:
                if damaged := file.testzip():
                    raise UserError(f"bytes have changed since it was written (in {damaged})")
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            if not (other_objects and zipped):
                raise
            tensors_only = SimpleNamespace(__name__="tensors_only", Unpickler=_TensorsOnly)
            return torch.load(
                path, map_location="cpu", weights_only=False, pickle_module=tensors_only
            )
    except Exception as error:  # a truncated file can raise almost anything
        raise UserError(
            f"{path} cannot be read as a checkpoint of torch: {first_line(error)}"
        ) from error


class _TensorsOnly(pickle.Unpickler):
    """Create no object except tensors. torch's ``safe_globals`` accepts no subclass of dict."""

    def find_class(self, module: str, name: str) -> Any:
        known = (module, name) in TENSOR_PARTS
        return super().find_class(module, name) if known else _Placeholder


class _Placeholder:
    """Replaces any object that is not a tensor, and does nothing."""

    def __new__(cls, *args: object, **kwargs: object) -> "_Placeholder":
        return super().__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    # What an unpickler calls on an object that it has created.
    __call__ = __setstate__ = __setitem__ = append = extend = add = __init__
