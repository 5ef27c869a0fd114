r"""Second moments of rows, their eigenvalues, and measures of rank.

Rows are expected as the method compares them: l2-normalised (SimSiam, BYOL) or after a softmax
(SwAV, DINO). Eigenvalues descend. Two spectra must not be confused: ``effective_rank``, ``rankme``,
``stable_rank`` and ``participation_ratio`` read the *uncentred* second moment, whose eigenvalues
are the features' squared singular values over N. ``nesum`` and ``alpha_req`` read the *covariance*,
which excludes the features' mean.
"""

import torch
from torch import Tensor

from rdm_solo.ground.errors import UserError

# Relative rounding error of a float64 sum over the rows of an epoch (at most N eps).
ROUNDING = 1e-12


def correlation(x: Tensor) -> Tensor:
    """Return the uncentred correlation matrix ``C = E[x x^T]`` in float64 (Section 3).

    Shapes: ``(N, k) -> (k, k)``.

    >>> correlation(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    """
    y = x.detach().double()
    return y.mT @ y / len(y)


def eigenvalues(lam_or_C: Tensor) -> Tensor:
    """Return non-negative eigenvalues ``(k,)`` of a spectrum or matrix; NaN if it is not finite."""
    lam = lam_or_C.double()
    if not bool(lam.isfinite().all()):
        return lam.new_full(lam.shape[:1], torch.nan)
    if lam.ndim == 2:
        lam = torch.linalg.eigvalsh(symmetric(lam))
    return lam.clamp_min(0)


def descending(C: Tensor) -> Tensor:
    """Return the eigenvalues of a symmetric matrix, descending and non-negative."""
    lam: Tensor = torch.linalg.eigvalsh(C).flip(0)
    return lam.clamp_min(0)


def descending_eigenvectors(C: Tensor) -> tuple[Tensor, Tensor]:
    """Return :func:`descending` eigenvalues and their eigenvectors, one a column."""
    lam, u = torch.linalg.eigh(C)
    return lam.flip(0).clamp_min(0), u.flip(1)


def symmetric(C: Tensor) -> Tensor:
    """Return the mean of a matrix and its transpose in float64.

    A difference of 1e-5 of the largest entry is allowed as rounding; a larger one is an error.
    """
    C = C.detach().double()
    differences = C - C.mT
    difference = float(differences.abs().max())
    largest = float(C.abs().max())
    if difference > 1e-5 * largest:
        raise UserError(
            "a correlation matrix must be symmetric, got one that differs from its transpose by "
            f"{difference / largest:.1e} of its largest entry."
        )
    return C / 2 + C.mT / 2


def noise_floor(lam: Tensor) -> Tensor:
    """Return the rounding error of a float64 matrix's eigenvalues, ``k eps`` times the largest."""
    eps = torch.finfo(torch.float64).eps
    return lam.max() * len(lam) * eps


def over_largest(weights: Tensor) -> Tensor:
    """Divide by the largest weight, so that sums and squares do not overflow."""
    largest = weights.max()
    return weights / torch.where(largest > 0, largest, 1.0)


def exponential_entropy(weights: Tensor, eps: float = 0.0) -> Tensor:
    r"""Return :math:`\exp(-\sum p\log p)` of :math:`p = w/\sum w + \epsilon`; 0 if w = 0."""
    weights = over_largest(weights)
    total = weights.sum()
    is_positive = total > 0
    p = weights / torch.where(is_positive, total, 1.0) + eps
    entropy = torch.special.entr(p).sum()
    return torch.where(is_positive, entropy.exp(), total)  # total is 0 or NaN


def effective_rank(lam_or_C: Tensor) -> Tensor:
    r"""Return the effective rank :math:`\exp(-\sum_i q_i \log q_i)` (Zhuo et al., Section 3).

    The input is a correlation matrix or its eigenvalues, and :math:`q = \lambda/\sum\lambda`. The
    rank lies between 1 and k, and is 0 for the zero matrix. Negative eigenvalues count as 0: they
    are rounding errors of a matrix of low rank, or belong to :math:`C_+` of finitely many pairs.
    NaN or infinity gives NaN. A matrix must be symmetric up to rounding.

    Shapes: ``(k,)`` or ``(k, k) -> ()``.

    >>> round(float(effective_rank(torch.tensor([1.0, 1.0, 0.0]))), 6)
    2.0
    """
    return exponential_entropy(eigenvalues(lam_or_C))


def rankme(lam_or_C: Tensor, eps: float = 1e-7, rows: int | None = None) -> Tensor:
    r"""Return RankMe :math:`\exp(-\sum_i p_i \log p_i)`, :math:`p = \sigma/\sum\sigma + \epsilon`.

    It is computed from the *singular* values :math:`\sigma = \sqrt{N\lambda}` of the features
    (Garrido et al., ICML 2023, equation 1), so it is never below :func:`effective_rank`. Rounding
    noise in the eigenvalues counts as zero, because its square roots would not be negligible. The
    sum has min(N, k) terms, as many as there are singular values: pass ``rows``, the number N of
    features, if it may be below k. The zero matrix gives 0, and a flat spectrum slightly more than
    k.

    Shapes: ``(k,)`` or ``(k, k) -> ()``.

    >>> lam = torch.tensor([4.0, 1.0])
    >>> round(float(rankme(lam)), 4), round(float(effective_rank(lam)), 4)
    (1.8899, 1.6494)
    """
    lam = eigenvalues(lam_or_C)
    is_noise = lam <= noise_floor(lam)
    lam = lam.masked_fill(is_noise, 0.0)
    sigma = lam.sqrt()
    if rows is not None:
        sigma = sigma.sort(descending=True).values[:rows]
    return exponential_entropy(sigma, eps)


