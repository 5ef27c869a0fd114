r"""Measures of rows: their mean, uniformity on the sphere, normality, and LiDAR of views.

**Epps-Pulley.** Along one direction the test compares the empirical characteristic function
:math:`\hat\varphi(t) = \frac1N\sum_j e^{it u_j}` with that of N(0, 1):

.. math::
    T = N \int |\hat\varphi(t) - e^{-t^2/2}|^2\, e^{-t^2/2}\, dt

SIGReg (Balestriero and LeCun, "LeJEPA", 2025, Section 4) averages T over random directions. The
trapezoidal rule with 17 points in [0, 3] gives half of the integral, which is doubled.
"""

import math

import torch
from torch import Tensor

from rdm_solo.ground.devices import product_dtype
from rdm_solo.spectra.ranks import descending, exponential_entropy

# Number of rows whose distances to all others are computed at a time.
BLOCK = 512
# Upper limit and number of points of the Epps-Pulley integral, and number of directions.
END, POINTS, SLICES = 3.0, 17, 256
# LiDAR's delta and epsilon; delta has the scale of the features' variances.
DELTA, EPSILON = 1e-4, 1e-8


def mean_share(x: Tensor) -> Tensor:
    r"""Return the mean's share of the second moment, :math:`\|\mu\|^2 / \frac1N\sum_i\|x_i\|^2`.

    It is 0 if the rows' mean :math:`\mu` is 0, and 1 if all rows equal their mean.

    Shapes: ``(N, k) -> ()``.

    >>> float(mean_share(torch.tensor([[1.0, 0.0], [0.0, 1.0]])))
    0.5
    """
    x = x.detach().double()
    moment = x.square().sum(1).mean()
    mean_moment = x.mean(0).square().sum()
    return 1 - spread(moment, mean_moment)


def spread(moment: Tensor, means_moment: Tensor) -> Tensor:
    """Return the variance's share of the second moment, which is 1 minus the means' share."""
    share = 1 - means_moment / moment
    return torch.where(moment == 0, 0.0, share.clamp_min(0))


def unit_rows(x: Tensor) -> Tensor:
    """Return rows in float64, scaled to length 1; rows of zeros stay zero."""
    y = x.detach().double()
    if x.dtype == torch.double:  # squares may overflow
        largest = y.abs().amax(1, keepdim=True)
        y = y / torch.where(largest > 0, largest, 1.0)
    return torch.nn.functional.normalize(y, dim=1, eps=1e-150)


def positive_distance(x: Tensor, y: Tensor) -> Tensor:
    r"""Return the alignment loss :math:`\frac1N\sum_i\|x_i - y_i\|^2` of rows and their positives.

    Rows are scaled to length 1. The distance is 0 if both views of each sample agree, and at most
    4. It is unrelated to the :func:`alignment` of eigenspaces.

    Shapes: ``(N, k), (N, k) -> ()``.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> float(positive_distance(x, x.flip(0)))
    2.0
    """
    differences = unit_rows(x) - unit_rows(y)
    return differences.square().sum(1).mean()


def uniformity(x: Tensor, t: float = 2) -> Tensor:
    r"""Return the uniformity loss :math:`\log\frac{1}{N(N-1)}\sum_{i\ne j} e^{-t\|x_i-x_j\|^2}`.

    Rows are scaled to length 1. The loss is 0 if all are equal, and lower the more evenly they
    cover the sphere: about :math:`-2t` for uniform rows in many dimensions. Time grows with N²,
    memory with N. Squared distances are computed in float64, or in float32 (to about 1e-6) for
    float32 rows without TF32.

    Shapes: ``(N, k) -> ()``.

    >>> float(uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])))
    -8.0
    """
    rows = unit_rows(x)
    if x.dtype == torch.float32:
        rows = rows.float().to(product_dtype(x.dtype))
    squares = rows.square().sum(1)
    sums = []
    for start in range(0, len(rows), BLOCK):
        # Distances between the rows a of a block and the rows b of this block or a later one:
        # |a - b|^2 = |a|^2 + |b|^2 - 2 a^T b.
        block = slice(start, start + BLOCK)
        later = slice(start, None)
        lengths = squares[block, None] + squares[later]
        with torch.autocast(x.device.type, enabled=False):
            distances = torch.addmm(lengths, rows[block], rows[later].mT, alpha=-2)
        exponents = -t * distances.clamp_min_(0)
        # Count each pair once, and no row with itself.
        ones = torch.ones_like(exponents, dtype=torch.bool)
        exponents.masked_fill_(ones.tril_(), -math.inf)
        block_total = exponents.flatten().logsumexp(0)
        sums.append(block_total.double())
    n = len(rows)
    pairs = n * (n - 1) / 2
    total = torch.stack(sums).logsumexp(0)
    return total - math.log(pairs)


def epps_pulley(x: Tensor) -> Tensor:
    r"""Return the mean of the Epps-Pulley statistic T over 256 directions (LeJEPA, Section 4).

    It is about 1 for standard normal rows at any N. For other rows it grows with N, so only compare
    values at the same N. Rows are neither centred nor scaled.

    Shapes: ``(N, k) -> ()``.

    >>> draw = torch.Generator().manual_seed(0)
    >>> x = torch.randn(512, 16, generator=draw)
    >>> bool(epps_pulley(x) < 1.5), bool(epps_pulley(3 * x) > 30)
    (True, True)
    """
    axes = directions(x.shape[1]).to(x.device)
    valid = x.new_ones(len(x), dtype=torch.bool)
    waves = wave_sums(x.detach(), axes, valid)
    return epps_pulley_statistic(waves, valid.sum())


