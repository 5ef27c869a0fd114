"""Every measure as BranchSpectra reads it in one pass, against the functions on all rows."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from rdm_solo.spectra import (
    BranchSpectra,
    alpha_req,
    branch_spectra,
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

ROUTES = {"matrices": {}, "all rows": {"max_dim": 4, "sample": 1000}}


def two_views(n: int = 200, k: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, k + 1) ** -0.5
    means = torch.randn(n, k, generator=draw) * scale + 0.2
    return tuple(means + 0.2 * torch.randn(n, k, generator=draw) * scale for _ in "ab")


def measured(normalize_rows: bool = True, **options: int) -> BranchSpectra:
    """200 samples in uneven batches, each of two views; the online branch is another function."""
    a, b = two_views()
    metric = BranchSpectra(24, normalize=normalize_rows, **options)
    for rows in torch.arange(200).split(33):
        target, positive = torch.cat([a[rows], b[rows]]), torch.cat([b[rows], a[rows]])
        metric.update(target.square(), target, positive)
    return metric


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("unit", [True, False], ids=["length 1", "as they come"])
def test_one_pass_gives_what_the_functions_give_on_all_rows(route, unit):
    spectra = measured(unit, **ROUTES[route]).compute()
    a, b = two_views()
    z = torch.cat([a, b])
    x, y = (normalize(v.double(), dim=1) for v in (z, torch.cat([b, a])))
    z_compared = x if unit else z.double()
    p = z.square().double()
    p = normalize(p, dim=1) if unit else p
    mean = z_compared.mean(0)
    covariance = torch.linalg.eigvalsh(correlation(z_compared - mean)).flip(0)
    alpha, r2 = alpha_req(covariance)
    want = {
        "rankme/online": rankme(correlation(p)),
        "rankme/target": rankme(correlation(z_compared)),
        "stable_rank/target": stable_rank(correlation(z_compared)),
        "stable_rank/online": stable_rank(correlation(p)),
        "participation_ratio/target": participation_ratio(correlation(z_compared)),
        "nesum/target": nesum(covariance),
        "alpha_req/target": alpha,
        "alpha_req_r2/target": r2,
        "lidar/target": lidar(torch.stack(z_compared.chunk(2), 1)),
        "positive_distance/target": positive_distance(x, y),
        "uniformity/target": uniformity(x),
        "epps_pulley/projection": epps_pulley(z),
        "mean_share/target": mean_share(z_compared),
    }
    if route == "all rows":  # each sample twice, so n counts double
        views = torch.stack([z_compared, torch.cat(z_compared.chunk(2)[::-1])], 1)
        want["lidar/target"] = lidar(views)
    want = {n: x for n, x in want.items() if not (spectra.sampled and "rankme" in n)}
    for name, value in want.items():
        # Uniformity of float32 rows has their precision.
        rel = 1e-6 if name == "uniformity/target" else 1e-9
        assert spectra.scalars[name] == pytest.approx(float(value), rel=rel), name
    torch.testing.assert_close(
        spectra.lam_covariance, covariance, rtol=1e-9, atol=1e-12 * float(covariance[0])
    )


def test_lidar_needs_both_views_of_each_sample_among_the_rows():
    """Positives that are no rows themselves leave the second view's moments unknown."""
    a, b = two_views()
    metric = BranchSpectra(24)
    metric.update(a, a, b)
    assert "lidar/target" not in metric.compute().scalars
    metric.reset()
    three = torch.cat([a, b, a + b])
    metric.update(three, three, three.roll(200, 0))
    found = metric.compute().scalars
    assert "lidar/target" not in found
    assert "positive_distance/target" in found


def test_lidar_leaves_out_an_epoch_in_which_a_sample_lost_one_view():
    """NaN in the online output alone drops that row, but not the other view's."""
    a, b = two_views()
    target, positive = torch.cat([a, b]), torch.cat([b, a])
    online = target.clone()
    online[3] = math.nan
    metric = BranchSpectra(24)
    metric.update(online, target, positive)
    assert int(metric.broken) == 1
    assert "lidar/target" not in metric.compute().scalars
    metric.reset()
    online[3 + len(a)] = math.nan  # the other view
    metric.update(online, target, positive)
    kept = torch.arange(len(a)) != 3
    clean = BranchSpectra(24)
    clean.update(*[torch.cat([a[kept], b[kept]])] * 2, torch.cat([b[kept], a[kept]]))
    measured_lidar, expected = (m.compute().scalars["lidar/target"] for m in (metric, clean))
    assert measured_lidar == pytest.approx(expected, rel=1e-9)


def test_uniformity_compares_the_pairs_of_a_few_rows(monkeypatch):
    monkeypatch.setattr(branch_spectra, "PAIRED_ROWS", 100)
    sampled, every = measured(), measured(**ROUTES["all rows"])
    value, whole = (m.compute().scalars["uniformity/target"] for m in (sampled, every))
    assert value != whole
    assert value == pytest.approx(whole, rel=0.1)


def test_uniformity_weighs_targets_that_many_rows_share():
    """10,240 images in 64 equal clusters, whose one-hot targets are the rows."""
    target = torch.eye(64).repeat(160, 1)
    metric = BranchSpectra(64, normalize=False)
    metric.update(torch.rand(10_240, 64, generator=torch.Generator().manual_seed(0)), target)
    # Two rows are equal with probability 159 / 10239; otherwise their squared distance is 2.
    equal = 159 / 10_239
    expected = math.log(equal + (1 - equal) * math.exp(-4))
    # The sample of 4,096 rows has 64 +- 6 rows of each cluster: a standard error of 0.005.
    assert metric.compute().scalars["uniformity/target"] == pytest.approx(expected, abs=0.02)


def test_too_few_rows_for_the_dimensions_are_named():
    metric = BranchSpectra(24)
    x = torch.randn(24, 24)
    metric.update(x, x)
    assert "only N=24 rows for k=24 dimensions" in metric.compute().warning
    metric.update(x + 1, x + 1)
    assert metric.compute().warning is None
    sampled = measured(max_dim=4, sample=8).compute()
    assert "N=8 sampled rows" in sampled.warning
    assert sampled.rows == 8