def stable_rank(lam_or_C: Tensor) -> Tensor:
    r"""Return the stable rank :math:`\|Z\|_F^2 / \sigma_1^2 = \sum_i \lambda_i / \lambda_1`.

    Small directions hardly count (Rudelson and Vershynin, J. ACM 2007). The zero matrix gives 0.

    Shapes: ``(k,)`` or ``(k, k) -> ()``.

    >>> stable_rank(torch.tensor([4.0, 2.0, 2.0]))
    tensor(2., dtype=torch.float64)
    """
    lam = over_largest(eigenvalues(lam_or_C))
    return lam.sum()


def participation_ratio(lam_or_C: Tensor) -> Tensor:
    r"""Return the participation ratio :math:`(\sum_i \lambda_i)^2 / \sum_i \lambda_i^2`.

    For n equal eigenvalues it is n (Gao et al., bioRxiv 214262, 2017, who define it for the
    covariance). The zero matrix gives 0.

    Shapes: ``(k,)`` or ``(k, k) -> ()``.

    >>> participation_ratio(torch.tensor([1.0, 1.0, 0.0]))
    tensor(2., dtype=torch.float64)
    """
    lam = eigenvalues(lam_or_C)
    lam = over_largest(lam)
    squares = lam.square().sum()
    squared_sum = lam.sum().square()
    return squared_sum / torch.where(squares == 0, 1.0, squares)


def nesum(lam: Tensor) -> Tensor:
    r"""Return NESum :math:`\sum_i \lambda_i / \lambda_1` of the *covariance's* eigenvalues.

    It is the :func:`stable_rank` of centred features (He and Ozay, "Exploring the gap between
    collapsed and whitened features in self-supervised learning", ICML 2022).

    Shapes: ``(k,) -> ()``.

    >>> nesum(torch.tensor([4.0, 2.0, 2.0]))
    tensor(2., dtype=torch.float64)
    """
    lam = over_largest(_of_covariance(lam))
    return lam.sum()


def alpha_req(lam: Tensor, first: int = 11, last: int = 100) -> tuple[Tensor, Tensor]:
    r"""Return ``alpha`` and ``r2`` of a power law :math:`\lambda_i \approx e^b i^{-\alpha}`.

    The fit is a weighted least-squares regression of :math:`\log\lambda_i` on :math:`\log i` with
    weights 1/i (Agrawal et al., NeurIPS 2022, after Stringer et al., Nature 2019). It uses the
    descending eigenvalues ``first`` to ``last`` (counted from 1) of the *covariance*. The authors'
    library has these defaults; their training script fits 4 to 100. Do not compare the two: for
    SimSiam with sigma^-0.5 on the digits (k = 32), alpha is 1.55 with ``first=11`` and 0.76 with
    ``first=4``. ``r2`` is :math:`1 - \sum(y-\hat y)^2/\sum(y-\bar y)^2` with the logarithms y. If
    it is far below 1, ``alpha`` is meaningless. Rounding noise is excluded; fewer than three points
    give NaN.

    Shapes: ``(k,) -> (), ()``.

    >>> alpha, r2 = alpha_req(torch.arange(1, 129).double() ** -1.5)
    >>> round(float(alpha), 6), round(float(r2), 6)
    (1.5, 1.0)
    """
    lam = _of_covariance(lam)
    # Noise is excluded. If lam is NaN, so is its sum, and no eigenvalue remains.
    is_signal = lam > ROUNDING * lam.sum()
    end = min(last, int(is_signal.sum()))
    if end - first + 1 < 3:  # two points always lie on a line
        nan = lam.new_tensor(torch.nan)
        return nan, nan
    i = torch.arange(first, end + 1).to(lam)
    weights = 1 / i
    weights = weights / weights.sum()
    # Weighted least squares of y = log lambda on x = log i, both around their weighted means.
    x = i.log()
    y = lam[first - 1 : end].log()
    centred_x = x - (weights * x).sum()
    centred_y = y - (weights * y).sum()
    covariance = (weights * centred_x * centred_y).sum()
    variance = (weights * centred_x.square()).sum()
    slope = covariance / variance
    residuals = centred_y - slope * centred_x
    deviations = y - y.mean()
    unexplained = residuals.square().sum()
    r2 = 1 - unexplained / deviations.square().sum()
    return -slope, r2


def _of_covariance(lam: Tensor) -> Tensor:
    lam = eigenvalues(lam)
    rises = lam.diff() > 1e-9 * lam.max()
    if bool(rises.any()):
        raise UserError("expected eigenvalues in descending order, got another order.")
    return lam
