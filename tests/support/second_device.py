"""An accelerator ``fake:0`` for tests without a GPU.

Its tensors are stored in the CPU's memory and its operators are the CPU's, so results are
bit-identical. Like an accelerator, it refuses to mix its tensors with the host's, and a tensor must
be copied before the host can read it. A process must register it before its first backward pass, so
tests run it in a process of its own (the fixture ``on_second_device``).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map_only

from rdm_solo.ground import devices
from support import waits

NAME = "fake"
DEVICE = f"{NAME}:0"
SETUP = "_setup_privateuseone_for_python_backend"  # in torch from 2.10.0 on, not in 2.9.0
COPIES = ("_to_copy", "copy_")
FACTORIES = ("arange", "arange.start", "arange.start_step", "linspace", "eye", "eye.m", "randperm")
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")


missing: set[torch.dtype] = set()  # dtypes that the device lacks


@contextlib.contextmanager
def without_float64() -> Iterator[None]:
    """Make the device refuse float64, as Apple's does, and register this with the package."""
    missing.add(torch.float64)
    devices.WITHOUT_FLOAT64.add(NAME)
    try:
        yield
    finally:
        missing.remove(torch.float64)
        devices.WITHOUT_FLOAT64.remove(NAME)


class OnDevice(torch.Tensor):
    """A tensor on the device; ``memory`` is a CPU tensor of the same shape and strides."""

    memory: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, memory: torch.Tensor) -> "OnDevice":
        if memory.dtype in missing:
            raise TypeError(f"{DEVICE} has no {memory.dtype}")
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            memory.size(),
            strides=memory.stride(),
            storage_offset=memory.storage_offset(),
            dtype=memory.dtype,
            device=DEVICE,
        )
        tensor.memory = memory
        return tensor

    def __reduce_ex__(self, protocol: Any) -> Any:  # a checkpoint is read into the host's memory
        return self.memory.__reduce_ex__(protocol)

    def tolist(self) -> Any:  # torch's own refuses subclasses
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        if name not in COPIES:
            _refuse_what_an_accelerator_refuses(func, name, args, kwargs)
        to_host = "device" in kwargs and torch.device(kwargs["device"]).type == "cpu"
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        inputs = {id(x.memory): x for x in tree_leaves((args, kwargs)) if isinstance(x, OnDevice)}
        args, kwargs = tree_map_only(OnDevice, lambda x: x.memory, (args, kwargs))
        out = func(*args, **kwargs)
        if any(x.shape != x.memory.shape for x in inputs.values()):
            raise NotImplementedError(f"{func} changes the shape of a tensor of {DEVICE}")
        if name == "_to_copy" and to_host:
            return out
        return tree_map_only(
            torch.Tensor, lambda x: inputs[id(x)] if id(x) in inputs else OnDevice(x), out
        )


def _refuse_what_an_accelerator_refuses(func: Any, name: str, args: Any, kwargs: Any) -> None:
    """Refuse mixed devices (except scalars and indices) and generators of the host."""
    for x in tree_leaves((args[:1] if name in INDEXING else args, kwargs)):
        if isinstance(x, torch.Tensor) and not isinstance(x, OnDevice) and x.ndim:
            raise RuntimeError(f"{func}: all tensors must be on one device, found {DEVICE} and cpu")
        if isinstance(x, torch.Generator):
            raise RuntimeError(f"{func}: a generator of the cpu draws nothing on {DEVICE}")


class _Module:
    """The functions that torch calls on ``torch.fake``."""

    is_available = is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.float16, torch.bfloat16])


def can_install() -> bool:
    """Return whether this torch supports a device written in Python."""
    return hasattr(backend_registration, SETUP) and hasattr(torch._C, "_acc")


def install(rank: int = 0, size: int = 1) -> None:
    """Register the device, before the process's first backward pass starts its threads."""
    getattr(backend_registration, SETUP)(NAME, backend_module=_Module())
    for name, function in (
        ("empty.memory_format", _empty),
        ("empty_strided", _empty_strided),
        ("_copy_from", _copy_from),
        *((name, _made_by_the_host(name)) for name in FACTORIES),
    ):
        _library.impl(name, function, "PrivateUse1")


def call(rank: int, size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function, and copy the tensors that it returns to the host."""
    return tree_map_only(OnDevice, lambda x: x.detach().memory, function(*arguments))


_library = torch.library.Library("aten", "IMPL")


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> OnDevice:
    layout = memory_format or torch.contiguous_format
    return OnDevice(torch.empty(size, dtype=dtype, device="cpu", memory_format=layout))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> OnDevice:
    return OnDevice(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _made_by_the_host(name: str) -> Callable[..., OnDevice]:
    """Return a factory that torch would otherwise build from an empty tensor."""
    packet, _, overload = name.partition(".")
    make = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def made(*args: Any, device: Any = None, pin_memory: Any = None, **options: Any) -> OnDevice:
        return OnDevice(make(*args, device="cpu", **options))

    return made


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """Copy as ``torch.tensor`` and others do from inside torch."""
    one, other = (x.memory if isinstance(x, OnDevice) else x for x in (source, target))
    other.copy_(one)
    both = isinstance(source, OnDevice) and isinstance(target, OnDevice)
    if not (both or non_blocking):
        waits.note("copy inside torch")
    return target
