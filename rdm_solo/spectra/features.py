"""Measures of rank of a backbone's outputs over an epoch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rdm_solo.spectra import ranks, rows
from rdm_solo.spectra.epoch_summary import finite_scalars
from rdm_solo.spectra.moments import centred_eigenvalues
from rdm_solo.spectra.sums import SumMetric, full_gram, step_mean, upper_gram, valid_rows


class FeatureSpectra(SumMetric):
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

    def __init__(self, dim: int) -> None:
        super().__init__()
        # x are the q views of a sample, m their mean.
        self.add_sum("between", dim, dim)  # q m m^T, over samples
        self.add_sum("within", dim, dim)  # (x - m) (x - m)^T, over views of samples
        self.add_sum("total", dim)  # x, over views of samples
        self.add_sum("means_squared")  # N |mean of x|^2, over steps
        self.add_count("samples")
        self.add_count("views")  # of all samples

    @torch.no_grad()
    def update(self, views: Sequence[Tensor]) -> None:
        """Add a step's features; samples with NaN or infinity in any view are excluded."""
        valid = valid_rows(views)
        sums = torch.zeros_like(views[0], dtype=torch.float64)
        for count, view in enumerate(views):
            x = view.double().where(valid[:, None], 0.0)
            if count:  # Helmert contrast with the mean of the previous views
                difference = sums / count - x
                contrast = difference * (count / (count + 1)) ** 0.5
                self.within += upper_gram(contrast)
            sums += x
        self.between += upper_gram(sums / len(views) ** 0.5)
        total = sums.sum(0)
        self.total += total
        samples = valid.sum()
        rows = samples * len(views)
        self.samples += samples
        self.views += rows
        mean = step_mean(total, rows)
        self.means_squared += mean.square().sum()

    @torch.no_grad()
    def compute(self) -> dict[str, float]:
        """Return the scalars by column name, or an empty dict if there was no finite row."""
        samples, count = torch.stack([self.samples, self.views]).tolist()
        if not samples:
            return {}
        within = full_gram(self.within) / count
        between = full_gram(self.between) / count
        C = within + between
        mean = self.total / count
        C_mean = mean.outer(mean)
        lam = ranks.descending(C).cpu()
        lam_covariance = centred_eigenvalues(C, C_mean).cpu()
        alpha, r2 = ranks.alpha_req(lam_covariance)
        values = {
            "erank/features": ranks.effective_rank(lam),
            "erank/features_centred": ranks.effective_rank(lam_covariance),
            "rankme/features": ranks.rankme(lam, rows=count),
            "stable_rank/features": ranks.stable_rank(lam),
            "spread/features": rows.spread(C.trace(), self.means_squared / count),
            "alpha_req/features": alpha,
            "alpha_req_r2/features": r2,
        }
        # LiDAR needs the same number q > 1 of views of each sample.
        q = count // samples
        if samples > 1 and q > 1 and count == q * samples:
            S_w = within * (q / (q - 1))
            S_b = (between - C_mean) * (samples / (samples - 1))
            lam_lidar = rows.discriminant_eigenvalues(S_w, S_b).cpu()
            values["lidar/features"] = rows.smoothed_rank(lam_lidar, len(lam))
        return finite_scalars(values)
