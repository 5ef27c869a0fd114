"""How two branches' spectra compare: filter curves, alignment of eigenspaces, rank correlation.

Equations are those of Zhuo et al., "Towards a Unified Theoretical Understanding of Non-contrastive
Learning via Rank Differential Mechanism", ICLR 2023.
"""

import torch
from torch import Tensor

from rdm_solo.messages import UserError
from rdm_solo.spectra.matrices import noise_floor, symmetric

# The paper looks at the leading eigenvalues whose sum exceeds this share of the total.
LEADING_SHARE = 0.9999


def filter_curve(lam_p: Tensor, lam_z: Tensor) -> Tensor:
    r"""The online filter :math:`g(\lambda^z_i) = \sqrt{\lambda^p_i / \lambda^z_i}` (Lemma 2).

    Both spectra are paired by rank. Where the target's eigenvalue is rounding noise there is no
    curve: NaN.

    Shapes: ``(k,), (k,) -> (k,)``.

    >>> filter_curve(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 1.0]))
    tensor([2., 1.], dtype=torch.float64)
    """
    _check_pair("filter_curve", lam_p=lam_p, lam_z=lam_z)
    lam_p, lam_z = lam_p.double().clamp_min(0), lam_z.double().clamp_min(0)
    real = lam_z > noise_floor(lam_z)
    # Roots first: the ratio of two spectra may leave the range of float64.
    return torch.where(real, lam_p.sqrt() / torch.where(real, lam_z, 1.0).sqrt(), torch.nan)


def ideal_filter(lam_plus: Tensor, lam_z: Tensor, weight_decay: float = 0.0) -> Tensor:
    r"""The best linear predictor's gain :math:`\omega_i = \lambda^+_i / (\lambda^z_i + \eta)`
    (Theorem 2).

    The theorem has :math:`\eta = 0` and :math:`\omega \in [0, 1]`, because
    :math:`C_+ = \bar C \succeq 0` and :math:`C_z - C_+ = V_{x|\bar x} \succeq 0` (Lemma 3). Both
    hold for sorted eigenvalues as well, shared eigenvectors or not. They are about expectations:
    :math:`C_+` of finitely many pairs can have negative eigenvalues. These count as 0, since
    sorting would set them against the smallest :math:`\lambda^z`. Where the target's eigenvalue is
    rounding noise, NaN. That :math:`\omega` grows with :math:`\lambda^z`, hence low-pass, is no
    part of the theorem: it takes augmentations that disturb weak directions more than strong ones.

    Shapes: ``(k,), (k,) -> (k,)``.

    >>> ideal_filter(torch.tensor([3.0, 0.5]), torch.tensor([4.0, 2.0]))
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    _check_pair("ideal_filter", lam_plus=lam_plus, lam_z=lam_z)
    lam_plus, lam_z = lam_plus.double().clamp_min(0), lam_z.double()
    real = lam_z > noise_floor(lam_z)
    return torch.where(real, lam_plus / torch.where(real, lam_z + weight_decay, 1.0), torch.nan)


def _check_pair(name: str, **spectra: Tensor) -> None:
    shapes = {tuple(lam.shape) for lam in spectra.values()}
    if len(shapes) > 1 or len(shape := shapes.pop()) != 1 or shape == (0,):
        got = ", ".join(f"{letter} {tuple(lam.shape)}" for letter, lam in spectra.items())
        raise UserError(f"{name} takes two spectra of one shape (k,), got {got}.")


def leading(lam: Tensor, share: float = LEADING_SHARE) -> int:
    """How many leading eigenvalues hold more than that share of the sum (Appendix B.3).

    >>> leading(torch.tensor([0.9, 0.0999, 0.0001, 0.0]))
    2
    """
    lam = lam.double().clamp_min(0)
    total = lam.sum()
    if total <= 0:
        return 1
    # Rounding of the sum must not move the limit by one.
    missing = lam.cumsum(0) < (share - 1e-9) * total
    return min(int(missing.sum()) + 1, len(lam))


def alignment(C_p: Tensor, C_z: Tensor, m: int | None = None, weighted: bool = False) -> Tensor:
    r"""Eigenspace alignment :math:`\frac1m\sum_i \cos(u_i, C_p u_i)`, u_i of C_z (Appendix B.3).

    ``m`` leading eigenvectors count, by default those that hold 99.99 % of the eigenvalues' sum;
    the paper sets 512, and 128 for BYOL. ``weighted`` weighs each by its eigenvalue, so that a
    tail of tiny directions does not decide. Matrices are symmetric as for :func:`effective_rank`;
    NaN or infinity in either gives NaN.

    Shapes: ``(k, k), (k, k) -> ()``.

    >>> C = torch.diag(torch.tensor([3.0, 1.0]))
    >>> alignment(C @ C, C)
    tensor(1., dtype=torch.float64)
    """
    if C_p.ndim != 2 or C_p.shape != C_z.shape or len(set(C_z.shape)) > 1 or not len(C_z):
        raise UserError(
            f"alignment takes two square matrices of one shape (k, k), got {tuple(C_p.shape)} and "
            f"{tuple(C_z.shape)}."
        )
    if not bool(C_p.isfinite().all() & C_z.isfinite().all()):
        return C_z.new_tensor(torch.nan, dtype=torch.float64)
    C_p, C_z = symmetric(C_p, "alignment"), symmetric(C_z, "alignment")
    lam, u = torch.linalg.eigh(C_z)
    lam, u = lam.flip(0).clamp_min(0), u.flip(1)
    m = leading(lam) if m is None else m
    if not 1 <= m <= len(lam):
        raise UserError(f"m must lie between 1 and k={len(lam)}, got {m}.")
    image = C_p @ u
    energy = (u * image).sum(0)
    return weighted_cosine(energy, torch.linalg.vector_norm(image, dim=0), lam, m, weighted)


def weighted_cosine(energy: Tensor, norm: Tensor, lam: Tensor, m: int, weighted: bool) -> Tensor:
    r"""The mean of :math:`u_i^T C u_i / \|C u_i\|` over the m first directions.

    ``energy`` and ``norm`` are numerators and denominators; ``weighted`` weighs by ``lam``. A
    direction that C maps to nothing counts as 0.

    >>> one, lam = torch.ones(2), torch.tensor([3.0, 1.0])
    >>> float(weighted_cosine(one, torch.tensor([1.0, 2.0]), lam, 2, weighted=True))
    0.875
    """
    cosine = (energy / torch.where(norm > 0, norm, 1.0))[:m]
    lam = lam[:m]
    weights = lam if weighted and lam.sum() > 0 else torch.ones_like(lam)
    return (cosine * weights).sum() / weights.sum()


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's rank correlation of two vectors, ties sharing their mean rank.

    A vector that is flat to rounding has no order: 0.

    >>> spearman(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([9.0, 4.0, 1.0]))
    tensor(1., dtype=torch.float64)
    """
    ranks = []
    for vector in (a.double(), b.double()):
        if len(vector) < 2 or vector.max() - vector.min() <= 1e-6 * vector.abs().max():
            return torch.zeros((), dtype=torch.float64, device=a.device)
        _, inverse, counts = torch.unique(vector, return_inverse=True, return_counts=True)
        last = counts.cumsum(0).double()
        ranks.append((last - (counts - 1) / 2)[inverse])
    stacked = torch.stack(ranks)
    return torch.corrcoef(stacked)[0, 1]
