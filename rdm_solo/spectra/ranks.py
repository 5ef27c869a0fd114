r"""How many directions features fill: measures of their spectrum, and LiDAR, of pairs of views.

Two spectra must not be mixed up. ``effective_rank``, ``rankme``, ``stable_rank`` and
``participation_ratio`` are of the *uncentred* second moment, whose eigenvalues are squares of the
features' singular values (over N). ``nesum`` and ``alpha_req`` are of the *covariance*, so the
features' mean is no direction of theirs.

With ``compatible_with`` they read features and give what another package gives for them
(:mod:`rdm_solo.spectra.other_packages` says where that differs from the definition).
"""

import torch
from torch import Tensor

from rdm_solo.messages import UserError
from rdm_solo.spectra import other_packages
from rdm_solo.spectra.lda import DELTA, EPSILON, check_views, lidar_of_views
from rdm_solo.spectra.matrices import (
    eigenvalues,
    exponential_entropy,
    noise_floor,
    over_largest,
)
from rdm_solo.spectra.other_packages import Package

# Two points are on a line, whatever they are.
FEWEST_POINTS = 3
RANKME_EPSILON = 1e-7


def effective_rank(lam_or_C: Tensor, *, compatible_with: Package | None = None) -> Tensor:
    r"""The effective rank :math:`\exp(-\sum_i q_i \log q_i)`, :math:`q = \lambda/\sum\lambda`.

    Takes the eigenvalues of a correlation matrix, or the matrix. It lies between 1 and k, and is
    0 for the zero matrix, which spans nothing. The eigenvalues are those of C (Zhuo et al., ICLR
    2023, Section 3), not singular values of the features, whose entropy gives another number.

    Negative eigenvalues count as 0: rounding leaves some of any matrix of low rank, and
    :math:`C_+` of finitely many pairs really has some (:func:`ideal_filter`). NaN or infinity
    anywhere gives NaN. A matrix is refused where it differs from its transpose by more than 1e-5 of
    its largest entry (half precision: four roundings); the mean of both is taken.

    Shapes: ``(k,)`` or ``(k, k) -> ()``; with ``compatible_with="monai"`` rows ``(N, k) -> ()``.

    >>> round(float(effective_rank(torch.tensor([1.0, 1.0, 0.0]))), 6)
    2.0
    """
    if compatible_with is not None:
        found: Tensor = other_packages.value("effective_rank", compatible_with, lam_or_C)
        return found
    return exponential_entropy(eigenvalues(lam_or_C, "effective_rank"))


def rankme(
    lam_or_C: Tensor, eps: float | None = None, *, compatible_with: Package | None = None
) -> Tensor:
    r"""RankMe :math:`\exp(-\sum_i p_i \log p_i)`, :math:`p = \sigma/\sum\sigma + \epsilon`.

    The entropy of the features' *singular* values :math:`\sigma = \sqrt{N\lambda}` (Garrido et al.,
    ICML 2023, equation 1). It is another number than :func:`effective_rank`, and never smaller.
    Eigenvalues that are rounding noise count as zero: their square roots would not be negligible.
    The zero matrix gives 0. A flat spectrum gives a little more than k, since :math:`\epsilon` is
    added to shares that sum to 1; it is 1e-7 where none is given. Other packages take none.

    Shapes: ``(k,)`` or ``(k, k) -> ()``; with ``compatible_with`` rows ``(N, k) -> ()``.

    >>> lam = torch.tensor([4.0, 1.0])
    >>> round(float(rankme(lam)), 4), round(float(effective_rank(lam)), 4)
    (1.8899, 1.6494)
    """
    if compatible_with is not None:
        found: Tensor = other_packages.value("rankme", compatible_with, lam_or_C, eps=eps)
        return found
    lam = eigenvalues(lam_or_C, "rankme")
    sigma = torch.where(lam <= noise_floor(lam), 0.0, lam).sqrt()
    return exponential_entropy(sigma, RANKME_EPSILON if eps is None else eps)


def stable_rank(lam_or_C: Tensor) -> Tensor:
    r"""The stable rank :math:`\|Z\|_F^2 / \sigma_1^2 = \sum_i \lambda_i / \lambda_1`.

    Small directions hardly count (Rudelson and Vershynin, J. ACM 2007). The zero matrix gives 0.

    Shapes: ``(k,)`` or ``(k, k) -> ()``.

    >>> stable_rank(torch.tensor([4.0, 2.0, 2.0]))
    tensor(2., dtype=torch.float64)
    """
    return over_largest(eigenvalues(lam_or_C, "stable_rank")).sum()


def participation_ratio(lam_or_C: Tensor) -> Tensor:
    r"""The participation ratio :math:`(\sum_i \lambda_i)^2 / \sum_i \lambda_i^2`.

    The number of equal eigenvalues that has this ratio (Gao et al., bioRxiv 214262, 2017; there of
    the covariance). The zero matrix gives 0.

    Shapes: ``(k,)`` or ``(k, k) -> ()``.

    >>> participation_ratio(torch.tensor([1.0, 1.0, 0.0]))
    tensor(2., dtype=torch.float64)
    """
    lam = over_largest(eigenvalues(lam_or_C, "participation_ratio"))
    squares = lam.square().sum()
    return lam.sum().square() / torch.where(squares == 0, 1.0, squares)


def nesum(lam: Tensor) -> Tensor:
    r"""NESum :math:`\sum_i \lambda_i / \lambda_1` of the *covariance's* eigenvalues.

    From He and Ozay, "Exploring the gap between collapsed and whitened features in self-supervised
    learning", ICML 2022. It is :func:`stable_rank` of features whose mean was taken away.

    Shapes: ``(k,) -> ()``.

    >>> nesum(torch.tensor([4.0, 2.0, 2.0]))
    tensor(2., dtype=torch.float64)
    """
    return over_largest(_of_covariance(lam, "nesum")).sum()


