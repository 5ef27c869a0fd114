"""What other packages give where they say RankMe, LiDAR, alpha-ReQ or effective rank.

Each takes features as its package does and follows that package's arithmetic, so that figures from
elsewhere can be read; the definitions are in :mod:`rdm_solo.spectra.ranks`. Versions:
stable-pretraining 0.1.8, reptrix 0.1.0, MONAI 1.6.1.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from rdm_solo.messages import UserError
from rdm_solo.spectra.lda import DELTA, EPSILON, lidar_of_views
from rdm_solo.spectra.matrices import exponential_entropy

Package = Literal["stable-pretraining", "reptrix", "monai"]

# reptrix keeps no more eigenvalues than that.
REPTRIX_MOST = 2048


def value(measure: str, package: str, features: Tensor, **options: Any) -> Any:
    """That package's number under the name of this measure; NaN where features are not finite.

    Options that are None are left to the package.

    >>> float(value("rankme", "reptrix", torch.tensor([[1.0, 0.0], [0.0, 1.0]]))) < 1.001
    True
    """
    known = [name for m, name in FORMULAS if m == measure]
    if package not in known:
        raise UserError(
            f"compatible_with={package!r}: {measure} is known for {' and '.join(map(repr, known))}."
        )
    allowed = 3 if measure == "lidar" else 2
    if features.ndim != allowed or 0 in features.shape:
        shape = "views (n, q, k)" if allowed == 3 else "rows (N, k)"
        raise UserError(
            f"{measure} with compatible_with={package!r} takes {shape}, as that package does; "
            f"got {tuple(features.shape)}."
        )
    formula = FORMULAS[measure, package]
    given = {name: option for name, option in options.items() if option is not None}
    for name in given:
        if name not in inspect.signature(formula).parameters:
            raise UserError(
                f"compatible_with={package!r}: {measure} takes no {name}, since that package's "
                "number has a fixed one or none; leave it out."
            )
    x = features.detach().double()
    if not bool(x.isfinite().all()):
        nothing = x.new_tensor(torch.nan)
        return (nothing, nothing) if measure == "alpha_req" else nothing
    return formula(x, **given)


def _stable_pretraining_rankme(x: Tensor) -> Tensor:
    """The definition, with 1e-5 for epsilon in place of 1e-7."""
    sigma = torch.linalg.svdvals(x)
    return exponential_entropy(sigma, 1e-5)


def _explained_variance(x: Tensor) -> Tensor:
    """Shares of the variance along the principal axes: eigenvalues, of *centred* rows."""
    lam: Tensor = torch.linalg.svdvals(x - x.mean(0)).square()
    return (lam / lam.sum())[:REPTRIX_MOST]


def _reptrix_rank(x: Tensor) -> Tensor:
    return exponential_entropy(_explained_variance(x), 1e-7)


def _reptrix_alpha(x: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
    """The definition's exponent; R² is read from number ``first + 1`` on, as far as 500."""
    share = _explained_variance(x)
    if len(share) < last:
        raise UserError(
            f"reptrix's alpha_req needs {last} eigenvalues, got rows of shape {tuple(x.shape)}."
        )
    i = torch.arange(1, len(share) + 1, dtype=torch.float64, device=share.device)
    fitted = slice(first - 1, last)
    design = torch.stack([-i.log(), torch.ones_like(i)], 1)
    y, weights = share.log(), 1 / i.float().double()
    A, w = design[fitted], weights[fitted, None]
    b = torch.linalg.solve(A.mT @ (A * w), (A * w).mT @ y[fitted])
    end = 500 if len(share) >= 512 else len(share) - 10
    read = slice(first, end)
    off = (y - design @ b)[read].square().sum()
    return b[0], 1 - off / (y[read] - y[read].mean()).square().sum()


def _stable_pretraining_lidar(views: Tensor, delta: float = DELTA, eps: float = EPSILON) -> Tensor:
    """The definition, of groups of q *consecutive* rows of a queue.

    Two-view batches fill the queue with all first views and then all second ones, so that a group
    holds different images.
    """
    n, q, k = views.shape
    return lidar_of_views(views.transpose(0, 1).reshape(n, q, k), delta, eps)


def _reptrix_lidar(views: Tensor) -> Tensor:
    """Scatter matrices without their divisors, and the *squares* of the result's eigenvalues, since
    it passes through a principal component analysis; delta 1e-6."""
    n, _, k = views.shape
    means = views.mean(1)
    within = views - means[:, None]
    S_w = torch.einsum("nqi,nqj->ij", within, within) / n + 1e-6 * torch.eye(k).to(views)
    around = means - means.mean(0)
    lam, u = torch.linalg.eigh(S_w)
    root = (u * lam.rsqrt()) @ u.mT
    return _reptrix_rank(root @ (around.mT @ around) @ root)


def _monai_score(x: Tensor) -> Tensor:
    """A *score*: 1 less the share that the centred singular values' rank has of the largest rank
    possible, min(N - 1, k); 1 is collapse, 0 a flat spectrum."""
    sigma = torch.linalg.svdvals(x - x.mean(0))
    return (1 - exponential_entropy(sigma) / min(len(x) - 1, x.shape[1])).clamp(0, 1)


FORMULAS: dict[tuple[str, str], Callable[..., Any]] = {
    ("effective_rank", "monai"): _monai_score,
    ("rankme", "stable-pretraining"): _stable_pretraining_rankme,
    ("rankme", "reptrix"): _reptrix_rank,
    ("rankme", "monai"): _monai_score,
    ("alpha_req", "reptrix"): _reptrix_alpha,
    ("lidar", "stable-pretraining"): _stable_pretraining_lidar,
    ("lidar", "reptrix"): _reptrix_lidar,
}
