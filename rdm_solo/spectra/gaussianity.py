r"""SIGReg's statistic: how far features are from a standard normal distribution.

Along one direction the Epps-Pulley test compares the empirical characteristic function
:math:`\hat\varphi(t) = \frac1N\sum_j e^{it u_j}` with that of N(0, 1):

.. math::
    T = N \int |\hat\varphi(t) - e^{-t^2/2}|^2\, e^{-t^2/2}\, dt

SIGReg (Balestriero and LeCun, "LeJEPA", 2025, Section 4) takes the mean over random directions. The
integral is the trapezoidal rule at 17 points of [0, 3], twice, since both halves are equal.
"""

import torch
from torch import Tensor

from rdm_solo.messages import UserError, check_whole

END, POINTS, SLICES = 3.0, 17, 256


def epps_pulley(x: Tensor, slices: int = SLICES, seed: int = 0) -> Tensor:
    r"""Return the mean over random directions of the Epps-Pulley statistic T (LeJEPA, Section 4).

    It is about 1 for standard normal rows, whatever N is. For others it grows with N, so compare
    values at one N only. Rows are neither centred nor scaled.

    Shapes: ``(N, k) -> ()``.

    >>> draw = torch.Generator().manual_seed(0)
    >>> x = torch.randn(512, 16, generator=draw)
    >>> bool(epps_pulley(x) < 1.5), bool(epps_pulley(3 * x) > 30)
    (True, True)
    """
    check_whole("slices", slices, 1)
    if x.ndim != 2 or 0 in x.shape:
        raise UserError(f"epps_pulley takes rows (N, k), got {tuple(x.shape)}.")
    x = x.detach()
    whole = torch.ones(len(x), dtype=torch.bool, device=x.device)
    waves = wave_sums(x, directions(x.shape[1], slices, seed).to(x.device), whole)
    return statistic(waves, whole.sum())


def directions(k: int, slices: int = SLICES, seed: int = 0) -> Tensor:
    """Return random unit vectors ``(k, slices)``, the same on all processes and devices."""
    draw = torch.Generator().manual_seed(seed)
    drawn = torch.randn(k, slices, generator=draw, dtype=torch.float64)
    lengths: Tensor = torch.linalg.vector_norm(drawn, dim=0)
    return drawn / lengths


def wave_sums(x: Tensor, along: Tensor, whole: Tensor) -> Tensor:
    r"""Return :math:`\sum_j e^{it u_j}` over whole rows, for each direction and each t above 0.

    Shapes: ``(N, k), (k, slices), (N,) -> (2 (points - 1), slices)``, real parts above imaginary.
    """
    angle = (x.where(whole[:, None], 0.0).double() @ along) * (END / (POINTS - 1))
    first = torch.polar(whole[:, None].to(angle).expand_as(angle).contiguous(), angle)
    wave, sums = first, []  # the points lie evenly, so each wave is a power of the first
    for _ in range(POINTS - 1):
        sums.append(wave.sum(0))
        wave = wave * first
    total = torch.stack(sums)
    return torch.cat([total.real, total.imag])


def statistic(waves: Tensor, count: Tensor) -> Tensor:
    """Return the mean of T over directions, from :func:`wave_sums` of ``count`` rows."""
    step = END / (POINTS - 1)
    t = torch.arange(1, POINTS, dtype=torch.float64, device=waves.device) * step
    normal = (-t.square() / 2).exp()
    weights = 2 * step * normal
    weights[-1] /= 2
    real, imaginary = (waves / count.clamp_min(1)).chunk(2)
    off = (real - normal[:, None]).square() + imaginary.square()
    return count * (weights[:, None] * off).sum(0).mean()
