r"""Filters between the branches' spectra (Lemma 2), and their effect on the rank (Theorem 3).

z are target outputs and p online ones, :math:`C_z, C_p` their uncentred correlation matrices, g an
online filter and h = 1/g the target filter that does the same. Eigenvalues descend, and curves run
along them. Results are float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rdm_solo.spectra.measures import effective_rank
from rdm_solo.theory.shapes import check_spectra, check_square

__all__ = ["equivalent_filter", "filtered_eigenvalues", "is_low_pass", "kind", "rank_difference"]


def equivalent_filter(C_p: Tensor, C_z: Tensor) -> Tensor:
    r"""A matrix W with :math:`W C_z W^\top = C_p`: the filter in any asymmetric design (Lemma 2).

    :math:`W_g = V g(\Lambda_z) V^\top` with :math:`g = \sqrt{\lambda^p / \lambda^z}` where
    eigenvectors are shared. It is computed as :math:`C_p^{1/2} C_z^{-1/2}`, which is the same
    there, needs no choice of V for repeated eigenvalues, and reproduces :math:`C_p` even where
    eigenvectors differ (then it is not symmetric). It is the *correlation* that is reproduced, not
    the outputs, and the sign of g is lost. Shapes: ``(k, k), (k, k) -> (k, k)``.

    >>> equivalent_filter(torch.diag(torch.tensor([4.0, 1.0])), torch.eye(2))
    tensor([[2., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    check_square(C_p=C_p, C_z=C_z)
    root_p, root_z = _square_root(C_p.double()), _square_root(C_z.double())
    W: Tensor = root_p @ torch.linalg.pinv(root_z, hermitian=True, rtol=1e-7)
    missed = torch.linalg.matrix_norm(W @ C_z.double() @ W.mT - C_p.double())
    if missed > 1e-6 * torch.linalg.matrix_norm(C_p.double()):
        raise ValueError(
            "no filter turns C_z into C_p: the online outputs span directions in which the "
            "target outputs are zero."
        )
    return W


def filtered_eigenvalues(lam: Tensor, gain: Tensor) -> Tensor:
    r"""The spectrum :math:`g^2 \lambda` that a filter leaves: :math:`C_u = V g^2 \Lambda V^\top`.

    Section 3 prints :math:`g(\Lambda) \Lambda`, a slip: u = G f has :math:`C_u = G C G^\top`.
    Shapes: ``(k,), (k,) -> (k,)``.

    >>> filtered_eigenvalues(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 0.5]))
    tensor([4.0000, 0.2500], dtype=torch.float64)
    """
    check_spectra(lam=lam, gain=gain)
    return gain.double().square() * lam.double()


def kind(curve: Tensor, tolerance: float = 1e-6) -> str:
    r"""What a gain does along *descending* eigenvalues (Section 3, Hypothesis 2).

    ``low-pass``: it falls as eigenvalues fall, so g grows with :math:`\lambda` and large ones gain.
    ``high-pass``: it rises as they fall. ``band-pass`` and ``band-stop``: one peak, or one
    valley, inside. ``multi-band``: more turns than that. ``none``: constant, no filter at all.
    Turns smaller than ``tolerance`` times the largest gain do not count, and NaN is passed over. Of
    a gain that can be negative take ``abs()``: a spectrum sees its square. Shape: ``(k,)``.

    (Figure 5's caption calls :math:`\lambda^+/\lambda^z` "decreasing": along the index i. And the
    filters of Sinkhorn iterations that Section 3.2 calls low-pass are high-pass, on the target.)

    >>> kind(torch.tensor([3.0, 2.0, 1.0])), kind(torch.tensor([1.0, 2.0]))
    ('low-pass', 'high-pass')
    >>> kind(torch.tensor([1.0, 2.0, 1.0])), kind(torch.tensor([2.0, 2.0]))
    ('band-pass', 'none')
    """
    if curve.ndim != 1:
        raise ValueError(f"curve must have the shape (k,), got {tuple(curve.shape)}.")
    names = {"": "none", "-": "low-pass", "+": "high-pass", "+-": "band-pass", "-+": "band-stop"}
    return names.get(_runs(curve, tolerance), "multi-band")


def is_low_pass(curve: Tensor, tolerance: float = 1e-6) -> bool:
    """Whether a gain nowhere rises along descending eigenvalues: Theorem 3's premise.

    A constant is included, as in the theorem. Shapes: ``(k,) -> bool``.

    >>> is_low_pass(torch.tensor([2.0, 2.0, 1.0])), is_low_pass(torch.tensor([1.0, 2.0]))
    (True, False)
    """
    return kind(curve, tolerance) in ("low-pass", "none")


def rank_difference(lam_p: Tensor, lam_z: Tensor) -> Tensor:
    r"""The gap :math:`\mathrm{erank}(C_z) - \mathrm{erank}(C_p)`; Theorem 3 gives its sign.

    If :math:`g = \sqrt{\lambda^p / \lambda^z}` grows with :math:`\lambda^z` the gap is
    at least 0, and positive unless g is constant *on the spectrum*. Only sorted spectra enter:
    eigenvectors need not be shared. The "equivalent" premise, that :math:`h = \sqrt{\lambda^z /
    \lambda^p}` falls with :math:`\lambda^p`, is one only if both spectra stand in the same order.
    A target filter :math:`\sigma^p` with p < -1 turns the order round and can make the gap negative
    although h falls. (In the proof, read :math:`m < k` for :math:`m < 1`, :math:`\Delta \in (0,
    q_j)` for :math:`(0, p_j)`, and :math:`q^p` for one of the two chains of :math:`q^z`.)
    Shapes: ``(k,), (k,) -> ()``.

    >>> lam_z = torch.tensor([2.0, 1.0])
    >>> bool(rank_difference(lam_z**2, lam_z) > 0), float(rank_difference(5 * lam_z, lam_z))
    (True, 0.0)
    """
    check_spectra(lam_p=lam_p, lam_z=lam_z)
    return effective_rank(lam_z) - effective_rank(lam_p)


def _runs(curve: Tensor, tolerance: float) -> str:
    """The signs of a curve's rises and falls, those below the tolerance left out."""
    values = [value for value in curve.tolist() if math.isfinite(value)]
    if not values:
        return ""
    least = tolerance * max(map(abs, values))
    signs, low, high = "", values[0], values[0]
    for value in values:
        low, high = min(low, value), max(high, value)
        if value - low > least:
            signs += "" if signs.endswith("+") else "+"
            low = high = value
        elif high - value > least:
            signs += "" if signs.endswith("-") else "-"
            low = high = value
    return signs


def _square_root(C: Tensor) -> Tensor:
    lam, v = torch.linalg.eigh(C)
    root: Tensor = (v * lam.clamp_min(0).sqrt()) @ v.mT
    return root
