"""An accelerator ``fake:0`` for tests without a GPU.

Its tensors are stored in the CPU's memory and its operators are the CPU's, so results are
bit-identical. Like an accelerator, it refuses to mix its tensors with the host's, and a tensor must
be copied before the host can read it. A process must register it before its first backward pass, so
tests run it in a process of its own (the fixture ``on_second_device``).
"""

import contextlib

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

missing = set()  # dtypes that the device lacks


@contextlib.contextmanager
def without_float64():
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

    def __reduce_ex__(self, protocol):  # a checkpoint is read into the host's memory
        return self.memory.__reduce_ex__(protocol)

    def tolist(self):  # torch's own refuses subclasses
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        if name not in COPIES:
            _check_devices(func, name, args, kwargs)
        to_host = False
        if kwargs.get("device") is not None:
            to_host = torch.device(kwargs["device"]).type == "cpu"
            kwargs["device"] = "cpu"
        inputs = {}
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, OnDevice):
                inputs[id(x.memory)] = x
        args, kwargs = tree_map_only(OnDevice, lambda x: x.memory, (args, kwargs))
        out = func(*args, **kwargs)
        for x in inputs.values():
            if x.shape != x.memory.shape:
                raise NotImplementedError(f"{func} changes the shape of a tensor of {DEVICE}")
        if name == "_to_copy" and to_host:
            return out

        def on_device(x):
            if id(x) in inputs:  # an operator that works in place returns its input
                return inputs[id(x)]
            return OnDevice(x)

        return tree_map_only(torch.Tensor, on_device, out)


def _check_devices(func, name: str, args, kwargs) -> None:
    """Refuse tensors and generators of the host, as an accelerator does."""
    if name in waits.INDEXING:
        args = args[:1]  # the indices may be the host's
    for x in tree_leaves((args, kwargs)):
        if isinstance(x, torch.Tensor) and not isinstance(x, OnDevice) and x.ndim > 0:
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


def install(rank: int, size: int, folder: str) -> None:
    """Register the device, before the process's first backward pass starts its threads."""
    getattr(backend_registration, SETUP)(NAME, backend_module=_Module())
    _library.impl("empty.memory_format", _empty, "PrivateUse1")
    _library.impl("empty_strided", _empty_strided, "PrivateUse1")
    _library.impl("_copy_from", _copy_from, "PrivateUse1")
    for name in FACTORIES:
        _library.impl(name, _factory(name), "PrivateUse1")


def call(rank: int, size: int, function, *arguments):
    """Call the function, and copy the tensors that it returns to the host."""
    return tree_map_only(OnDevice, lambda x: x.detach().memory, function(*arguments))


_library = torch.library.Library("aten", "IMPL")


def _empty(size, *, dtype=None, memory_format=None, **_):
    layout = memory_format or torch.contiguous_format
    return OnDevice(torch.empty(size, dtype=dtype, device="cpu", memory_format=layout))


def _empty_strided(size, stride, *, dtype=None, **_):
    return OnDevice(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _factory(name: str):
    """Return an operator that fills a tensor on the host, since torch would resize an empty one."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def create(*args, device=None, pin_memory=None, **options):
        return OnDevice(operator(*args, device="cpu", **options))

    return create


def _copy_from(source, target, non_blocking: bool = False):
    """Copy between the host and the device, which ``torch.tensor`` does inside torch."""
    from_host = not isinstance(source, OnDevice)
    to_host = not isinstance(target, OnDevice)
    values = source if from_host else source.memory
    memory = target if to_host else target.memory
    memory.copy_(values)
    if (from_host or to_host) and not non_blocking:
        waits.note("copy inside torch")
    return target
