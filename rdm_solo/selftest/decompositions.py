"""``torch.linalg.eigh`` in float64 by each library that torch has for it, at the sizes of the
paper's Gram matrices."""

import contextlib
import statistics
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from rdm_solo.bench.filters import batch_normed
from rdm_solo.bench.timing import interleaved
from rdm_solo.selftest.results import FAILED, OK, Check, Result, Settings, not_tested

# The batches of the paper's ImageNet-100, CIFAR and ImageNet runs, which narrow heads have as well;
# and SimSiam's head, which takes a CPU seconds: the spectra's line is about that size, too.
SIZES = (128, 256, 512)
LARGE = 2048
# Of |G V - V lambda| / |G|: far above what float64 rounds (1e-15), far below float32 (1e-7).
RESIDUAL = 1e-11
ON_GPUS = ("cusolver", "magma")


def checks(settings: Settings) -> Iterator[Check]:
    """A line for each library."""
    libraries = ("LAPACK",) if settings.on_cpu else ON_GPUS
    for library in libraries:
        yield Check(f"eigh by {library}", partial(_line, settings, library))


@contextlib.contextmanager
def preferred(library: str) -> Iterator[None]:
    """torch asks that library where it can; what it preferred before is set again."""
    if library not in ON_GPUS:
        yield
        return
    choose = torch.backends.cuda.preferred_linalg_library
    before = choose()
    choose(library)
    try:
        yield
    finally:
        choose(before)


def gram(size: int) -> Tensor:
    """The float64 Gram matrix of a head's features, ``(size, size)``."""
    rows = batch_normed(size, size).double()
    return rows @ rows.mT


def _line(settings: Settings, library: str) -> list[Result]:
    name = f"eigh by {library}"
    if library == "magma" and not torch.cuda.has_magma:
        return [not_tested(name, "this torch was built without MAGMA")]
    sizes = SIZES if settings.on_cpu else (*SIZES, LARGE)
    grams = [gram(size).to(settings.device) for size in sizes]
    with preferred(library):
        contestants = [partial(torch.linalg.eigh, G) for G in grams]
        seconds = interleaved(contestants, settings.runs, settings.device)
        errors = {f"{size} x {size}": residual(G) for size, G in zip(sizes, grams)}
    middle = {size: statistics.median(times) for size, times in zip(sizes, seconds)}
    worst = max(errors.values(), key=lambda error: error if error == error else float("inf"))
    fine = worst <= RESIDUAL
    times = ", ".join(f"{size}: {median * 1e3:.1f} ms" for size, median in middle.items())
    return [
        Result(
            name,
            OK if fine else FAILED,
            f"{times}; residual {worst:.0e}",
            f"residual {RESIDUAL:.0e}",
            {"residuals": errors, "seconds": dict(zip(map(str, sizes), seconds))},
        )
    ]


def residual(G: Tensor) -> float:
    """How far eigenvalues and eigenvectors are from being those of the matrix, relative to it, or
    the vectors from being orthogonal."""
    lam, v = torch.linalg.eigh(G)
    off = (G @ v - v * lam).norm() / G.norm()
    skew = (v.mT @ v - torch.eye(len(v), dtype=v.dtype, device=v.device)).norm() / len(v) ** 0.5
    return float(torch.maximum(off, skew))  # NaN where one is
