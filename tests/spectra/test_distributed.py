"""Several gloo processes against one: filters, gradients through DDP, spectra."""

import pytest
import torch
import torch.distributed as dist
from conftest import features
from torch import Tensor, nn

from rdm_solo.filters import SpectralFilter
from rdm_solo.spectra import BranchSpectra

FILTERS = [
    ("online", "log1p", None),
    ("online", "pow", 1.0),
    ("target", "pow", -0.5),
]
# With more directions than rows, rows are gathered; otherwise Gram matrices are summed.
SHAPES = [(32, 48), (64, 24)]
BATCHES = ["broken, wide", "broken, tall", "columns first", "short row", "short half"]
# Each process has more than its share of the smaller sample, and less than that of the larger.
ROUTES = {
    "matrices": {},
    "sample of 8": {"max_dim": 4, "sample": 8},
    "sample of 40": {"max_dim": 4, "sample": 40},
}


def batch(name: str) -> Tensor:
    if name == "short row":  # float64 keeps its digits
        x = features("gaussian", 64, 24).double()
        x[50] *= 1e-9
        return x
    if name == "columns first":
        return features("1/i", 32, 48).t().contiguous().t()
    shape = (32, 48) if name == "broken, wide" else (64, 24)
    x = features("1/i", *shape)
    if name == "short half":  # negligible beside the other process's rows
        x[32:] *= 1e-9
    else:
        x[17] = torch.nan
    return x


def make_model(k: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(k, k), nn.Tanh(), nn.Linear(k, k))


def backward(model: nn.Module, branch: str, name: str, p: float | None, x: Tensor) -> Tensor:
    """Return a SimSiam-like loss, the mean over the rows, after its backward pass."""
    spectral = SpectralFilter(branch, name, p)
    online = target = model(x)
    if branch == "target":
        target = spectral(target)
    else:
        online = spectral(online)
    target = target.roll(1, 1).detach()
    loss = -nn.functional.cosine_similarity(online, target).mean()
    loss.backward()
    return loss.detach()


def gradient_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def measure(rank: int, world: int, **options: int) -> dict[str, object]:
    """Return spectra of this process's rows in the second of two epochs of uneven batches."""
    metric = BranchSpectra(dim=24, steps=True, **options)
    parts = [features("gaussian", 64, 24, seed=seed) for seed in (4, 5, 6, 7)]
    parts[0] = features("1/i", 64, 24)
    parts[2][40, 3] = torch.nan
    metric.update(*[x.chunk(world)[rank] for x in reversed(parts)])
    metric.compute()
    metric.reset()
    for step in torch.arange(64).split(11):
        rows = step.tensor_split(world)[rank]
        metric.update(*[x[rows] for x in parts])
    spectra = metric.compute()
    metric.sync()
    gathered = sum(map(len, metric.kept))
    return {"scalars": spectra.scalars, "gathered": gathered, **spectra.arrays()}


def work(rank: int, world: int) -> dict[object, object]:
    results: dict[object, object] = {}
    for n, k in SHAPES:
        x = features("1/i", n, k).chunk(world)[rank]
        for case in FILTERS:
            model = nn.parallel.DistributedDataParallel(make_model(k))
            loss = backward(model, *case, x)
            dist.all_reduce(loss)
            results[n, case] = float(loss) / world, gradient_of(model)
    for name in BATCHES:
        x = batch(name).chunk(world)[rank]
        results[name] = SpectralFilter("target", "pow", p=-1.0)(x)
    for route, options in ROUTES.items():
        results[route] = measure(rank, world, **options)
    return results


@pytest.fixture(scope="module")
def two_processes(worlds):
    return worlds(2).run(work)


@pytest.mark.parametrize("case", FILTERS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_loss_and_gradients_equal_one_process(two_processes, n, k, case):
    model = make_model(k)
    expected_loss = float(backward(model, *case, features("1/i", n, k)))
    expected = gradient_of(model)
    for results in two_processes:
        loss, gradient = results[n, case]
        assert loss == pytest.approx(expected_loss, abs=1e-6)
        assert float((gradient - expected).norm() / expected.norm()) <= 1e-5


@pytest.mark.parametrize("name", BATCHES)
def test_filtered_rows_equal_those_of_one_process(two_processes, name):
    expected = SpectralFilter("target", "pow", p=-1.0)(batch(name))
    actual = torch.cat([results[name] for results in two_processes])
    rtol, atol = 0, 1e-5 * float(expected.abs().max())
    if name == "short row":
        rtol, atol = 1e-12, 1e-14
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
    assert torch.equal(actual.any(1), expected.any(1))


def test_sums_of_two_processes_equal_those_of_one(two_processes):
    expected = measure(0, 1)
    assert expected["rows"] == 63
    scalars = expected.pop("scalars")
    del expected["gathered"]
    for results in two_processes:
        actual = results["matrices"]
        del actual["gathered"]
        assert actual.pop("scalars") == pytest.approx(scalars, rel=1e-10, abs=1e-12)
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize(("route", "rows"), [("sample of 8", 8), ("sample of 40", 40)])
def test_a_sample_of_two_processes_equals_that_of_one_bit_for_bit(two_processes, route, rows):
    expected = measure(0, 1, **ROUTES[route])
    assert expected["rows"] == rows
    scalars = expected.pop("scalars")
    # Sums over all rows are equal only up to rounding.
    sums = {name: scalars.pop(name) for name in ("feature/variance", "feature/spread")}
    del expected["gathered"]
    for results in two_processes:
        actual = results[route]
        assert actual.pop("gathered") == rows
        actual_scalars = actual.pop("scalars")
        actual_sums = {name: actual_scalars.pop(name) for name in sums}
        assert actual_sums == pytest.approx(sums, rel=1e-10)
        assert actual_scalars == scalars
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
