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
    n, k = x.shape
    centred = x - x.mean(0)
    gram = centred.mT @ centred
    covariance = gram / (n - 1)
    trace = covariance.trace()
    tiny = torch.finfo(x.dtype).tiny
    trace = trace.clamp_min(tiny)  # zero if all rows are equal
    P = torch.eye(k, dtype=x.dtype, device=x.device)
    for _ in range(steps):
        triple = 3 * P
        cube = P @ P @ P
        normalised = covariance / trace
        P = (triple - cube @ normalised) / 2
    whitened = centred @ P
    return whitened * trace.rsqrt()


def intl_loss(views: list[Tensor], steps: int, weight: float) -> Tensor:
    """Return INTL's loss of two views (Weng et al., ICLR 2024).

    It is 2 - 2 cos of the whitened views, plus the trace loss: the squared distances of the
    whitened variances from 1, times ``weight (log2(d) - 3)``. Columns are whitened (d = k) if there
    are more rows than columns, otherwise rows (d = N), as in the authors' code.
    """
    n, k = views[0].shape
    d = min(n, k)
    output_dim = 1
    z1, z2 = views
    if n <= k:
        z1 = z1.mT
        z2 = z2.mT
        output_dim = 0
    x1 = iterative_whitening(z1, steps)
    x2 = iterative_whitening(z2, steps)
    error1 = x1.var(0) - 1
    error2 = x2.var(0) - 1
    trace_loss = error1.square().sum() + error2.square().sum()
    excess = math.log2(d) - 3
    trace_weight = weight * max(0.0, excess)
    cosine = cosine_similarity(x1, x2, dim=output_dim)
    alignment = 2 - 2 * cosine.mean()
    return alignment + trace_weight * trace_loss


def lejepa_loss(views: list[Tensor], weight: float, slices: int, seed: int) -> Tensor:
    """Return LeJEPA's loss (Balestriero and LeCun, 2025): prediction, and SIGReg of each view.

    Prediction is the mean squared distance of a view from the sample's mean view, per dimension.
    SIGReg is the Epps-Pulley statistic along random directions, computed for each view apart and
    averaged, because the rows of one sample are not independent. Its ``weight`` is from 0 to 1.
    """
    mean = torch.stack(views).mean(0)
    n, k = mean.shape
    axes = directions(k, slices, seed)
    axes = axes.to(mean.device)
    valid = mean.new_ones(n, dtype=torch.bool)
    count = valid.sum()
    distances = []
    statistics = []
    for z in views:
        error = z - mean
        distances.append(error.square().mean())
        waves = wave_sums(z, axes, valid)
        statistic = epps_pulley_statistic(waves, count)
        statistics.append(statistic)
    prediction = torch.stack(distances).mean()
    sigreg = torch.stack(statistics).mean()
    return (1 - weight) * prediction + weight * sigreg.float()


def gathered(views: list[Tensor]) -> list[Tensor]:
    """Return the rows of all processes, with gradients."""
    if world_size() == 1:
        return views
    return [torch.cat(all_gather(z)) for z in views]  # type: ignore[no-untyped-call]


class INTL(Standalone):
    """Iterative whitening with trace loss (Weng et al., ICLR 2024)."""

    def compare(self, views: list[Tensor]) -> Tensor:
        steps = self.options["steps"]
        weight = self.options["trace_weight"]
        return intl_loss(gathered(views), steps, weight)


class LeJEPA(Standalone):
    """Prediction of the mean view, and SIGReg (Balestriero and LeCun, 2025)."""

    def compare(self, views: list[Tensor]) -> Tensor:
        weight = self.options["sigreg_weight"]
        slices = self.options["slices"]
        views = gathered(views)
        return lejepa_loss(views, weight, slices, seed=self.global_step)
