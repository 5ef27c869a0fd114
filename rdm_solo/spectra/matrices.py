"""Second moments of rows, and their eigenvalues as every measure reads them.

Rows are expected as the method compares them: l2-normalised (SimSiam, BYOL) or after a softmax
(SwAV, DINO). Correlation matrices are uncentred second moments; eigenvalues descend.
"""

import torch
from torch import Tensor

from rdm_solo.messages import UserError


def correlation(x: Tensor) -> Tensor:
    """Return the uncentred correlation matrix ``C = E[x x^T]`` in float64 (Section 3).

    Shapes: ``(N, k) -> (k, k)``.

    >>> correlation(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    """
    if x.ndim != 2 or not len(x):
        raise UserError(f"correlation takes a non-empty batch (N, k), got {tuple(x.shape)}.")
    y = x.detach().double()
    return y.mT @ y / len(y)


def low_rank_spectrum(C_h: Tensor, W: Tensor) -> Tensor:
    r"""Return the eigenvalues of logits' correlation :math:`W C_h W^T` without the k x k matrix.

    Logits :math:`W h` before a softmax have a rank of at most b, the width of h. Their eigenvalues
    are those of the b x b matrix :math:`R W^T W R^T` with :math:`C_h = R^T R`.

    Shapes: ``(b, b), (k, b) -> (min(k, b),)``.

    >>> W = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    >>> low_rank_spectrum(torch.diag(torch.tensor([1.0, 4.0])), W)
    tensor([16.,  1.], dtype=torch.float64)
    """
    lam, v = torch.linalg.eigh(symmetric(C_h, "low_rank_spectrum"))
    root = lam.clamp_min(0).sqrt()[:, None] * v.mT
    image = W.double() @ root.mT
    return descending(image.mT @ image)[: min(W.shape)]


def eigenvalues(lam_or_C: Tensor, name: str) -> Tensor:
    """Return non-negative eigenvalues ``(k,)`` of a spectrum or a matrix; NaN if not finite."""
    square = lam_or_C.ndim == 2 and lam_or_C.shape[0] == lam_or_C.shape[1]
    if 0 in lam_or_C.shape or not (square or lam_or_C.ndim == 1):
        raise UserError(
            f"{name} takes eigenvalues (k,) or a square matrix (k, k), got {tuple(lam_or_C.shape)}."
        )
    if not bool(lam_or_C.isfinite().all()):
        return lam_or_C.new_full(lam_or_C.shape[:1], torch.nan, dtype=torch.float64)
    lam = torch.linalg.eigvalsh(symmetric(lam_or_C, name)) if square else lam_or_C.double()
    return lam.clamp_min(0)


def descending(C: Tensor) -> Tensor:
    """Return the eigenvalues of a symmetric matrix, descending and non-negative."""
    lam: Tensor = torch.linalg.eigvalsh(C)
    return lam.flip(0).clamp_min(0)


def symmetric(C: Tensor, name: str) -> Tensor:
    """Return the mean of a matrix and its transpose, or refuse a matrix that is not symmetric.

    They may differ by 1e-5 of the largest entry (half precision: four roundings).
    """
    wide = C.detach().double()
    largest = wide.abs().max()
    share = float((wide / largest - wide.mT / largest).abs().max()) if largest > 0 else 0.0
    if share > max(1e-5, 4 * torch.finfo(C.dtype).eps if C.is_floating_point() else 0.0):
        raise UserError(
            f"{name} takes a symmetric matrix, got one that differs from its transpose by "
            f"{share:.1e} of its largest entry."
        )
    return wide / 2 + wide.mT / 2


def noise_floor(lam: Tensor) -> Tensor:
    """Return the bound of rounding of a float64 matrix's eigenvalues, ``k eps`` of the largest.

    >>> float(noise_floor(torch.tensor([1.0, 1e-20])))
    4.440892098500626e-16
    """
    floor: Tensor = lam.max() * len(lam) * torch.finfo(torch.float64).eps
    return floor


def over_largest(weights: Tensor) -> Tensor:
    """Divide by the largest weight, so that no sum and no square leaves float64's range."""
    largest = weights.max()
    return weights / torch.where(largest > 0, largest, 1.0)


def exponential_entropy(weights: Tensor, eps: float = 0.0) -> Tensor:
    r"""Return :math:`\exp(-\sum p\log p)` of :math:`p = w/\sum w + \epsilon`; 0 if all are zero.

    >>> exponential_entropy(torch.tensor([2.0, 2.0, 0.0]))
    tensor(2.)
    """
    weights = over_largest(weights)
    total = weights.sum()
    p = weights / torch.where(total > 0, total, 1.0) + eps
    return torch.where(total > 0, torch.special.entr(p).sum().exp(), total)  # 0, or NaN
