"""Device helpers: absent GPUs, float64 support, precision of products, and a check for NaN."""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from rdm_solo.ground.errors import UserError

WITHOUT_FLOAT64 = {"mps"}

Name = TypeVar("Name")


def has_float64(device: torch.device) -> bool:
    """Return whether a device supports float64; Apple GPUs do not.

    >>> has_float64(torch.device("cpu")), has_float64(torch.device("mps"))
    (True, False)
    """
    return device.type not in WITHOUT_FLOAT64


def device_name(device: torch.device) -> str:
    """Return a GPU's model, and the type of any other device.

    >>> device_name(torch.device("cpu"))
    'cpu'
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type


def check_accelerator(name: str) -> None:
    """Raise UserError if Lightning's accelerator of this name is a GPU and torch finds none.

    >>> check_accelerator("cpu")
    """
    if name in ("gpu", "cuda") and not torch.cuda.is_available():
        raise UserError("no GPU found: use trainer=cpu or trainer=auto.")


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which to multiply matrices, so that TF32 or bfloat16 is never used.

    It is float64 if torch's global setting allows TF32 or bfloat16 products, and ``dtype``
    otherwise. Callers must disable autocast.

    >>> product_dtype(torch.float32)
    torch.float32
    >>> torch.set_float32_matmul_precision("high")
    >>> product_dtype(torch.float32)
    torch.float64
    >>> torch.set_float32_matmul_precision("highest")
    """
    precisions = set()
    for backend in (torch.backends.mkldnn, torch.backends.cuda):
        matmul = getattr(backend, "matmul", None)
        precisions.add(getattr(matmul, "fp32_precision", None))
    if None in precisions:  # torch 2.8 has one setting for all backends
        is_exact = torch.get_float32_matmul_precision() == "highest"
    else:
        is_exact = precisions <= {"ieee", "none"}
    if is_exact:
        return dtype
    return torch.float64


def nonfinite_names(state: Mapping[Name, Any]) -> list[Name]:
    """Return the names of tensors that contain NaN or infinity, with one synchronisation.

    >>> nonfinite_names({"steps": 3})
    []
    >>> nonfinite_names({"whole": torch.ones(2), "broken": torch.tensor(torch.nan), "steps": 3})
    ['broken']
    """
    flags = {}
    for name, value in state.items():
        if torch.is_tensor(value) and value.is_floating_point():
            flags[name] = value.isfinite().all()
    if not flags:
        return []
    are_finite = torch.stack(list(flags.values())).tolist()
    return [name for name, is_finite in zip(flags, are_finite) if not is_finite]
