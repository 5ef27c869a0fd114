"""Second moments of rows, and their eigenvalues as every measure reads them.

Rows are expected as the method compares them: l2-normalised (SimSiam, BYOL) or softmaxed (SwAV,
DINO). Correlation matrices are uncentred second moments; eigenvalues descend.
"""

import torch
from torch import Tensor

from rdm_solo.messages import UserError


def correlation(x: Tensor) -> Tensor:
    """The uncentred correlation matrix ``C = E[x x^T]`` in float64 (Section 3).

    Shapes: ``(N, k) -> (k, k)``.

    >>> correlation(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    """
    if x.ndim != 2 or len(x) == 0:
        raise UserError(
            f"correlation takes a non-empty batch of shape (N, k), got {tuple(x.shape)}."
        )
    y = x.detach().double()
    return y.mT @ y / len(y)


def eigenvalues(lam_or_C: Tensor, name: str) -> Tensor:
    square = lam_or_C.ndim == 2 and lam_or_C.shape[0] == lam_or_C.shape[1]
    if len(lam_or_C.shape) == 0 or 0 in lam_or_C.shape or not (square or lam_or_C.ndim == 1):
        raise UserError(
            f"{name} takes eigenvalues (k,) or a square matrix (k, k), got {tuple(lam_or_C.shape)}."
        )
    if not bool(lam_or_C.isfinite().all()):
        return lam_or_C.new_full(lam_or_C.shape[:1], torch.nan, dtype=torch.float64)
    lam = torch.linalg.eigvalsh(symmetric(lam_or_C, name)) if square else lam_or_C.double()
    return lam.clamp_min(0)


def symmetric(C: Tensor, name: str) -> Tensor:
    """The matrix in float64, symmetric to the last digit; one that is not to rounding is refused.

    Eigenvalue routines read one triangle, and would take any matrix.

    >>> symmetric(torch.tensor([[1.0, 0.5], [0.500001, 1.0]]), "C").round(decimals=7)
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]], dtype=torch.float64)
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
    """Below this, an eigenvalue of a float64 matrix is rounding: ``k eps`` times the largest.

    >>> float(noise_floor(torch.tensor([1.0, 1e-20])))
    4.440892098500626e-16
    """
    floor: Tensor = lam.max() * len(lam) * torch.finfo(torch.float64).eps
    return floor


def low_rank_spectrum(C_h: Tensor, W: Tensor) -> Tensor:
    r"""The eigenvalues of logits' correlation :math:`W C_h W^T`, without that k x k matrix.

    Logits :math:`W h` before a softmax have rank b at most, the width of h: their eigenvalues are
    those of :math:`R W^T W R^T` with :math:`C_h = R^T R`, b x b, and zeros, which are left out.

    Shapes: ``(b, b), (k, b) -> (min(k, b),)``.

    >>> W = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    >>> low_rank_spectrum(torch.diag(torch.tensor([1.0, 4.0])), W)
    tensor([16.,  1.], dtype=torch.float64)
    """
    if W.ndim != 2 or C_h.shape != (W.shape[1], W.shape[1]):
        raise UserError(
            f"low_rank_spectrum takes C_h (b, b) and W (k, b), "
            f"got {tuple(C_h.shape)} and {tuple(W.shape)}."
        )
    lam, v = torch.linalg.eigh(symmetric(C_h, "low_rank_spectrum"))
    root = lam.clamp_min(0).sqrt()[:, None] * v.mT
    image = W.double() @ root.mT
    found: Tensor = torch.linalg.eigvalsh(image.mT @ image)
    return found.flip(0).clamp_min(0)[: min(W.shape)]


def over_largest(weights: Tensor) -> Tensor:
    """Over the largest, so that no sum and no square leaves float64's range.

    >>> over_largest(torch.tensor([4.0, 1.0]))
    tensor([1.0000, 0.2500])
    """
    largest = weights.max()
    return weights / torch.where(largest > 0, largest, 1.0)


def exponential_entropy(weights: Tensor, eps: float = 0.0) -> Tensor:
    r""":math:`\exp(-\sum p\log p)` of shares :math:`p = w/\sum w + \epsilon`; 0 if all are zero.

    >>> exponential_entropy(torch.tensor([2.0, 2.0, 0.0]))
    tensor(2.)
    """
    weights = over_largest(weights)
    total = weights.sum()
    p = weights / torch.where(total > 0, total, 1.0) + eps
    return torch.where(total > 0, torch.special.entr(p).sum().exp(), total)  # 0, or NaN


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 where torch multiplies float32 matrices with fewer digits (TF32, bfloat16).

    ``torch.set_float32_matmul_precision`` and torch.backends can say so at any time, and for all
    threads: changing that for a product would change it for theirs. Autocast is another matter: a
    product switches it off for itself.

    >>> product_dtype(torch.float64)
    torch.float64
    """
    multiply = (getattr(torch.backends, name) for name in ("mkldnn", "cuda"))
    told = [getattr(getattr(m, "matmul", None), "fp32_precision", None) for m in multiply]
    if None in told:  # torch 2.8
        told = [{"highest": "ieee"}.get(torch.get_float32_matmul_precision(), "tf32")]
    return dtype if set(told) <= {"ieee", "none"} else torch.float64
