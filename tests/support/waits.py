"""Count the operators in which the host waits for a device (GPU synchronisations)."""

import sys
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operators whose result the host needs: a number, a shape, or whether a decomposition failed.
WAITING = {
    "_linalg_eigh",
    "_linalg_solve_ex",
    "_linalg_svd",
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "linalg_cholesky_ex",
    "linalg_inv_ex",
    "linalg_lstsq",
    "masked_select",
    "nonzero",
}
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
MASKS = (torch.bool, torch.uint8)


class Wait(NamedTuple):
    """An operator in which the host waited, and the line outside torch that called it."""

    operator: str
    where: str  # such as rdm_solo/callbacks/knn.py:30


class Waits(TorchDispatchMode):
    """List in ``found`` each wait for a device other than the CPU.

    Copies between a device and the host count, unless they are non-blocking. ``operators`` is the
    number of all operators, on any device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Wait] = []
        self.operators = 0

    def __enter__(self) -> "Waits":
        _counters.append(self)
        return super().__enter__()

    def __exit__(self, *raised) -> None:
        _counters.remove(self)
        super().__exit__(*raised)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.operators += 1
        if waits(func, args, kwargs):
            self.found.append(Wait(func.name().removeprefix("aten::"), where()))
        return func(*args, **kwargs)


_counters: list[Waits] = []


def note(operator: str) -> None:
    """Count a wait that no dispatch mode sees, such as the copy in ``torch.tensor(device=...)``."""
    for counter in _counters:
        counter.found.append(Wait(operator, where()))


def waits(func, args, kwargs: dict[str, Any]) -> bool:
    """Return whether the host waits in this call."""
    leaves = tree_leaves((args, kwargs))
    on_device = [_is_away(x.device) for x in leaves if isinstance(x, torch.Tensor)]
    name = func.overloadpacket.__name__
    if name == "_to_copy" and kwargs.get("device") is not None:
        is_moved = _is_away(torch.device(kwargs["device"])) != any(on_device)
        return is_moved and not kwargs.get("non_blocking")
    if not any(on_device):
        return False
    if name == "copy_":
        non_blocking = kwargs.get("non_blocking") or args[2:3] == (True,)
        return not all(on_device) and not non_blocking
    if name in INDEXING:
        indices = [x for x in args[1] if x is not None]
        return any(x.dtype in MASKS or not _is_away(x.device) for x in indices)
    if name in ("masked_fill", "masked_fill_"):  # the value may be a tensor on the device
        return isinstance(args[2], torch.Tensor) and _is_away(args[2].device)
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return name in WAITING


def _is_away(device: torch.device) -> bool:
    return device.type not in ("cpu", "meta")


def where() -> str:
    """Return the innermost line outside torch and ``tests/support``."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = frame.f_code.co_filename
        if not any(part in path for part in ("/torch/", "/tests/support/", "<")):
            return f"{'/'.join(path.split('/')[-3:])}:{frame.f_lineno}"
        frame = frame.f_back
    return "the backward pass"
