r"""The paper's lemmas and theorems as functions of correlation matrices and spectra.

z and p are target and online outputs, :math:`C_z` and :math:`C_p` their uncentred correlation
matrices, and :math:`C_+ = E[z_x z_{x^+}^\top]` that of positive pairs. g is an online filter and
h = 1/g the equivalent target filter. Eigenvalues descend, curves follow them, results are float64.
"""

import math

import torch
from torch import Tensor

from rdm_solo.ground.errors import UserError
from rdm_solo.spectra.comparison import filter_curve
from rdm_solo.spectra.ranks import effective_rank, symmetric

# How a gain moves along descending eigenvalues, and its kind.
_KINDS = {
    "": "none",
    "-": "low-pass",
    "+": "high-pass",
    "+-": "band-pass",
    "-+": "band-stop",
}


def linear_setting(
    W_f: Tensor, noise: float, weight_decay: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Return :math:`C_z, C_+, W^*, C_p` of the best linear predictor on isotropic data (Lemma 1).

    Let :math:`\bar x` have zero mean and unit covariance, let its views :math:`x` have the mean
    :math:`\bar x` and the covariance :math:`s^2 I` (``noise`` is s), and let :math:`z_x = W_f x`:

    .. math:: C_z = (1 + s^2) W_f W_f^\top, \quad C_+ = W_f W_f^\top, \quad
              W^* = C_+ (C_z + \eta I)^{-1}, \quad C_p = W^* C_z W^{*\top}.

    Along an eigenvector of :math:`W_f W_f^\top` the predictor is
    :math:`\lambda / ((1 + s^2) \lambda + \eta)`. The paper does not state that outputs are not
    normalised here, nor that the predictor is low-pass, with a rank gap, only for :math:`\eta > 0`.
    Without weight decay it is the constant :math:`1 / (1 + s^2)`. The paper calls s sigma and
    prints the shape of ``W_f``, which maps x to z, as ``(d, k)`` instead of ``(k, d)``.

    >>> _, _, W, _ = linear_setting(torch.diag(torch.tensor([2.0, 1.0])), 1.0, weight_decay=2.0)
    >>> W.diagonal()
    tensor([0.4000, 0.2500], dtype=torch.float64)
    """
    W_f = W_f.double()
    C_plus = W_f @ W_f.mT
    C_z = (1 + noise**2) * C_plus
    W = optimal_predictor(C_z, C_plus, weight_decay)
    return C_z, C_plus, W, W @ C_z @ W.mT


def optimal_predictor(C_z: Tensor, C_plus: Tensor, weight_decay: float = 0.0) -> Tensor:
    r"""Return the best linear predictor :math:`W^* = C_+ (C_z + \eta I)^{-1}` (Theorem 2).

    It minimises :math:`\frac12 E\|W z_x - z_{x^+}\|^2 + \frac\eta2 \|W\|^2`, whether or not
    eigenvectors are shared. For a singular :math:`C_z` and :math:`\eta = 0` it is the minimum-norm
    solution, which is the limit for :math:`\eta \to 0`. Shapes: ``(k, k), (k, k) -> (k, k)``.

    >>> C = torch.diag(torch.tensor([4.0, 0.0]))
    >>> optimal_predictor(C, 0.5 * C)
    tensor([[0.5000, 0.0000],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    C_z = symmetric(C_z)
    C_z.diagonal().add_(weight_decay)
    inverse: Tensor = torch.linalg.pinv(C_z, hermitian=True)
    return C_plus.double() @ inverse


def equivalent_filter(C_p: Tensor, C_z: Tensor) -> Tensor:
    r"""Return W with :math:`W C_z W^\top = C_p`, the filter in any asymmetric design (Lemma 2).

    If eigenvectors are shared, it is :math:`W_g = V g(\Lambda_z) V^\top` with
    :math:`g = \sqrt{\lambda^p / \lambda^z}`. It is computed as :math:`C_p^{1/2} C_z^{-1/2}`, which
    does not depend on V for repeated eigenvalues and reproduces :math:`C_p` even if eigenvectors
    differ (then it is not symmetric). It reproduces the correlation but not the outputs, because
    the sign of g is lost. Shapes: ``(k, k), (k, k) -> (k, k)``.

    >>> C_p, C_z = torch.diag(torch.tensor([4.0, 1.0])), torch.diag(torch.tensor([1.0, 4.0]))
    >>> equivalent_filter(C_p, C_z)
    tensor([[2.0000, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    """
    C_p = symmetric(C_p)
    C_z = symmetric(C_z)
    inverse: Tensor = torch.linalg.pinv(_square_root(C_z), hermitian=True, rtol=1e-7)
    W = _square_root(C_p) @ inverse
    residual = W @ C_z @ W.mT - C_p
    if residual.norm() > 1e-6 * C_p.norm():
        raise UserError(
            "no filter turns C_z into C_p: the online outputs span directions in which the "
            "target outputs are zero."
        )
    return W


def mean_correlation(z: Tensor) -> Tensor:
    r"""Return the correlation :math:`\bar C = E[z_{\bar x} z_{\bar x}^\top]` of means (Lemma 3).

    z holds m views of each of n samples. Shapes: ``(n, m, k) -> (k, k)``.

    >>> mean_correlation(torch.tensor([[[1.0], [3.0]]]))
    tensor([[4.]], dtype=torch.float64)
    """
    mean = z.detach().double().mean(1)
    return mean.mT @ mean / len(mean)


def positive_correlation(z: Tensor) -> Tensor:
    r"""Return the correlation :math:`C_+ = E[z_x z_{x^+}^\top]` of all pairs of different views.

    Lemma 3.1, :math:`C_+ = \bar C`, holds for expectations. For samples, the mean of m views keeps
    some of their noise, and :math:`C_+ = \bar C - V_{x|\bar x} / (m - 1)` exactly. For two views
    they differ by the whole conditional covariance. Shapes: ``(n, m, k) -> (k, k)``, m > 1.

    >>> positive_correlation(torch.tensor([[[1.0], [3.0]]]))
    tensor([[3.]], dtype=torch.float64)
    """
    z = z.detach().double()
    n, m, _ = z.shape
    total = z.sum(1)
    rows = z.flatten(0, 1)
    all_pairs = total.mT @ total
    equal_pairs = rows.mT @ rows
    return (all_pairs - equal_pairs) / (n * m * (m - 1))


def conditional_covariance(z: Tensor) -> Tensor:
    r"""Return the covariance :math:`V_{x|\bar x}` that augmentation adds within samples (Lemma 3).

    Lemma 3.2, :math:`C_z = \bar C + V_{x|\bar x}`, also holds exactly for samples, with
    :math:`\bar C` from :func:`mean_correlation`. Shapes: ``(n, m, k) -> (k, k)``.

    >>> conditional_covariance(torch.tensor([[[1.0], [3.0]]]))
    tensor([[1.]], dtype=torch.float64)
    """
    z = z.detach().double()
    deviations = z - z.mean(1, keepdim=True)
    rows = deviations.flatten(0, 1)
    return rows.mT @ rows / len(rows)


def filtered_eigenvalues(lam: Tensor, gain: Tensor) -> Tensor:
    r"""Return the spectrum :math:`g^2 \lambda` of filtered outputs (Section 3).

    The paper's :math:`g(\Lambda) \Lambda` is an error: u = G f has :math:`C_u = G C G^\top`.
    Shapes: ``(k,), (k,) -> (k,)``.

    >>> filtered_eigenvalues(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 0.5]))
    tensor([4.0000, 0.2500], dtype=torch.float64)
    """
    return gain.double().square() * lam.double()


def kind(curve: Tensor, tolerance: float = 1e-6) -> str:
    r"""Classify a gain along *descending* eigenvalues (Section 3, Hypothesis 2).

    ``low-pass``: the gain falls as eigenvalues fall. ``high-pass``: it rises. ``band-pass``: it has
    one peak inside. ``band-stop``: one valley. ``multi-band``: more turns. ``none``: constant.
    Turns smaller than ``tolerance`` times the largest gain are ignored, and so is NaN. Pass the
    absolute value of a gain that can be negative: spectra depend on its square. Shape: ``(k,)``.

    (The filters of Sinkhorn iterations are high-pass on the target; Section 3.2 says low-pass.)

    >>> kind(torch.tensor([3.0, 2.0, 1.0])), kind(torch.tensor([1.0, 2.0]))
    ('low-pass', 'high-pass')
    >>> kind(torch.tensor([1.0, 2.0, 1.0])), kind(torch.tensor([2.0, 2.0]))
    ('band-pass', 'none')
    """
    values = [value for value in curve.tolist() if math.isfinite(value)]
    least = tolerance * max(map(abs, values), default=0.0)
    turns = ""
    low, high = math.inf, -math.inf  # since the last move
    for value in values:
        low = min(low, value)
        high = max(high, value)
        if value - low > least:
            move = "+"
        elif high - value > least:
            move = "-"
        else:
            continue
        low = high = value
        if not turns.endswith(move):
            turns += move
    return _KINDS.get(turns, "multi-band")


def rank_difference(lam_p: Tensor, lam_z: Tensor) -> Tensor:
    r"""Return the rank gap :math:`\mathrm{erank}(C_z) - \mathrm{erank}(C_p)` of Theorem 3.

    If :math:`g = \sqrt{\lambda^p / \lambda^z}` grows with :math:`\lambda^z`, the gap is at least 0,
    and positive unless g is constant on the spectrum. Eigenvectors need not be shared. The paper
    instead assumes that :math:`h = \sqrt{\lambda^z / \lambda^p}` falls with :math:`\lambda^p`. This
    is equivalent only if both spectra have the same order. A target filter :math:`\sigma^p` with
    p < -1 reverses the order, so the gap can be negative although h falls. (In the proof, read
    :math:`m < k` for :math:`m < 1`, :math:`\Delta \in (0, q_j)` for :math:`(0, p_j)`, and
    :math:`q^p` in one of the two chains of :math:`q^z`.) Shapes: ``(k,), (k,) -> ()``.

    >>> lam_z = torch.tensor([2.0, 1.0])
    >>> bool(rank_difference(lam_z**2, lam_z) > 0), float(rank_difference(5 * lam_z, lam_z))
    (True, 0.0)
    """
    return effective_rank(lam_z) - effective_rank(lam_p)


def updated_eigenvalues(lam_p: Tensor, lam_z: Tensor, lam_plus: Tensor, alpha: float) -> Tensor:
    r"""Return the online eigenvalues after a gradient step of size :math:`\alpha` (Theorem 4).

    .. math:: \lambda^p_{i,t+1} = (1-\alpha)^2 \lambda^p_i + \alpha^2 \lambda^z_i
              + 2\alpha(1-\alpha) \sqrt{\lambda^p_i / \lambda^z_i}\,\lambda^+_i

    which is :math:`\lambda^p_i((1-\alpha)^2 + \alpha^2 h_i^2 + 2\alpha(1-\alpha) h_i \omega_i)` if
    :math:`\lambda^p_i > 0`. The theorem assumes free ("unconstrained") features, the loss
    :math:`\frac12\|p - z\|^2` with *one* positive per view, three matrices that share eigenvectors,
    and a W with the same eigenvectors and positive gains. If the factor of :math:`\lambda^p_i` is
    high-pass and the order of the eigenvalues does not change, the online effective rank rises by
    Theorem 3. The theorem also assumes :math:`0 < \alpha < 1`, since larger steps can reverse the
    order.

    Under condition 1 (:math:`g = \omega`) and condition 2 (:math:`\omega = 1`) the product
    :math:`h\omega` does not grow with :math:`\lambda`. Then the factor is high-pass whenever g is
    low-pass and not constant. Condition 1 is the limit of small steps: for :math:`g = \omega^s`
    the factor is high-pass for all :math:`0 < \omega \le 1` exactly if :math:`s \ge 1 - \alpha`.
    For smaller s the rank can fall early in training, when positives are far apart.
    Shapes: ``(k,)`` each ``-> (k,)``.

    >>> lam = torch.tensor([1.0, 0.25])
    >>> updated_eigenvalues(lam, lam.sqrt(), lam.sqrt(), alpha=0.5)
    tensor([1.0000, 0.3643], dtype=torch.float64)
    """
    lam_p, lam_z = lam_p.double(), lam_z.double()
    gain = filter_curve(lam_p, lam_z).nan_to_num(0.0)
    cross = 2 * alpha * (1 - alpha) * gain * lam_plus.double()
    return (1 - alpha) ** 2 * lam_p + alpha**2 * lam_z + cross


def _square_root(C: Tensor) -> Tensor:
    lam, v = torch.linalg.eigh(C)
    root: Tensor = (v * lam.clamp_min(0).sqrt()) @ v.mT
    return root