def alpha_req(
    lam: Tensor, first: int = 11, last: int = 100, *, compatible_with: Package | None = None
) -> tuple[Tensor, Tensor]:
    r"""The exponent of a power law :math:`\lambda_i \approx e^b i^{-\alpha}`, and how well it fits.

    ``alpha`` is that of the least squares of :math:`\log\lambda_i` on :math:`\log i` with weights
    1/i, from the eigenvalue number ``first`` to number ``last`` (counted from 1) of the
    *covariance*, descending (Agrawal et al., NeurIPS 2022; the fit is that of Stringer et al.,
    Nature 2019). ``r2`` is :math:`1 - \sum(y-\hat y)^2/\sum(y-\bar y)^2` of the logarithms over the
    same numbers: where it is far below 1, there is no power law, and ``alpha`` means nothing.

    Eigenvalues of rounding noise end the range. Fewer than three numbers give NaN.

    Shapes: ``(k,) -> (), ()``; with ``compatible_with="reptrix"`` rows ``(N, k) -> (), ()``.

    >>> alpha, r2 = alpha_req(torch.arange(1, 129).double() ** -1.5)
    >>> round(float(alpha), 6), round(float(r2), 6)
    (1.5, 1.0)
    """
    if compatible_with is not None:
        alpha, r2 = other_packages.value("alpha_req", compatible_with, lam, first=first, last=last)
        return alpha, r2
    if not 1 <= first < last:
        raise UserError(f"alpha_req takes 1 <= first < last, got {first} and {last}.")
    lam = _of_covariance(lam, "alpha_req")
    nothing = lam.new_tensor(torch.nan)
    if not bool(lam.isfinite().all()):
        return nothing, nothing
    end = min(last, int((lam > noise_floor(lam)).sum()))
    if end - first + 1 < FEWEST_POINTS:
        return nothing, nothing
    return power_law(lam[first - 1 : end], first)


def power_law(lam: Tensor, first: int) -> tuple[Tensor, Tensor]:
    r"""The weighted fit of :func:`alpha_req` to eigenvalues that begin with number ``first``.

    >>> alpha, r2 = power_law(torch.tensor([1.0, 0.25, 1 / 9]).double(), 1)
    >>> round(float(alpha), 6)
    2.0
    """
    i = torch.arange(first, first + len(lam), dtype=torch.float64, device=lam.device)
    x, y, weights = i.log(), lam.log(), 1 / i
    weights = weights / weights.sum()
    around_x, around_y = x - (weights * x).sum(), y - (weights * y).sum()
    slope = (weights * around_x * around_y).sum() / (weights * around_x.square()).sum()
    missed = (around_y - slope * around_x).square().sum()
    total = (y - y.mean()).square().sum()
    flat = total <= 1e-24 * y.square().sum().clamp_min(1.0)  # rounding alone: alpha = 0 is the fit
    return -slope, torch.where(flat, 1.0, 1 - missed / torch.where(flat, 1.0, total))


def lidar(
    views: Tensor,
    delta: float | None = None,
    eps: float | None = None,
    *,
    compatible_with: Package | None = None,
) -> Tensor:
    r"""LiDAR, the rank of linear discriminant analysis with one class for each sample.

    :math:`\exp(-\sum_i p_i\log p_i)`, :math:`p = (\lambda + \epsilon)/\sum(\lambda + \epsilon)`,
    of the eigenvalues of :math:`\Sigma_w^{-1/2} \Sigma_b \Sigma_w^{-1/2}`; with
    the views' means :math:`\mu_i` and their mean :math:`\mu`

    .. math::
        \Sigma_b = \frac{\sum_i (\mu_i-\mu)(\mu_i-\mu)^T}{n-1}, \qquad
        \Sigma_w = \frac{\sum_{ij} (x_{ij}-\mu_i)(x_{ij}-\mu_i)^T}{n(q-1)} + \delta I

    (Thilak et al., ICLR 2024). Directions in which the views of a sample differ as much as samples
    do count little. :math:`\delta` has the scale of the features: on rows of length 1 it is not
    small where k is above a thousand. Where samples differ by so little that :math:`\epsilon`
    outweighs all eigenvalues, the definition would give k; this gives 0, since nothing is spanned.
    Where none are given, :math:`\delta` is 1e-4 and :math:`\epsilon` 1e-8; reptrix takes neither.

    Shapes: ``(n, q, k) -> ()``, q views of each of n samples.

    >>> views = torch.tensor([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2, [[-1.0, -1.0]] * 2])
    >>> round(float(lidar(views)), 4)
    1.7548
    """
    check_views(views)
    if compatible_with is not None:
        found: Tensor = other_packages.value("lidar", compatible_with, views, delta=delta, eps=eps)
        return found
    if not bool(views.isfinite().all()):
        return views.new_tensor(torch.nan, dtype=torch.float64)
    return lidar_of_views(
        views.detach().double(),
        DELTA if delta is None else delta,
        EPSILON if eps is None else eps,
    )


def _of_covariance(lam: Tensor, name: str) -> Tensor:
    if lam.ndim != 1 or not len(lam):
        raise UserError(
            f"{name} takes the covariance's eigenvalues (k,), descending, got {tuple(lam.shape)}."
        )
    lam = eigenvalues(lam, name)
    if bool((lam.diff() > 1e-9 * lam.max()).any()):
        raise UserError(f"{name} takes eigenvalues in descending order; these are not.")
    return lam
