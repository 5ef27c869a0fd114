"""Spectra of the two branches: correlation matrices, effective rank, filter curves, alignment.

Rows are expected as the method compares them: l2-normalised (SimSiam, BYOL) or softmaxed (SwAV,
DINO). Correlation matrices are uncentred second moments; eigenvalues descend. Equations are those
of Zhuo et al., "Towards a Unified Theoretical Understanding of Non-contrastive Learning via Rank
Differential Mechanism", ICLR 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics import Metric

__all__ = [
    "BranchSpectra",
    "Spectra",
    "alignment",
    "correlation",
    "effective_rank",
    "filter_curve",
    "leading",
    "spearman",
]

# The paper looks at the leading eigenvalues whose sum exceeds this share of the total.
LEADING_SHARE = 0.9999


def correlation(x: Tensor) -> Tensor:
    """The uncentred correlation matrix ``C = E[x x^T]`` in float64 (Section 3).

    Shapes: ``(N, k) -> (k, k)``.

    >>> correlation(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    """
    if x.ndim != 2 or len(x) == 0:
        raise ValueError(
            f"correlation takes a non-empty batch of shape (N, k), got {tuple(x.shape)}."
        )
    y = x.detach().double()
    return y.mT @ y / len(y)


def effective_rank(lam_or_C: Tensor) -> Tensor:
    r"""The effective rank :math:`\exp(-\sum_i q_i \log q_i)`, :math:`q = \lambda/\sum\lambda`.

    Takes the eigenvalues of a correlation matrix, or the matrix. It lies between 1 and k, and is
    0 for the zero matrix, which spans nothing. The eigenvalues are those of C (Section 3), not
    singular values of the features, whose entropy gives another number.

    Shapes: ``(k,)`` or ``(k, k) -> ()``.

    >>> round(float(effective_rank(torch.tensor([1.0, 1.0, 0.0]))), 6)
    2.0
    """
    if lam_or_C.ndim == 2 and lam_or_C.shape[0] == lam_or_C.shape[1]:
        lam = torch.linalg.eigvalsh(lam_or_C.double())
    elif lam_or_C.ndim == 1:
        lam = lam_or_C.double()
    else:
        raise ValueError(
            "effective_rank takes eigenvalues (k,) or a square matrix (k, k), "
            f"got {tuple(lam_or_C.shape)}."
        )
    lam = lam.clamp_min(0)
    total = lam.sum()
    entropy = torch.special.entr(lam / torch.where(total > 0, total, 1.0)).sum()
    return torch.where(total > 0, entropy.exp(), 0.0)


def filter_curve(lam_p: Tensor, lam_z: Tensor) -> Tensor:
    r"""The online filter :math:`g(\lambda^z_i) = \sqrt{\lambda^p_i / \lambda^z_i}` (Lemma 2).

    Both spectra are paired by rank. Where the target's eigenvalue is rounding noise there is no
    curve: NaN.

    Shapes: ``(k,), (k,) -> (k,)``.

    >>> filter_curve(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 1.0]))
    tensor([2., 1.], dtype=torch.float64)
    """
    lam_p = lam_p.double().clamp_min(0)
    lam_z = lam_z.double().clamp_min(0)
    noise = lam_z.max() * len(lam_z) * torch.finfo(torch.float64).eps
    real = lam_z > noise
    ratio = lam_p / torch.where(real, lam_z, 1.0)
    return torch.where(real, ratio.sqrt(), torch.nan)


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
    tail of tiny directions does not decide.

    Shapes: ``(k, k), (k, k) -> ()``.

    >>> C = torch.diag(torch.tensor([3.0, 1.0]))
    >>> alignment(C @ C, C)
    tensor(1., dtype=torch.float64)
    """
    lam, u = torch.linalg.eigh(C_z.double())
    return _alignment(C_p.double(), lam.flip(0), u.flip(1), m, weighted)


def _alignment(C_p: Tensor, lam: Tensor, u: Tensor, m: int | None, weighted: bool) -> Tensor:
    m = leading(lam) if m is None else m
    if not 1 <= m <= len(lam):
        raise ValueError(f"m must lie between 1 and k={len(lam)}, got {m}.")
    u, lam = u[:, :m], lam[:m].clamp_min(0)
    image = C_p @ u
    norm = torch.linalg.vector_norm(image, dim=0)
    cosine = (u * image).sum(0) / torch.where(norm > 0, norm, 1.0)
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


@dataclass
class Spectra:
    """What an epoch's outputs look like; made by :meth:`BranchSpectra.compute`."""

    lam_online: Tensor
    lam_target: Tensor
    lam_positive: Tensor
    lam_projection: Tensor
    curve: Tensor
    curve_directional: Tensor
    scalars: dict[str, float]
    rows: int

    def arrays(self) -> dict[str, Tensor]:
        """Eigenvalues and curves by the names that they have on disk."""
        return {
            "lam_online": self.lam_online,
            "lam_target": self.lam_target,
            "lam_positive": self.lam_positive,
            "lam_projection": self.lam_projection,
            "filter_curve": self.curve,
            "filter_curve_directional": self.curve_directional,
        }


