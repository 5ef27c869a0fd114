"""The backbone's spectrum from sums over steps, against the measures of all rows at once."""

import pytest
import torch

from rdm_solo import spectra
from rdm_solo.spectra.features import FeatureSpectra


def features(views: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    scale = torch.logspace(0, -1, 20, dtype=torch.float64)
    samples = 2 + torch.randn(96, 1, 20, generator=draw, dtype=torch.float64)
    noise = torch.randn(96, views, 20, generator=draw, dtype=torch.float64)
    return (samples + 0.3 * noise) * scale


def measure(*steps: torch.Tensor) -> dict[str, float]:
    metric = FeatureSpectra(20)
    for step in steps:
        metric.update(step.unbind(1))
    return metric.compute()


@pytest.mark.parametrize("views", [1, 2, 3])
def test_sums_over_steps_equal_the_measures_of_all_rows(views):
    x = features(views)
    steps = x.split(32)
    rows = x.flatten(0, 1)
    C = spectra.correlation(rows)
    covariance = torch.cov(rows.mT, correction=0)
    lam = torch.linalg.eigvalsh(covariance).flip(0)
    alpha, r2 = spectra.alpha_req(lam)
    variances = [step.flatten(0, 1).var(0, correction=0).sum() for step in steps]
    expected = {
        "erank/features": spectra.effective_rank(C),
        "erank/features_centred": spectra.effective_rank(lam),
        "rankme/features": spectra.rankme(C),
        "stable_rank/features": spectra.stable_rank(C),
        "alpha_req/features": alpha,
        "alpha_req_r2/features": r2,
        "spread/features": sum(variances) / len(steps) / C.trace(),
    }
    if views > 1:
        expected["lidar/features"] = spectra.lidar(x)
    expected = {name: float(value) for name, value in expected.items()}
    assert measure(*steps) == pytest.approx(expected, rel=1e-9)


def test_a_sample_with_a_broken_view_is_excluded():
    x = features(2)
    x[7, 1, 3] = torch.nan
    is_valid = torch.arange(96) != 7
    assert measure(x) == pytest.approx(measure(x[is_valid]), rel=1e-12)
    assert measure(torch.full((4, 2, 20), torch.inf)) == {}


def measure_part(rank: int, size: int) -> dict[str, float]:
    steps = features(2).split(33)
    parts = [step.tensor_split(size)[rank] for step in steps]
    return measure(*parts)


def test_two_processes_measure_what_one_does(worlds):
    expected = measure_part(0, 1)
    for scalars in worlds(2).run(measure_part):
        assert scalars == pytest.approx(expected, rel=1e-9)
