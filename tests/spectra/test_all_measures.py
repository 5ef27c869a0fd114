"""Every measure as BranchSpectra computes it in one pass, against the functions on all rows."""

import math

import pytest
import torch
from support.branches import random_views
from torch import Tensor
from torch.nn.functional import normalize

from rdm_solo.spectra import (
    BranchSpectra,
    alpha_req,
    correlation,
    epps_pulley,
    lidar,
    mean_share,
    nesum,
    participation_ratio,
    positive_distance,
    rankme,
    stable_rank,
    uniformity,
)

ALL_ROWS = {"max_dim": 4, "sample": 1000}


def two_views() -> tuple[Tensor, Tensor]:
    """Return the targets of two views of 200 samples, and of the same samples' other views."""
    views = random_views(200, 2, 24) + 0.2
    a, b = views.unbind(1)
    target = torch.cat([a, b])
    return target, target.roll(200, 0)


def measure(**options: int) -> BranchSpectra:
    """Return a metric of uneven batches with two views of each sample."""
    metric = BranchSpectra(24, **options)
    target, positive = two_views()
    for samples in torch.arange(200).split(33):
        rows = torch.cat([samples, samples + 200])
        z = target[rows]
        metric.update(z.square(), z, positive[rows])
    return metric


@pytest.mark.parametrize("options", [{}, ALL_ROWS], ids=["matrices", "all rows"])
@pytest.mark.parametrize("unit", [True, False], ids=["length 1", "as they are"])
def test_one_pass_gives_what_the_functions_give_on_all_rows(options, unit):
    spectra = measure(normalize=unit, **options).compute()
    rows, positives = two_views()
    z = rows
    p = rows.square()
    if unit:
        z = normalize(z, dim=1)
        p = normalize(p, dim=1)
    a, b = z.chunk(2)
    views = torch.stack([a, b], 1)
    if spectra.sampled:  # each sample counts twice
        views = torch.cat([views, views])
    C_z = correlation(z)
    C_p = correlation(p)
    centred = correlation(z - z.mean(0))
    covariance = torch.linalg.eigvalsh(centred).flip(0)
    alpha, r2 = alpha_req(covariance)
    expected = {
        "stable_rank/target": stable_rank(C_z),
        "stable_rank/online": stable_rank(C_p),
        "participation_ratio/target": participation_ratio(C_z),
        "nesum/target": nesum(covariance),
        "alpha_req/target": alpha,
        "alpha_req_r2/target": r2,
        "lidar/target": lidar(views),
        "positive_distance/target": positive_distance(rows, positives),
        "epps_pulley/projection": epps_pulley(rows),
        "mean_share/target": mean_share(z),
        "uniformity/target": uniformity(rows),
    }
    if not spectra.sampled:
        expected["rankme/online"] = rankme(C_p)
        expected["rankme/target"] = rankme(C_z)
    for name, value in expected.items():
        close = pytest.approx(value.item(), rel=1e-9)
        assert spectra.scalars[name] == close, name
    atol = 1e-12 * float(covariance[0])
    torch.testing.assert_close(spectra.lam_covariance, covariance, rtol=1e-9, atol=atol)


def lidar_of(online: Tensor, target: Tensor, positive: Tensor) -> float | None:
    metric = BranchSpectra(24)
    metric.update(online, target, positive)
    return metric.compute().scalars.get("lidar/target")


def test_lidar_needs_both_views_of_each_of_two_samples_among_the_rows():
    """Positives that are not rows themselves leave the second view's moments unknown."""
    rows, _ = two_views()
    a, b = rows.chunk(2)
    three_views = torch.cat([a, b, a + b])
    collapsed = torch.ones(5, 24)  # an odd number of rows that all equal each other
    pair = torch.stack([a[0], b[0]])
    cases = [
        (a, b),
        (three_views, three_views.roll(200, 0)),
        (collapsed, collapsed),
        (pair, pair.flip(0)),
    ]
    for target, positive in cases:
        assert lidar_of(target, target, positive) is None


def test_lidar_is_absent_if_a_sample_lost_one_view():
    """NaN in the online output excludes that row, but not the other view's."""
    target, positive = two_views()
    online = target.clone()
    online[3] = math.nan
    assert lidar_of(online, target, positive) is None
    online[203] = math.nan  # the other view
    is_valid = torch.arange(400) % 200 != 3
    target_rows = target[is_valid]
    expected = lidar_of(target_rows, target_rows, positive[is_valid])
    assert lidar_of(online, target, positive) == pytest.approx(expected, rel=1e-9)


def test_uniformity_of_a_sample_weights_targets_that_many_rows_share():
    """10,240 images in 64 equal clusters have one-hot targets."""
    target = torch.eye(64).repeat(160, 1)
    draw = torch.Generator().manual_seed(0)
    online = torch.rand(10_240, 64, generator=draw)
    metric = BranchSpectra(64, normalize=False)
    metric.update(online, target)
    assert len(metric.kept[0]) == 4096
    # Two rows are equal with probability 159 / 10239; otherwise their squared distance is 2.
    equal = 159 / 10_239
    mean = equal + (1 - equal) * math.exp(-4)
    # The sample of 4,096 rows has 64 +- 6 rows of each cluster: a standard error of 0.005.
    actual = metric.compute().scalars["uniformity/target"]
    assert actual == pytest.approx(math.log(mean), abs=0.02)


def test_a_warning_names_too_few_rows_for_the_dimensions():
    metric = BranchSpectra(24)
    x = torch.randn(24, 24)
    metric.update(x, x)
    assert "N=24" in metric.compute().warning
    metric.update(x + 1, x + 1)
    assert metric.compute().warning is None
    sampled = measure(max_dim=4, sample=8).compute()
    assert "N=8" in sampled.warning
