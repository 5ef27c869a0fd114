"""Settings of torch under which numbers may lose digits; what was set before is set again."""

import contextlib
from collections.abc import Iterator

import torch

from rdm_solo.selftest.results import Settings

# Arguments of torch.set_float32_matmul_precision. On GPUs that have TF32 the last two allow it.
PRECISIONS = {"highest": "TF32 off", "high": "TF32 allowed", "medium": 'precision "medium"'}
# The bound of docs/cost.md, relative to a float64 oracle with the same cut.
EXACT = 1e-5


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    """float32 matrices are multiplied with the digits that this allows."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def half_types(settings: Settings) -> list[torch.dtype]:
    """The types of autocast that people train with there: float16 on GPUs alone."""
    return [torch.bfloat16] if settings.on_cpu else [torch.bfloat16, torch.float16]


def autocast(settings: Settings, dtype: torch.dtype) -> torch.autocast:
    """autocast as a Trainer with ``precision=bf16-mixed`` or ``16-mixed`` uses it."""
    return torch.autocast(torch.device(settings.device).type, dtype=dtype)


def word(dtype: torch.dtype) -> str:
    """A type's name for a reader.

    >>> word(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")
