"""The rows of a batch, from all processes, and the Gram matrix of its smaller side."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.distributed import (
    gather_equal,
    largest_over_processes,
    rank,
    sum_over_processes,
    world_size,
)
from rdm_solo.filters.functions import number

# float64 numbers beyond this count as infinite, and those below its inverse as zero.
LARGEST = 2.0**960
WITHOUT_FLOAT64 = {"mps"}


def relative_cut(dtype: torch.dtype, n: int, k: int) -> float:
    """The share of the largest singular value below which a direction is rounding noise.

    ``eps * sqrt(max(n, k))`` for float32 and float64: above the null direction that a batch norm
    leaves (1 to 12 eps), below the signal of steep spectra. float16 and bfloat16 features are
    rounded themselves, which lifts the null direction to at most 0.29 eps (of the half type), so
    the cut lies at ``eps / 2``. float64 rows that several processes do not gather (more rows than
    columns) are cut as float32 is.

    Rows are another matter: see :func:`decompose`.

    >>> f"{relative_cut(torch.float32, 256, 2048):.1e}"
    '5.4e-06'
    """
    eps = torch.finfo(dtype).eps
    if dtype in (torch.float16, torch.bfloat16):
        return eps / 2
    return eps * math.sqrt(max(n, k))


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64: Apple's do not, nor do some of Intel's.

    >>> has_float64(torch.device("cpu")), has_float64(torch.device("mps"))
    (True, False)
    """
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type not in WITHOUT_FLOAT64


@dataclass(frozen=True)
class Batch:
    """The rows ``(n, k)`` of all processes, in float64; those that are broken are zero.

    With more columns than rows (``dual``) ``rows`` are those of all processes; otherwise this
    process's own.
    """

    n: int
    k: int
    dual: bool
    dtype: torch.dtype  # of the batch, and of what is handed back
    rows: Tensor
    own: slice  # this process's part of rows
    scale: Tensor | float  # by which the rows of the Gram matrix were divided
    negligible: Tensor | None  # (N, 1): this process's rows that have no direction; None if none
    negligible_rows: Tensor  # (): how many of all processes, broken ones among them
    broken_rows: Tensor  # (): rows with NaN or infinity, which count as zero


def gather(x: Tensor) -> tuple[Batch, Tensor | None]:
    """The batch of which ``x`` is this process's share, and the n x n or k x k Gram matrix.

    Every process calls this with an equal share of the rows. The Gram matrix is made in float64,
    each process its part of it, because it squares the condition number; float64 input is scaled
    before it is squared, and has no such matrix (None) where one process has all of it: it would
    not keep its digits.

    A row without a direction is one shorter than ``relative_cut(float32, n, k)`` times the rows'
    root mean square (float64: its own cut), since normalising it would multiply a gradient by the
    inverse. That bound has nothing to do with half precision: a row of any length is rounded to the
    same share of itself, and loses as much (measured on bfloat16 and float16 rows down to 1e-6 of
    the largest singular value). Nor does it grow with the batch, as the largest singular value
    does. Rows are masked and counted on the device: the host does not wait for it.

    Shapes: ``(N, k)`` of this process.

    >>> batch, gram = gather(torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    >>> batch.dual, gram
    (True, tensor([[9., 0.],
            [0., 4.]], dtype=torch.float64))
    """
    n, k = len(x) * world_size(), x.shape[1]
    dual = n < k
    # 2-byte features cross the wire as they are: everything is widened on arrival.
    rows = (gather_equal(x) if dual else x).detach().double()
    start = rank() * len(x) if dual else 0
    own = slice(start, start + len(x))
    exact = x.dtype == torch.float64
    by_gram = not exact or not (dual or world_size() == 1)

    scale: Tensor | float = 1.0
    scaled = rows
    gram = None
    if exact:
        rows, scale = _in_range(rows)
        scaled = rows / scale
    if dual and by_gram:
        gram = gather_equal(scaled[own] @ scaled.mT)
        squares = gram.diagonal()
    else:
        squares = scaled.square().sum(dim=1)
    total = number(squares.sum())
    broken_rows = torch.zeros((), dtype=torch.long, device=x.device)
    if (total < math.inf) is not True:  # a device does what may be needless: it is not asked
        broken = ~squares.isfinite()
        broken_rows = broken.sum()
        rows = _without(rows, broken)
        scaled = _without(scaled, broken) if exact else rows
        # Products of a broken row are NaN or infinity, and no others are.
        squares = _finite(squares) if gram is None else _finite(gram).diagonal()
        total = number(squares.sum())
    if by_gram and not dual:
        gram = sum_over_processes(scaled.mT @ scaled)
        total = number(gram.diagonal().sum())

    wide = torch.float64 if exact and gram is None else torch.float32
    short = squares <= total * (relative_cut(wide, n, k) ** 2 / n)
    negligible_rows = short.sum()
    none = (number(negligible_rows) == 0) is True
    if not dual and world_size() > 1:
        counts = sum_over_processes(torch.stack([broken_rows, negligible_rows]))
        broken_rows, negligible_rows = counts.unbind()
    batch = Batch(
        n=n,
        k=k,
        dual=dual,
        dtype=x.dtype,
        rows=rows,
        own=own,
        scale=scale,
        negligible=None if none else short[own, None],
        negligible_rows=negligible_rows,
        broken_rows=broken_rows,
    )
    return batch, gram


def _in_range(rows: Tensor) -> tuple[Tensor, Tensor]:
    """float64 rows, numbers too large as NaN and too small as zero, and the size of the largest
    finite one of all processes, as a power of two."""
    size = rows.abs()
    rows = torch.where(size < 1 / LARGEST, 0.0, torch.where(size <= LARGEST, rows, torch.nan))
    largest = largest_over_processes(rows.nan_to_num(nan=0.0).abs().max())
    digits, _ = torch.frexp(largest)  # from 1/2 to 1; a power of two remains without them
    return rows, torch.where(largest > 0, largest / (2 * digits), 1.0)


def _finite(values: Tensor) -> Tensor:
    """In place: zero where there was NaN or infinity."""
    return values.nan_to_num_(0.0, 0.0, 0.0)


def _without(rows: Tensor, broken: Tensor) -> Tensor:
    """In place: zeros for those rows; a CPU takes half of the time that ``masked_fill_`` takes."""
    return _finite(rows).mul_((~broken[:, None]).to(rows))
