"""Several gloo processes against one: filters, their gradients, DDP, spectra."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import features
from support.branches import assert_same, random_views
from torch import Tensor, nn

from rdm_solo.filters import SpectralFilter
from rdm_solo.spectra import BranchSpectra, Spectra

# With more directions than rows, rows are gathered; otherwise Gram matrices are summed.
BATCHES = ["wide", "tall", "columns first", "short row", "short half"]
# Each process has more than its share of the smaller sample, and less than that of the larger.
ROUTES = {
    "matrices": {},
    "sample of 8": {"max_dim": 4, "sample": 8},
    "sample of 40": {"max_dim": 4, "sample": 40},
}


def batch(name: str) -> Tensor:
    x = features("1/i", 64, 24)
    match name:
        case "wide":
            x = features("1/i", 32, 48)
            x[17] = torch.nan
        case "tall":
            x[17] = torch.nan
        case "columns first":
            x = features("1/i", 32, 48)
            x = x.t().contiguous().t()
        case "short row":  # float64 keeps its digits
            x = features("gaussian", 64, 24).double()
            x[50] *= 1e-9
        case "short half":  # negligible beside the other process's rows
            x[32:] *= 1e-9
    return x


def filtered(x: Tensor) -> Tensor:
    """Return the outputs of both branches and the gradient of one, (3, N, k)."""
    leaf = x.clone().requires_grad_()
    online = SpectralFilter("online", "pow", p=-1.0)(leaf)
    online.backward(x.cos().nan_to_num())
    target = SpectralFilter("target", "pow", p=-1.0)(x)
    return torch.stack([online.detach(), target, leaf.grad])


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24))


def backward(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a SimSiam-like loss, the mean over the rows, and the gradient of all parameters."""
    z = model(x)
    online = SpectralFilter("online", "log1p")(z)
    target = z.roll(1, 1).detach()
    loss = -nn.functional.cosine_similarity(online, target).mean()
    loss.backward()
    gradients = [parameter.grad.flatten() for parameter in model.parameters()]
    return loss.detach(), torch.cat(gradients)


def measure(rank: int, world: int, **options: int) -> tuple[Spectra, int]:
    """Return spectra of this process's rows, and how many rows all processes kept together.

    They are those of the second of two epochs of uneven batches. Rows are drawn without a matrix
    product, so that their bits, which decide on the sample, do not depend on the threads.
    """
    metric = BranchSpectra(dim=24, steps=True, **options)
    parts = random_views(64, 4, 24).float().unbind(1)
    parts[2][40, 3] = torch.nan
    metric.update(*reversed(parts))
    metric.compute()
    metric.reset()
    for step in torch.arange(64).split(11):
        rows = step.tensor_split(world)[rank]
        metric.update(*[x[rows] for x in parts])
    spectra = metric.compute()
    metric.sync()
    gathered = sum(map(len, metric.kept))
    return spectra, gathered


def work(rank: int, world: int) -> dict[object, Any]:
    results: dict[object, Any] = {}
    model = nn.parallel.DistributedDataParallel(make_model())
    x = features("1/i", 64, 24).chunk(world)[rank]
    loss, gradient = backward(model, x)
    dist.all_reduce(loss)
    results["model"] = loss / world, gradient
    for name in BATCHES:
        x = batch(name).chunk(world)[rank]
        results[name] = filtered(x)
    for route, options in ROUTES.items():
        results[route] = measure(rank, world, **options)
    return results


@pytest.fixture(scope="module")
def two_processes(worlds):
    return worlds(2).run(work)


def test_loss_and_gradients_of_a_model_equal_one_process(two_processes):
    expected_loss, expected = backward(make_model(), features("1/i", 64, 24))
    for results in two_processes:
        loss, gradient = results["model"]
        assert loss.item() == pytest.approx(expected_loss.item(), abs=1e-6)
        error = gradient - expected
        assert error.norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("name", BATCHES)
def test_filtered_rows_and_gradients_equal_those_of_one_process(two_processes, name):
    expected = filtered(batch(name))
    actual = torch.cat([results[name] for results in two_processes], dim=1)
    rtol, atol = 0, 1e-5 * float(expected.abs().max())
    if name == "short row":
        rtol, atol = 1e-12, 1e-14
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
    assert torch.equal(actual.any(2), expected.any(2))


@pytest.mark.parametrize("route", ROUTES)
def test_spectra_of_two_processes_equal_those_of_one(two_processes, route):
    """Measured: at most 7e-15, with four instruction sets and with one and two threads."""
    options = ROUTES[route]
    expected, _ = measure(0, 1, **options)
    assert expected.rows == options.get("sample", 63)
    for results in two_processes:
        actual, gathered = results[route]
        if options:
            assert gathered == expected.rows
        assert_same(actual, expected, tolerance=1e-13)
