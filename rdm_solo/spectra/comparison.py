"""Comparisons of two branches' spectra: filter curves, alignment of eigenspaces, rank correlation.

Equations are those of Zhuo et al., ICLR 2023.
"""

import torch
from torch import Tensor

from rdm_solo.spectra.ranks import descending_eigenvectors, noise_floor, symmetric


def filter_curve(lam_p: Tensor, lam_z: Tensor) -> Tensor:
    r"""Return the online filter :math:`g_i = \sqrt{\lambda^p_i / \lambda^z_i}` (Lemma 2).

    Eigenvalues are paired by rank. The curve is NaN where the target's eigenvalue is rounding
    noise.

    Shapes: ``(k,), (k,) -> (k,)``.

    >>> filter_curve(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 1.0]))
    tensor([2., 1.], dtype=torch.float64)
    """
    lam_p = lam_p.double().clamp_min(0)
    lam_z = lam_z.double().clamp_min(0)
    lam_z = _nan_if_noise(lam_z)
    # Take roots first, because the ratio of two eigenvalues may be out of float64's range.
    return lam_p.sqrt() / lam_z.sqrt()


def _nan_if_noise(lam: Tensor) -> Tensor:
    return lam.where(lam > noise_floor(lam), torch.nan)


def ideal_filter(lam_plus: Tensor, lam_z: Tensor, weight_decay: float = 0.0) -> Tensor:
    r"""Return the gain :math:`\omega_i = \lambda^+_i / (\lambda^z_i + \eta)` of the best predictor.

    Theorem 2 has :math:`\eta = 0` and shared eigenvectors, so that :math:`\omega \in [0, 1]`. By
    Lemma 3 the bounds also hold for sorted eigenvalues without shared eigenvectors. Negative
    eigenvalues of :math:`C_+` (of finite samples) count as 0. Rounding noise in the target has the
    gain NaN. The gain is low-pass only if augmentations disturb weak directions more than strong.

    Shapes: ``(k,), (k,) -> (k,)``.

    >>> ideal_filter(torch.tensor([3.0, 0.5]), torch.tensor([4.0, 2.0]))
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    lam_plus = lam_plus.double().clamp_min(0)
    lam_z = _nan_if_noise(lam_z.double())
    return lam_plus / (lam_z + weight_decay)


def leading(lam: Tensor) -> int:
    """Return how many leading eigenvalues are needed for 99.99 % of the sum (Appendix B.3).

    >>> leading(torch.tensor([0.9, 0.0999, 0.0001, 0.0]))
    2
    """
    # On the CPU, because with deterministic algorithms a GPU refuses a cumulative sum of floats.
    lam = lam.cpu().double().clamp_min(0)
    # The tolerance makes the count independent of the rounding of the sum.
    share = 0.9999 - 1e-9
    is_too_few = lam.cumsum(0) < share * lam.sum()
    return int(is_too_few.sum()) + 1


def alignment(C_p: Tensor, C_z: Tensor, m: int | None = None, weighted: bool = False) -> Tensor:
    r"""Return the eigenspace alignment :math:`\frac1m\sum_i \cos(u_i, C_p u_i)`.

    :math:`u_i` are the first ``m`` eigenvectors of :math:`C_z`, by default as many as have 99.99 %
    of the eigenvalues' sum. The paper uses 512, and 128 for BYOL (Appendix B.3). ``weighted`` uses
    eigenvalues as weights, so that many tiny directions do not dominate.

    Shapes: ``(k, k), (k, k) -> ()``.

    >>> C = torch.diag(torch.tensor([3.0, 1.0]))
    >>> alignment(C @ C, C)
    tensor(1., dtype=torch.float64)
    """
    C_p = symmetric(C_p)
    C_z = symmetric(C_z)
    lam, u = descending_eigenvectors(C_z)
    if m is None:
        m = leading(lam)
    _, cosines = energy_and_cosine(C_p, u)
    return mean_cosine(cosines, lam, m, weighted)


def energy_and_cosine(C: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`u_i^T C u_i` and :math:`\cos(u_i, C u_i)` for the columns :math:`u_i`."""
    image = C @ u
    energy = (u * image).sum(0)
    norm = image.norm(dim=0)
    return energy, cosine(energy, norm)


def cosine(energy: Tensor, norm: Tensor) -> Tensor:
    r"""Return :math:`u_i^T C u_i / \|C u_i\|`, which is 0 if C maps :math:`u_i` to 0."""
    return energy / torch.where(norm > 0, norm, 1.0)


def mean_cosine(cosines: Tensor, lam: Tensor, m: int, weighted: bool) -> Tensor:
    """Return the mean of the first m cosines, weighted by the eigenvalues or not."""
    lam = lam[:m]
    weights = torch.ones_like(lam)
    if weighted and lam.sum() > 0:
        weights = lam
    weighted_cosines = cosines[:m] * weights
    return weighted_cosines.sum() / weights.sum()


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Return Spearman's rank correlation of two vectors; ties share their mean rank.

    It is 0 if either vector is constant up to rounding. Shapes: ``(k,), (k,) -> ()``.

    >>> spearman(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([9.0, 4.0, 1.0]))
    tensor(1., dtype=torch.float64)
    """
    ranks = []
    for vector in (a, b):
        vector = vector.double()
        if len(vector) < 2 or vector.max() - vector.min() <= 1e-6 * vector.abs().max():
            return vector.new_zeros(())
        _, inverse, counts = torch.unique(vector, return_inverse=True, return_counts=True)
        last_ranks = counts.cumsum(0).double()
        mean_ranks = last_ranks - (counts - 1) / 2
        ranks.append(mean_ranks[inverse])
    both = torch.stack(ranks)
    return torch.corrcoef(both)[0, 1]


def monotonicity(curve: Tensor, lam: Tensor) -> Tensor:
    """Return how steadily a filter curve rises with lambda: 1 if low-pass, -1 if high-pass.

    This is Spearman's rank correlation, divided by the largest absolute value that the ties allow.
    A filter that maps weak directions to zero, such as a predictor with a bottleneck, gives them
    equal gains. Its correlation would stay below 1 although no direction is out of order. NaN is
    left out. Shapes: ``(k,), (k,) -> ()``.

    >>> monotonicity(torch.tensor([3.0, 2.0, 0.0, 0.0]), torch.tensor([9.0, 4.0, 2.0, 1.0]))
    tensor(1., dtype=torch.float64)
    """
    is_finite = curve.isfinite()
    curve = curve[is_finite]
    lam = lam[is_finite]
    correlation = spearman(curve, lam)
    if correlation == 0:
        return correlation
    # Put the same values in the best order for this sign.
    falls = bool(correlation < 0)
    best_curve = curve.sort().values
    best_lam = lam.sort(descending=falls).values
    best = spearman(best_curve, best_lam)
    return correlation / best.abs()