def directions(k: int, slices: int = SLICES, seed: int = 0) -> Tensor:
    """Return random unit vectors ``(k, slices)``, the same on all processes and devices."""
    draw = torch.Generator().manual_seed(seed)
    drawn = torch.randn(k, slices, generator=draw, dtype=torch.float64)
    axes: Tensor = drawn / drawn.norm(dim=0)
    return axes


def wave_sums(x: Tensor, axes: Tensor, valid: Tensor) -> Tensor:
    r"""Return :math:`\sum_j e^{it u_j}` over valid rows, for each direction and each t > 0.

    Shapes: ``(N, k), (k, slices), (N,) -> (2 (points - 1), slices)``, real before imaginary parts.
    """
    valid = valid[:, None]
    x = x.where(valid, 0.0).double()
    u = x @ axes
    angle = u * (END / (POINTS - 1))
    length = valid.to(angle).expand_as(angle).contiguous()
    first = torch.polar(length, angle)  # exp(i t u) for the first t, or 0 if not valid
    # The points are equally spaced, so each wave is a power of the first.
    wave = first
    sums = []
    for _ in range(POINTS - 1):
        sums.append(wave.sum(0))
        wave = wave * first
    total = torch.stack(sums)
    return torch.cat([total.real, total.imag])


def epps_pulley_statistic(waves: Tensor, count: Tensor) -> Tensor:
    """Return the mean of T over directions, from :func:`wave_sums` of ``count`` rows."""
    step = END / (POINTS - 1)
    t = torch.arange(1, POINTS).to(waves) * step
    normal = (-t.square() / 2).exp()
    # Trapezoids; at t = 0 the integrand is 0. The factor 2 is for negative t.
    weights = 2 * step * normal
    weights[-1] /= 2
    mean_waves = waves / count
    real, imaginary = mean_waves.chunk(2)
    real = real - normal[:, None]
    squared_errors = real.square() + imaginary.square()
    products = weights[:, None] * squared_errors
    integrals = products.sum(0)
    return count * integrals.mean()


def lidar(views: Tensor) -> Tensor:
    r"""Return LiDAR, :math:`\exp(-\sum_i p_i\log p_i)` (Thilak et al., ICLR 2024).

    Here :math:`p = (\lambda+\epsilon)/\sum(\lambda+\epsilon)` with the eigenvalues :math:`\lambda`
    of :math:`\Sigma_w^{-1/2} \Sigma_b \Sigma_w^{-1/2}`. With the mean :math:`\mu_i` of each
    sample's views and the mean :math:`\mu` of these means,

    .. math::
        \Sigma_b = \frac{\sum_i (\mu_i-\mu)(\mu_i-\mu)^T}{n-1}, \qquad
        \Sigma_w = \frac{\sum_{ij} (x_{ij}-\mu_i)(x_{ij}-\mu_i)^T}{n(q-1)} + \delta I

    As in the paper, :math:`\delta = 10^{-4}` and :math:`\epsilon = 10^{-8}`. :math:`\delta` must be
    small compared with the features' variances. These are about 1/k for rows of length 1, so it is
    too large for k above a thousand. If the eigenvalues sum to less than :math:`k\epsilon`, the
    result is 0, while the definition gives about k.

    Shapes: ``(n, q, k) -> ()``, q > 1 views of each of n > 1 samples.

    >>> views = torch.tensor([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2, [[-1.0, -1.0]] * 2])
    >>> round(float(lidar(views)), 4)
    1.7548
    """
    views = views.detach().double()
    S_w, S_b = view_scatter(views)
    lam = discriminant_eigenvalues(S_w, S_b)
    return smoothed_rank(lam, len(lam))


def view_scatter(views: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\Sigma_w` and :math:`\Sigma_b` of q views of each of n samples.

    Shapes: ``(n, q, k) -> (k, k), (k, k)``.
    """
    n, q, _ = views.shape
    means = views.mean(1)
    deviations = views - means[:, None]
    within = deviations.flatten(0, 1)
    between = means - means.mean(0)
    S_w = within.mT @ within / (n * (q - 1))
    S_b = between.mT @ between / (n - 1)
    return S_w, S_b


def discriminant_eigenvalues(S_w: Tensor, S_b: Tensor) -> Tensor:
    r"""Return the eigenvalues of :math:`(S_w + \delta I)^{-1/2} S_b (S_w + \delta I)^{-1/2}`.

    They are NaN if a matrix is not finite, or if the rounding errors of very large features exceed
    :math:`\delta`.
    """
    identity = torch.eye(len(S_w)).to(S_w)
    S_w = S_w + DELTA * identity
    # Every square root of the inverse gives the same eigenvalues; Cholesky's is the cheapest.
    root, failed = torch.linalg.cholesky_ex(S_w)
    if bool(failed):
        return S_w.new_full((len(S_w),), torch.nan)
    half = torch.linalg.solve_triangular(root, S_b, upper=False)
    ratio = torch.linalg.solve_triangular(root, half.mT, upper=False)
    return descending(ratio)


def smoothed_rank(lam: Tensor, k: int) -> Tensor:
    """Return LiDAR from k eigenvalues; missing eigenvalues count as zero.

    >>> bool(smoothed_rank(torch.ones(2), 3) == smoothed_rank(torch.tensor([1.0, 1.0, 0.0]), 3))
    True
    """
    missing = lam.new_zeros(k - len(lam))
    lam = torch.cat([lam, missing])
    rank = exponential_entropy(lam + EPSILON)
    is_collapsed = lam.sum() < k * EPSILON
    return torch.where(is_collapsed, 0.0, rank)
