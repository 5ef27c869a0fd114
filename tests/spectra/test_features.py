"""The backbone's spectrum from sums over steps, against the measures of all rows at once."""

import pytest
import torch
from support.branches import random_views
from torch import Tensor

from rdm_solo.spectra import alpha_req, correlation, effective_rank, lidar, rankme, stable_rank
from rdm_solo.spectra.features import FeatureSpectra


def features(views: int) -> Tensor:
    return 0.5 + random_views(96, views, 20)


def measure(*steps: Tensor) -> dict[str, float]:
    metric = FeatureSpectra(20)
    for step in steps:
        metric.update(step.unbind(1))
    return metric.compute()


@pytest.mark.parametrize("views", [1, 2, 3])
def test_sums_over_steps_equal_the_measures_of_all_rows(views):
    x = features(views)
    rows = x.flatten(0, 1)
    C = correlation(rows)
    covariance = torch.cov(rows.mT, correction=0)
    lam = torch.linalg.eigvalsh(covariance).flip(0)
    alpha, r2 = alpha_req(lam)
    steps = x.reshape(3, 32 * views, 20)
    variances = steps.var(1, correction=0).sum(1)
    expected = {
        "erank/features": effective_rank(C),
        "erank/features_centred": effective_rank(lam),
        "rankme/features": rankme(C),
        "stable_rank/features": stable_rank(C),
        "alpha_req/features": alpha,
        "alpha_req_r2/features": r2,
        "spread/features": variances.mean() / C.trace(),
    }
    if views > 1:
        expected["lidar/features"] = lidar(x)
    actual = measure(*x.split(32))
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        close = pytest.approx(value.item(), rel=1e-9)
        assert actual[name] == close, name


def test_a_sample_with_a_broken_view_is_excluded():
    x = features(2)
    x[7, 1, 3] = torch.nan
    is_valid = torch.arange(96) != 7
    expected = measure(x[is_valid])
    assert measure(x) == pytest.approx(expected, rel=1e-12)
    assert measure(x * torch.inf) == {}


def measure_part(rank: int, size: int) -> dict[str, float]:
    steps = features(2).split(33)
    parts = [step.tensor_split(size)[rank] for step in steps]
    return measure(*parts)


def test_two_processes_measure_what_one_does(worlds):
    expected = measure_part(0, 1)
    for scalars in worlds(2).run(measure_part):
        assert scalars == pytest.approx(expected, rel=1e-9)
