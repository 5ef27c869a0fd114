r"""The paper's lemmas and theorems as functions of matrices and spectra.

Zhuo et al., "Towards a Unified Theoretical Understanding of Non-contrastive Learning via Rank
Differential Mechanism", ICLR 2023. Letters are the paper's: z are target outputs, p online ones,
:math:`C_z, C_p` their uncentred correlation matrices, :math:`C_+ = E[z_x z_{x^+}^\top]` that of
positive pairs, g an online filter and h = 1/g the target filter that does the same. Eigenvalues
descend, and curves run along them. Results are float64.

What the printed text leaves out or gets wrong is said where it matters: see :func:`linear_setting`,
:func:`filtered_eigenvalues`, :func:`positive_correlation`, :func:`rank_difference`, :func:`kind`
and :func:`updated_eigenvalues`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.spectra.measures import effective_rank, filter_curve, ideal_filter

__all__ = [
    "Conditions",
    "LinearSetting",
    "alignment_loss",
    "conditional_covariance",
    "conditions",
    "equivalent_filter",
    "filtered_eigenvalues",
    "ideal_filter",
    "is_low_pass",
    "kind",
    "linear_setting",
    "mean_correlation",
    "optimal_predictor",
    "positive_correlation",
    "rank_difference",
    "update_gain",
    "updated_correlation",
    "updated_eigenvalues",
]


# --------------------------------------------------------------------------------------
# Lemma 1 and Theorem 2: the optimal predictor
# --------------------------------------------------------------------------------------


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
    if not noise >= 0:
        raise ValueError(f"noise is a standard deviation of at least 0, got {noise}.")
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
    _check_square(C_z=C_z, C_plus=C_plus)
    if not weight_decay >= 0:
        raise ValueError(f"weight_decay must be at least 0, got {weight_decay}.")
    C_z = C_z.double() + weight_decay * torch.eye(len(C_z), dtype=torch.float64, device=C_z.device)
    W: Tensor = C_plus.double() @ torch.linalg.pinv(C_z, hermitian=True)
    return W


# --------------------------------------------------------------------------------------
# Lemma 2: the equivalent filter
# --------------------------------------------------------------------------------------


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
    _check_square(C_p=C_p, C_z=C_z)
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
    _check_spectra(lam=lam, gain=gain)
    return gain.double().square() * lam.double()


# --------------------------------------------------------------------------------------
# Lemma 3: what positive pairs have in common
# --------------------------------------------------------------------------------------


def mean_correlation(z: Tensor) -> Tensor:
    r"""The correlation :math:`\bar C = E[z_{\bar x} z_{\bar x}^\top]` of views' means (Lemma 3).

    z holds m views of each of n samples. Shapes: ``(n, m, k) -> (k, k)``.

    >>> mean_correlation(torch.tensor([[[1.0], [3.0]]]))
    tensor([[4.]], dtype=torch.float64)
    """
    mean = _views(z, 1).mean(dim=1)
    return mean.mT @ mean / len(mean)


def positive_correlation(z: Tensor) -> Tensor:
    r"""The correlation :math:`C_+ = E[z_x z_{x^+}^\top]` of all pairs of two different views.

    Lemma 3.1, :math:`C_+ = \bar C`, is about expectations. The mean of m views keeps some of their
    noise, so that on samples :math:`C_+ = \bar C - V_{x|\bar x} / m`, exactly: the two differ by
    half of the conditional covariance for the usual two views. Shapes: ``(n, m, k) -> (k, k)``.

    >>> positive_correlation(torch.tensor([[[1.0], [3.0]]]))
    tensor([[3.]], dtype=torch.float64)
    """
    y = _views(z, 2)
    n, m, _ = y.shape
    total, rows = y.sum(dim=1), y.flatten(0, 1)
    return (total.mT @ total - rows.mT @ rows) / (n * m * (m - 1))


def conditional_covariance(z: Tensor, unbiased: bool = True) -> Tensor:
    r"""The covariance :math:`V_{x|\bar x}` that augmentation adds within samples (Lemma 3).

    Lemma 3.2, :math:`C_z = \bar C + V_{x|\bar x}`, holds exactly on samples with
    ``unbiased=False`` beside :func:`mean_correlation`, and with ``unbiased=True`` (divided by
    m - 1 in place of m) beside :func:`positive_correlation`. Shapes: ``(n, m, k) -> (k, k)``.

    >>> conditional_covariance(torch.tensor([[[1.0], [3.0]]]))
    tensor([[2.]], dtype=torch.float64)
    """
    y = _views(z, 2)
    n, m, _ = y.shape
    rest = (y - y.mean(dim=1, keepdim=True)).flatten(0, 1)
    return rest.mT @ rest / (n * (m - 1 if unbiased else m))


# --------------------------------------------------------------------------------------
# Theorem 3: low-pass filters lower the effective rank
# --------------------------------------------------------------------------------------


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
    _check_spectra(lam_p=lam_p, lam_z=lam_z)
    return effective_rank(lam_z) - effective_rank(lam_p)


# --------------------------------------------------------------------------------------
# Theorem 4: what a gradient step does to the online spectrum
# --------------------------------------------------------------------------------------


def updated_correlation(C_z: Tensor, C_plus: Tensor, W: Tensor, alpha: float) -> Tensor:
    r"""The online correlation after a step, eigenvectors shared or not (proof of Theorem 4).

    :math:`C_p' = (1-\alpha)^2 W C_z W^\top + \alpha^2 C_z + \alpha(1-\alpha)(W C_+ + C_+ W^\top)`
    for p = W z and :math:`p' = (1-\alpha) p + \alpha z_{x^+}`. Shapes: ``(k, k)`` each.

    >>> C = torch.eye(1)
    >>> updated_correlation(C, 0.5 * C, 2 * C, alpha=0.5)
    tensor([[1.7500]], dtype=torch.float64)
    """
    _check_square(C_z=C_z, C_plus=C_plus, W=W)
    _check_step(alpha)
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
    _check_spectra(lam_p=lam_p, lam_z=lam_z, lam_plus=lam_plus)
    _check_step(alpha)
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
    _check_spectra(lam_p=lam_p, lam_z=lam_z, lam_plus=lam_plus)
    gain, omega = filter_curve(lam_p, lam_z), ideal_filter(lam_plus, lam_z)
    real = gain > 0  # NaN is not
    gain, omega = gain[real], omega[real]

    def close(a: Tensor, b: Tensor) -> bool:
        return bool(((a - b).abs() <= tolerance * b.abs().clamp_min(1e-300)).all())

    steep = kind(omega / gain, tolerance) in ("high-pass", "none")
    return Conditions(close(gain, omega), close(omega, torch.ones_like(omega)), steep)


# --------------------------------------------------------------------------------------


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


def _views(z: Tensor, least: int) -> Tensor:
    if z.ndim != 3 or len(z) == 0 or z.shape[1] < least:
        raise ValueError(
            f"z must have the shape (n, m, k): n samples, each with m >= {least} views, "
            f"got {tuple(z.shape)}."
        )
    return z.detach().double()


def _check_square(**matrices: Tensor) -> None:
    shapes = {tuple(C.shape) for C in matrices.values()}
    (shape, *others) = shapes
    if others or len(shape) != 2 or shape[0] != shape[1]:
        got = ", ".join(f"{name} {tuple(C.shape)}" for name, C in matrices.items())
        raise ValueError(f"square matrices of one shape (k, k) are needed, got {got}.")


def _check_spectra(**spectra: Tensor) -> None:
    shapes = {tuple(lam.shape) for lam in spectra.values()}
    if len(shapes) > 1 or len(next(iter(shapes))) != 1:
        got = ", ".join(f"{name} {tuple(lam.shape)}" for name, lam in spectra.items())
        raise ValueError(f"spectra of one shape (k,) are needed, got {got}.")


def _check_step(alpha: float) -> None:
    if not 0 < alpha < math.inf:
        raise ValueError(f"alpha must be a positive number (below 1 in Theorem 4), got {alpha}.")
