"""INTL and LeJEPA: losses that make the outputs isotropic, without any asymmetry of branches."""

import math

import torch
from torch import Tensor
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import cosine_similarity

from rdm_solo.ground.distributed import world_size
from rdm_solo.methods.symmetric import Standalone
from rdm_solo.spectra.rows import directions, epps_pulley_statistic, wave_sums


def iterative_whitening(x: Tensor, steps: int) -> Tensor:
    r"""Return centred rows times an approximation of :math:`\Sigma^{-1/2}`, with gradient.

    The approximation follows from Newton steps :math:`P \leftarrow (3P - P^3 \Sigma / \operatorname
    {tr}\Sigma) / 2` from :math:`P = I` (Huang et al., CVPR 2019), and is at most
    :math:`\Sigma^{-1/2}`. Shapes: ``(N, k) -> (N, k)``.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    >>> torch.cov(iterative_whitening(x, steps=12).mT).round(decimals=4)
    tensor([[1., 0.],
            [0., 1.]])
    """
    centred = x - x.mean(0)
    covariance = centred.mT @ centred / (len(x) - 1)
    tiny = torch.finfo(x.dtype).tiny
    trace = covariance.trace().clamp_min(tiny)  # zero if all rows are equal
    P = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    for _ in range(steps):
        P = (3 * P - P @ P @ P @ (covariance / trace)) / 2
    return centred @ P * trace.rsqrt()


def intl_loss(views: list[Tensor], steps: int, weight: float) -> Tensor:
    """Return INTL's loss of two views (Weng et al., ICLR 2024).

    It is 2 - 2 cos of the whitened views, plus the trace loss: the squared distances of the
    whitened variances from 1, times ``weight (log2(d) - 3)``. Columns are whitened (d = k) if there
    are more rows than columns, otherwise rows (d = N), as in the authors' code.
    """
    n, k = views[0].shape
    output_dim = 1
    if n <= k:
        views = [z.mT for z in views]
        output_dim = 0
    x1, x2 = (iterative_whitening(z, steps) for z in views)
    trace_loss = (x1.var(0) - 1).square().sum() + (x2.var(0) - 1).square().sum()
    cosine = cosine_similarity(x1, x2, dim=output_dim)
    alignment = 2 - 2 * cosine.mean()
    trace_weight = weight * max(0.0, math.log2(min(n, k)) - 3)
    return alignment + trace_weight * trace_loss


def lejepa_loss(views: list[Tensor], weight: float, slices: int, seed: int) -> Tensor:
    """Return LeJEPA's loss (Balestriero and LeCun, 2025): prediction, and SIGReg of each view.

    Prediction is the mean squared distance of a view from the sample's mean view, per dimension.
    SIGReg is the Epps-Pulley statistic along random directions, computed for each view apart and
    averaged, because the rows of one sample are not independent. Its ``weight`` is from 0 to 1.
    """
    mean = torch.stack(views).mean(0)
    n, k = mean.shape
    axes = directions(k, slices, seed).to(mean.device)
    valid = mean.new_ones(n, dtype=torch.bool)
    distances = []
    statistics = []
    for z in views:
        distances.append((z - mean).square().mean())
        waves = wave_sums(z, axes, valid)
        statistics.append(epps_pulley_statistic(waves, valid.sum()))
    prediction = torch.stack(distances).mean()
    sigreg = torch.stack(statistics).mean().float()
    return (1 - weight) * prediction + weight * sigreg


def gathered(views: list[Tensor]) -> list[Tensor]:
    """Return the rows of all processes, with gradients."""
    if world_size() == 1:
        return views
    return [torch.cat(all_gather(z)) for z in views]  # type: ignore[no-untyped-call]


class INTL(Standalone):
    """Iterative whitening with trace loss (Weng et al., ICLR 2024)."""

    def compare(self, views: list[Tensor]) -> Tensor:
        return intl_loss(gathered(views), self.options["steps"], self.options["trace_weight"])


class LeJEPA(Standalone):
    """Prediction of the mean view, and SIGReg (Balestriero and LeCun, 2025)."""

    def compare(self, views: list[Tensor]) -> Tensor:
        weight, slices = self.options["sigreg_weight"], self.options["slices"]
        return lejepa_loss(gathered(views), weight, slices, seed=self.global_step)
