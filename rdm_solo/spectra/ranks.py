r"""Measures of how many directions features fill, each of one spectrum.

Two spectra must not be confused. ``effective_rank``, ``rankme``, ``stable_rank`` and
``participation_ratio`` read the *uncentred* second moment, whose eigenvalues are the features'
squared singular values over N. ``nesum`` and ``alpha_req`` read the *covariance*, in which the
features' mean is not a direction.
"""

import torch
from torch import Tensor

from rdm_solo.messages import UserError
from rdm_solo.spectra.matrices import eigenvalues, exponential_entropy, noise_floor, over_largest


def effective_rank(lam_or_C: Tensor) -> Tensor:
    r"""Return the effective rank :math:`\exp(-\sum_i q_i \log q_i)` (Zhuo et al., Section 3).

    Takes the eigenvalues of a correlation matrix, or the matrix; :math:`q = \lambda/\sum\lambda`.
    The rank lies between 1 and k, and is 0 for the zero matrix. Negative eigenvalues count as 0:
    rounding leaves some in any matrix of low rank, and :math:`C_+` of finitely many pairs really
    has some. NaN or infinity gives NaN. A matrix that is not symmetric to rounding is refused.

    Shapes: ``(k,)`` or ``(k, k) -> ()``.

    >>> round(float(effective_rank(torch.tensor([1.0, 1.0, 0.0]))), 6)
    2.0
    """
    return exponential_entropy(eigenvalues(lam_or_C, "effective_rank"))


def rankme(lam_or_C: Tensor, eps: float = 1e-7) -> Tensor:
    r"""Return RankMe :math:`\exp(-\sum_i p_i \log p_i)`, :math:`p = \sigma/\sum\sigma + \epsilon`.

    The entropy is that of the features' *singular* values :math:`\sigma = \sqrt{N\lambda}` (Garrido
    et al., ICML 2023, equation 1), so it is never below :func:`effective_rank`. Eigenvalues of
    rounding noise count as zero, because their square roots would not be negligible. The zero
    matrix gives 0, and a flat spectrum slightly more than k.

    Shapes: ``(k,)`` or ``(k, k) -> ()``.

    >>> lam = torch.tensor([4.0, 1.0])
    >>> round(float(rankme(lam)), 4), round(float(effective_rank(lam)), 4)
    (1.8899, 1.6494)
    """
    lam = eigenvalues(lam_or_C, "rankme")
    sigma = torch.where(lam <= noise_floor(lam), 0.0, lam).sqrt()
    return exponential_entropy(sigma, eps)


def stable_rank(lam_or_C: Tensor) -> Tensor:
    r"""Return the stable rank :math:`\|Z\|_F^2 / \sigma_1^2 = \sum_i \lambda_i / \lambda_1`.

    Small directions hardly count (Rudelson and Vershynin, J. ACM 2007). The zero matrix gives 0.

    Shapes: ``(k,)`` or ``(k, k) -> ()``.

    >>> stable_rank(torch.tensor([4.0, 2.0, 2.0]))
    tensor(2., dtype=torch.float64)
    """
    return over_largest(eigenvalues(lam_or_C, "stable_rank")).sum()


def participation_ratio(lam_or_C: Tensor) -> Tensor:
    r"""Return the participation ratio :math:`(\sum_i \lambda_i)^2 / \sum_i \lambda_i^2`.

    That is the number of equal eigenvalues with the same ratio (Gao et al., bioRxiv 214262, 2017;
    there of the covariance). The zero matrix gives 0.

    Shapes: ``(k,)`` or ``(k, k) -> ()``.

    >>> participation_ratio(torch.tensor([1.0, 1.0, 0.0]))
    tensor(2., dtype=torch.float64)
    """
    lam = over_largest(eigenvalues(lam_or_C, "participation_ratio"))
    squares = lam.square().sum()
    return lam.sum().square() / torch.where(squares == 0, 1.0, squares)


def nesum(lam: Tensor) -> Tensor:
    r"""Return NESum :math:`\sum_i \lambda_i / \lambda_1` of the *covariance's* eigenvalues.

    It is the :func:`stable_rank` of centred features (He and Ozay, "Exploring the gap between
    collapsed and whitened features in self-supervised learning", ICML 2022).

    Shapes: ``(k,) -> ()``.

    >>> nesum(torch.tensor([4.0, 2.0, 2.0]))
    tensor(2., dtype=torch.float64)
    """
    return over_largest(_of_covariance(lam, "nesum")).sum()


def alpha_req(lam: Tensor, first: int = 11, last: int = 100) -> tuple[Tensor, Tensor]:
    r"""Return the exponent of a power law :math:`\lambda_i \approx e^b i^{-\alpha}`, and its fit.

    ``alpha`` comes from the least squares of :math:`\log\lambda_i` on :math:`\log i` with weights
    1/i, over the eigenvalues number ``first`` to ``last`` (counted from 1) of the *covariance*,
    descending (Agrawal et al., NeurIPS 2022; the fit is that of Stringer et al., Nature 2019).
    ``r2`` is :math:`1 - \sum(y-\hat y)^2/\sum(y-\bar y)^2` of the logarithms. Where it is far below
    1, ``alpha`` means nothing. Rounding noise ends the range; fewer than three points give NaN.

    Shapes: ``(k,) -> (), ()``.

    >>> alpha, r2 = alpha_req(torch.arange(1, 129).double() ** -1.5)
    >>> round(float(alpha), 6), round(float(r2), 6)
    (1.5, 1.0)
    """
    if not 1 <= first < last:
        raise UserError(f"alpha_req takes 1 <= first < last, got {first} and {last}.")
    lam = _of_covariance(lam, "alpha_req")
    end = min(last, int((lam > noise_floor(lam)).sum()))  # 0 where lam is NaN
    if end - first + 1 < 3:  # two points always lie on a line
        return lam.new_tensor(torch.nan), lam.new_tensor(torch.nan)
    return _power_law(lam[first - 1 : end], first)


def _power_law(lam: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Fit :func:`alpha_req` to eigenvalues whose numbers begin with ``first``."""
    i = torch.arange(first, first + len(lam), dtype=torch.float64, device=lam.device)
    x, y, weights = i.log(), lam.log(), 1 / i
    weights = weights / weights.sum()
    around_x, around_y = x - (weights * x).sum(), y - (weights * y).sum()
    slope = (weights * around_x * around_y).sum() / (weights * around_x.square()).sum()
    missed = (around_y - slope * around_x).square().sum()
    total = (y - y.mean()).square().sum()
    flat = total <= 1e-24 * y.square().sum().clamp_min(1.0)  # rounding alone: alpha = 0 is the fit
    return -slope, torch.where(flat, 1.0, 1 - missed / torch.where(flat, 1.0, total))


def _of_covariance(lam: Tensor, name: str) -> Tensor:
    if lam.ndim != 1 or not len(lam):
        raise UserError(
            f"{name} takes the covariance's eigenvalues (k,), descending, got {tuple(lam.shape)}."
        )
    lam = eigenvalues(lam, name)
    if bool((lam.diff() > 1e-9 * lam.max()).any()):
        raise UserError(f"{name} takes eigenvalues in descending order; these are not.")
    return lam
