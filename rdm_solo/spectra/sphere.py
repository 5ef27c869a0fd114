"""Measures of unit rows: positives' distance and uniformity (Wang and Isola, ICML 2020)."""

import math

import torch
from torch import Tensor

from rdm_solo.devices import product_dtype
from rdm_solo.messages import UserError

# Rows whose distances to all others are computed at a time.
BLOCK = 512


def positive_distance(x: Tensor, y: Tensor) -> Tensor:
    r"""Return the alignment loss :math:`\frac1N\sum_i\|x_i - y_i\|^2` of unit rows and positives.

    It lies between 0, where both views of each sample agree, and 4. It is unrelated to the
    :func:`alignment` of eigenspaces.

    Shapes: ``(N, k), (N, k) -> ()``.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> float(positive_distance(x, x.flip(0)))
    2.0
    """
    if x.shape != y.shape:
        raise UserError(f"rows and positives differ in shape: {tuple(x.shape)}, {tuple(y.shape)}.")
    _check_unit(x)
    _check_unit(y)
    return (x.detach().double() - y.detach().double()).square().sum(1).mean()


def uniformity(x: Tensor, t: float = 2) -> Tensor:
    r"""Return the uniformity loss :math:`\log\frac{1}{N(N-1)}\sum_{i\ne j} e^{-t\|x_i-x_j\|^2}`.

    It is 0 where all unit rows are equal, and lower the more evenly they fill the sphere;
    :math:`-2t` is the limit for many dimensions. Time grows with N², memory does not. Squared
    distances are computed in float64, or in float32 (to about 1e-6) where the rows are float32 and
    torch multiplies them with all digits.

    Shapes: ``(N, k) -> ()``.

    >>> float(uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])))
    -8.0
    """
    _check_unit(x)
    wide = product_dtype(x.dtype) if x.dtype == torch.float32 else torch.float64
    x = x.detach().to(wide)
    n = len(x)
    sums = []
    for start in range(0, n, BLOCK):
        rows = x[start : start + BLOCK]
        # Each pair once: within the block, and with the rows behind it.
        within = torch.ones(len(rows), len(rows), dtype=torch.bool, device=x.device).triu(1)
        exponents = -t * _squared_distances(rows, x[start:])
        exponents[:, : len(rows)].masked_fill_(~within, -math.inf)
        sums.append(exponents.flatten().logsumexp(0).double())
    return torch.stack(sums).logsumexp(0) - math.log(n * (n - 1) / 2)


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    lengths = x.square().sum(1)[:, None] + y.square().sum(1)
    with torch.autocast(x.device.type, enabled=False):
        return torch.addmm(lengths, x, y.mT, alpha=-2).clamp_min_(0)


def _check_unit(x: Tensor) -> None:
    off = float((torch.linalg.vector_norm(x.detach().double(), dim=1) - 1).abs().max())
    if off > 1e-2:  # half precision is off by a thousandth
        raise UserError(
            f"rows (N, k) must have length 1, got one whose length is off by {off:.2g}. "
            "Normalise them first: torch.nn.functional.normalize(x, dim=1)."
        )
