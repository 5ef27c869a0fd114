r"""What a gradient step does to the online spectrum (Theorem 4).

z are target outputs, p = W z online ones, :math:`C_z, C_p` their uncentred correlation matrices,
:math:`C_+` that of positive pairs. Eigenvalues descend. Results are float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.messages import check_number
from rdm_solo.spectra.measures import filter_curve, ideal_filter
from rdm_solo.theory.filtering import kind
from rdm_solo.theory.shapes import check_spectra, check_square

__all__ = ["Conditions", "conditions", "update_gain", "updated_correlation", "updated_eigenvalues"]


def updated_correlation(C_z: Tensor, C_plus: Tensor, W: Tensor, alpha: float) -> Tensor:
    r"""The online correlation after a step, eigenvectors shared or not (proof of Theorem 4).

    :math:`C_p' = (1-\alpha)^2 W C_z W^\top + \alpha^2 C_z + \alpha(1-\alpha)(W C_+ + C_+ W^\top)`
    for p = W z and :math:`p' = (1-\alpha) p + \alpha z_{x^+}`. Shapes: ``(k, k)`` each.

    >>> C = torch.eye(1)
    >>> updated_correlation(C, 0.5 * C, 2 * C, alpha=0.5)
    tensor([[1.7500]], dtype=torch.float64)
    """
    check_square(C_z=C_z, C_plus=C_plus, W=W)
    check_number("alpha", alpha, above=0)  # below 1 in the theorem
    C_z, C_plus, W = C_z.double(), C_plus.double(), W.double()
    cross = W @ C_plus
    kept = (1 - alpha) ** 2 * W @ C_z @ W.mT
    return kept + alpha**2 * C_z + alpha * (1 - alpha) * (cross + cross.mT)


def updated_eigenvalues(lam_p: Tensor, lam_z: Tensor, lam_plus: Tensor, alpha: float) -> Tensor:
    r"""The online eigenvalues after a gradient step of size :math:`\alpha` (Theorem 4).

    .. math:: \lambda^p_{i,t+1} = (1-\alpha)^2 \lambda^p_i + \alpha^2 \lambda^z_i
              + 2\alpha(1-\alpha) \sqrt{\lambda^p_i / \lambda^z_i}\,\lambda^+_i

    which is :math:`\lambda^p_i((1-\alpha)^2 + \alpha^2 h_i^2 + 2\alpha(1-\alpha) h_i \omega_i)`,
    but also right where :math:`\lambda^p_i = 0`. Features are free ("unconstrained"), the loss is
    :math:`\frac12\|p - z\|^2`, the three matrices share eigenvectors, and W is their function with
    positive gains. The theorem has :math:`0 < \alpha < 1`. Larger steps are computed, too: they can
    turn the order of the eigenvalues round, and then the rank may fall under either condition.

    The step meets *one* positive per view. Descending the expected loss itself would pull to the
    mean of the positives, :math:`E[z_{x^+}|x]`, and put :math:`\lambda^+` (for views that show
    what they were made of) in place of the :math:`\lambda^z` behind :math:`\alpha^2`.
    One step is all the theorem speaks of: what :math:`\lambda^z` and :math:`\lambda^+` become is
    left open. Shapes: ``(k,)`` each ``-> (k,)``.

    >>> lam = torch.tensor([1.0, 0.25])
    >>> updated_eigenvalues(lam, lam.sqrt(), lam.sqrt(), alpha=0.5)
    tensor([1.0000, 0.3643], dtype=torch.float64)
    """
    check_spectra(lam_p=lam_p, lam_z=lam_z, lam_plus=lam_plus)
    check_number("alpha", alpha, above=0)  # below 1 in the theorem
    gain = filter_curve(lam_p, lam_z).nan_to_num(0.0)
    cross = 2 * alpha * (1 - alpha) * gain * lam_plus.double()
    return (1 - alpha) ** 2 * lam_p.double() + alpha**2 * lam_z.double() + cross


def update_gain(lam_p: Tensor, lam_z: Tensor, lam_plus: Tensor, alpha: float) -> Tensor:
    r"""The factor :math:`\lambda^p_{i,t+1} / \lambda^p_{i,t}` of each direction (Theorem 4).

    Where it is high-pass (see :func:`kind`) and the order of the eigenvalues stays, the online
    effective rank rises by Theorem 3. Shapes: ``(k,)`` each ``-> (k,)``.

    >>> lam = torch.tensor([1.0, 0.25])
    >>> update_gain(lam, lam.sqrt(), lam.sqrt(), alpha=0.5)
    tensor([1.0000, 1.4571], dtype=torch.float64)
    """
    return updated_eigenvalues(lam_p, lam_z, lam_plus, alpha) / lam_p.double()


class Conditions(NamedTuple):
    """Whether Theorem 4's conditions hold; any one of them is enough."""

    optimal: bool
    aligned: bool
    steep: bool


def conditions(
    lam_p: Tensor, lam_z: Tensor, lam_plus: Tensor, tolerance: float = 1e-6
) -> Conditions:
    r"""Which of the conditions hold under which the online rank rises (Theorem 4).

    ``optimal``: :math:`g \approx \omega`, the predictor is W* (condition 1). ``aligned``:
    :math:`\lambda^+ \approx \lambda^z` (condition 2). Both are cases of ``steep``: :math:`h\omega`
    nowhere grows with :math:`\lambda`, that is, the filter is at least as steep as :math:`\omega`.
    With a low-pass g that is not constant, ``steep`` makes the update high-pass for every
    :math:`0 < \alpha < 1`.

    Condition 1 is an edge, not a region. For :math:`g = \omega^s` with s < 1, a filter flatter than
    W*, the update is high-pass on all of :math:`0 < \omega \le 1` exactly if :math:`s \ge
    1 - \alpha`. Below that the rank can fall, and for small steps it does wherever :math:`h\omega`
    grows with :math:`\lambda`: early in training, when positives are far apart.

    >>> lam_z = torch.tensor([0.8, 0.2])
    >>> omega = torch.tensor([0.9, 0.1])
    >>> conditions(omega**2 * lam_z, lam_z, omega * lam_z)
    Conditions(optimal=True, aligned=False, steep=True)
    >>> conditions(omega * lam_z, lam_z, omega * lam_z)  # flatter than W*
    Conditions(optimal=False, aligned=False, steep=False)
    """
    check_spectra(lam_p=lam_p, lam_z=lam_z, lam_plus=lam_plus)
    gain, omega = filter_curve(lam_p, lam_z), ideal_filter(lam_plus, lam_z)
    real = gain > 0  # NaN is not
    gain, omega = gain[real], omega[real]

    def close(a: Tensor, b: Tensor) -> bool:
        return bool(((a - b).abs() <= tolerance * b.abs()).all())

    steep = kind(omega / gain, tolerance) in ("high-pass", "none")
    return Conditions(close(gain, omega), close(omega, torch.ones_like(omega)), steep)