class BranchSpectra(Metric):
    """Correlation matrices of both branches over an epoch, and the numbers read off them.

    Second moments are summed in float64 and added over processes, so two processes equal one.
    ``update`` takes the online outputs p_x, the target outputs z_x of the same views and z_{x+} of
    their positives, and, where a filter stands between, the unfiltered projections.

    Args:
        dim: k, the outputs' dimension.
        normalize: scale rows to unit length first (``True`` for SimSiam and BYOL; outputs of a
            softmax are taken as they are).

    >>> metric = BranchSpectra(dim=2)
    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> metric.update(online=z, target=z, positive=z)
    >>> round(metric.compute().scalars["erank/target"], 6)
    2.0
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    sum_online: Tensor
    sum_target: Tensor
    sum_positive: Tensor
    sum_projection: Tensor
    sum_mean: Tensor
    sum_squared: Tensor
    count: Tensor
    broken: Tensor

    def __init__(self, dim: int, normalize: bool = True) -> None:
        super().__init__(compute_with_cache=False)
        self.dim = dim
        self.normalize = normalize
        square = torch.zeros(dim, dim, dtype=torch.float64)
        for name in ("sum_online", "sum_target", "sum_positive", "sum_projection"):
            self.add_state(name, square.clone(), dist_reduce_fx="sum")
        self.add_state("sum_mean", square[0].clone(), dist_reduce_fx="sum")
        self.add_state("sum_squared", square[0, 0].clone(), dist_reduce_fx="sum")
        for name in ("count", "broken"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    @torch.no_grad()
    def update(
        self, online: Tensor, target: Tensor, positive: Tensor, projection: Tensor | None = None
    ) -> None:
        """Add a batch. Shapes: ``(N, k)`` each. Rows with NaN or infinity in any of them are left
        out, as the filters do, and counted."""
        if projection is None:
            projection = target
        for name, x in {"online": online, "target": target, "positive": positive}.items():
            if x.ndim != 2 or x.shape != (len(online), self.dim):
                raise ValueError(
                    f"{name} must have shape (N, {self.dim}) with one N for all, "
                    f"got {tuple(x.shape)} beside {tuple(online.shape)}."
                )
        whole = torch.stack(
            [x.isfinite().all(1) for x in (online, target, positive, projection)]
        ).all(0)
        p, z, z_plus, y = (self._rows(x, whole) for x in (online, target, positive, projection))
        gram_z = z.mT @ z
        self.sum_online += p.mT @ p
        self.sum_target += gram_z
        self.sum_positive += z.mT @ z_plus
        self.sum_projection += gram_z if projection is target else y.mT @ y
        self.sum_mean += y.sum(0)
        self.sum_squared += y.square().sum()
        self.count += whole.sum()
        self.broken += (~whole).sum()

    def _rows(self, x: Tensor, whole: Tensor) -> Tensor:
        # Zero rows add nothing; dropping them would make the device tell how many are left.
        x = x.detach().double().where(whole[:, None], 0.0)
        if not self.normalize:
            return x
        return torch.nn.functional.normalize(x, dim=1)

    @torch.no_grad()
    def compute(self) -> Spectra:
        """Eigenvalues, curves and scalars of everything since the last reset."""
        rows = int(self.count)
        if rows == 0:
            seen = "no batch yet; call update() first" if not self.broken else "no finite row"
            raise ValueError(f"BranchSpectra has seen {seen}.")
        C_p, C_z, C_y = (s / rows for s in (self.sum_online, self.sum_target, self.sum_projection))
        C_plus = (self.sum_positive + self.sum_positive.mT) / (2 * rows)
        lam_p, lam_plus, lam_y = (
            torch.linalg.eigvalsh(C).flip(0).clamp_min(0) for C in (C_p, C_plus, C_y)
        )
        lam_z, u = torch.linalg.eigh(C_z)
        lam_z, u = lam_z.flip(0).clamp_min(0), u.flip(1)
        curve = filter_curve(lam_p, lam_z)
        # The stricter curve: what the online branch holds along the target's own directions.
        directional = filter_curve(torch.einsum("ij,ik,kj->j", u, C_p, u), lam_z)
        m = leading(lam_z)
        erank_p, erank_z, erank_y = (effective_rank(lam) for lam in (lam_p, lam_z, lam_y))
        scalars = {
            "erank/online": erank_p,
            "erank/target": erank_z,
            "erank/gap": erank_z - erank_p,
            "erank/projection": erank_y,
            "alignment/online_target": _alignment(C_p, lam_z, u, m, weighted=False),
            "alignment/online_target_weighted": _alignment(C_p, lam_z, u, m, weighted=True),
            "alignment/target_positive": _alignment(C_plus, lam_z, u, m, weighted=False),
            "filter/monotonicity": _monotonicity(curve[:m], lam_z[:m]),
            "filter/monotonicity_directional": _monotonicity(directional[:m], lam_z[:m]),
            "feature/variance": self.sum_squared / rows - (self.sum_mean / rows).square().sum(),
        }
        return Spectra(
            lam_p,
            lam_z,
            lam_plus,
            lam_y,
            curve,
            directional,
            {name: float(value) for name, value in scalars.items()},
            rows,
        )


def _monotonicity(curve: Tensor, lam: Tensor) -> Tensor:
    real = curve.isfinite()
    return spearman(curve[real], lam[real])
