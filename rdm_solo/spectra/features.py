"""Measures of rank of a backbone's outputs over an epoch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from rdm_solo.spectra import ranks, rows
from rdm_solo.spectra.branch_spectra import (
    LARGEST,
    add_or_gather,
    full_gram,
    step_mean,
    upper_gram,
)
from rdm_solo.spectra.moments import centred_eigenvalues


class FeatureSpectra(Metric):
    r"""Measures of rank of features that are not scaled to unit length.

    Each update has the features ``(N, k)`` of each view in a training step that all processes make
    together. ``between`` sums outer products of each sample's mean over its views, and ``within``
    outer products of the views' deviations from that mean. Their sum is the second moment, and
    LiDAR's :math:`\Sigma_b` and :math:`\Sigma_w` are computed from them.

    >>> metric = FeatureSpectra(dim=2)
    >>> metric.update([torch.eye(2)])
    >>> scalars = metric.compute()
    >>> round(scalars["erank/features"], 6), round(scalars["spread/features"], 6)
    (2.0, 0.5)
    """

    full_state_update = False
    between: Tensor
    within: Tensor
    total: Tensor
    means_squared: Tensor
    samples: Tensor
    views: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__(compute_with_cache=False, dist_sync_fn=add_or_gather)
        shapes = {"between": (dim, dim), "within": (dim, dim), "total": (dim,), "means_squared": ()}
        for name, shape in shapes.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("samples", "views"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    @torch.no_grad()
    def update(self, views: Sequence[Tensor]) -> None:
        """Add a step's features; samples with NaN or infinity in any view are excluded."""
        valid = torch.stack([(x.abs() < LARGEST).all(1) for x in views]).all(0)
        sums = torch.zeros_like(views[0], dtype=torch.float64)
        for count, view in enumerate(views):
            x = view.double().where(valid[:, None], 0.0)
            if count:  # Helmert contrast with the mean of the previous views
                contrast = (sums / count - x) * (count / (count + 1)) ** 0.5
                self.within += upper_gram(contrast)
            sums += x
        self.between += upper_gram(sums / len(views) ** 0.5)
        self.total += sums.sum(0)
        self.means_squared += step_mean(sums.sum(0), valid.repeat(len(views))).square().sum()
        self.samples += valid.sum()
        self.views += valid.sum() * len(views)

    @torch.no_grad()
    def compute(self) -> dict[str, float]:
        """Return the scalars by column name, or an empty dict if there was no finite row."""
        samples, count = int(self.samples), int(self.views)
        if not samples:
            return {}
        within, between = full_gram(self.within) / count, full_gram(self.between) / count
        C, mean = within + between, self.total / count
        lam, lam_covariance = ranks.descending(C), centred_eigenvalues(C, mean.outer(mean))
        values = {
            "erank/features": ranks.effective_rank(lam),
            "erank/features_centred": ranks.effective_rank(lam_covariance),
            "rankme/features": ranks.rankme(lam, rows=count),
            "stable_rank/features": ranks.stable_rank(lam),
            "spread/features": rows.spread(C.trace(), self.means_squared / count),
        }
        alpha, r2 = ranks.alpha_req(lam_covariance)
        if bool(alpha.isfinite()):
            values |= {"alpha_req/features": alpha, "alpha_req_r2/features": r2}
        if samples > 1 and count > samples and count % samples == 0:  # q views of each sample
            q = count // samples
            S_w = within * (q / (q - 1))
            S_b = (between - mean.outer(mean)) * (samples / (samples - 1))
            lam = rows.discriminant_eigenvalues(S_w, S_b, rows.DELTA)
            values["lidar/features"] = rows.smoothed_rank(lam, len(lam), rows.EPSILON)
        return {name: float(value) for name, value in values.items()}
