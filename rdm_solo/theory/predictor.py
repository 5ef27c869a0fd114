r"""The optimal linear predictor (Lemma 1 and Theorem 2).

z are target outputs, :math:`C_z` their uncentred correlation matrix and
:math:`C_+ = E[z_x z_{x^+}^\top]` that of positive pairs. Results are float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.messages import check_number
from rdm_solo.theory.shapes import check_square

__all__ = ["LinearSetting", "alignment_loss", "linear_setting", "optimal_predictor"]


class LinearSetting(NamedTuple):
    """The four matrices of Lemma 1, each ``(k, k)``; they share their eigenvectors."""

    C_z: Tensor
    C_plus: Tensor
    W: Tensor
    C_p: Tensor


def linear_setting(W_f: Tensor, noise: float, weight_decay: float = 0.0) -> LinearSetting:
    r"""Targets, positives, best linear predictor and its outputs for isotropic data (Lemma 1).

    With :math:`\bar x` of zero mean and unit covariance, views :math:`x` of mean :math:`\bar x` and
    covariance :math:`s^2 I` (``noise`` is s, the paper's sigma) and :math:`z_x = W_f x`,

    .. math:: C_z = (1 + s^2) W_f W_f^\top, \quad C_+ = W_f W_f^\top, \quad
              W^* = C_+ (C_z + \eta I)^{-1}, \quad C_p = W^* C_z W^{*\top}.

    Along an eigenvector of :math:`W_f W_f^\top` the predictor is
    :math:`\lambda / ((1 + s^2) \lambda + \eta)`. Two things the statement does not say: outputs are
    not normalised here, and without weight decay the predictor is the constant
    :math:`1 / (1 + s^2)`: that it is low-pass, and the gap in rank, come from :math:`\eta > 0`
    alone. ``W_f`` maps x to z, so it is ``(k, d)``, where the paper prints ``(d, k)``.

    >>> _, _, W, _ = linear_setting(torch.diag(torch.tensor([2.0, 1.0])), noise=1.0)
    >>> W.diagonal()
    tensor([0.5000, 0.5000], dtype=torch.float64)
    >>> _, _, W, _ = linear_setting(torch.diag(torch.tensor([2.0, 1.0])), 1.0, weight_decay=2.0)
    >>> W.diagonal()
    tensor([0.4000, 0.2500], dtype=torch.float64)
    """
    if W_f.ndim != 2:
        raise ValueError(f"W_f must be a matrix of shape (k, d), got {tuple(W_f.shape)}.")
    check_number("noise", noise, least=0)
    C_plus = W_f.double() @ W_f.double().mT
    C_z = (1 + noise**2) * C_plus
    W = optimal_predictor(C_z, C_plus, weight_decay)
    return LinearSetting(C_z, C_plus, W, W @ C_z @ W.mT)


def alignment_loss(W: Tensor, C_z: Tensor, C_plus: Tensor, weight_decay: float = 0.0) -> Tensor:
    r"""The loss :math:`\frac12 E\|W z_x - z_{x^+}\|^2 + \frac\eta2 \|W\|^2` (proof of Lemma 1).

    :math:`= \frac12[\mathrm{Tr}(W^\top W C_z) - 2\,\mathrm{Tr}(W C_+) + \mathrm{Tr}\,C_z]
    + \frac\eta2 \|W\|_F^2`; it is differentiable in W. Shapes: ``(k, k)`` each ``-> ()``.

    >>> C = torch.eye(2)
    >>> float(alignment_loss(C, C, C)), float(alignment_loss(0 * C, C, C))
    (0.0, 1.0)
    """
    W, C_z, C_plus = W.double(), C_z.double(), C_plus.double()
    loss = (W @ C_z * W).sum() / 2 - (W * C_plus.mT).sum() + C_z.trace() / 2
    return loss + weight_decay / 2 * W.square().sum()


def optimal_predictor(C_z: Tensor, C_plus: Tensor, weight_decay: float = 0.0) -> Tensor:
    r"""The predictor :math:`W^* = C_+ (C_z + \eta I)^{-1}` of least loss (Theorem 2, Lemma 1).

    It minimises :func:`alignment_loss` for any two matrices, eigenvectors shared or not. Where
    :math:`C_z` is singular and nothing decays, the minimiser of least norm is taken, which is the
    limit of a vanishing decay. Shapes: ``(k, k), (k, k) -> (k, k)``.

    >>> C = torch.diag(torch.tensor([4.0, 0.0]))
    >>> optimal_predictor(C, 0.5 * C)
    tensor([[0.5000, 0.0000],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    check_square(C_z=C_z, C_plus=C_plus)
    check_number("weight_decay", weight_decay, least=0)
    C_z = C_z.double() + weight_decay * torch.eye(len(C_z), dtype=torch.float64, device=C_z.device)
    W: Tensor = C_plus.double() @ torch.linalg.pinv(C_z, hermitian=True)
    return W
