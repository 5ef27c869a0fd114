"""Several gloo processes against one: filters, gradients through DDP, spectra."""

import pytest
import torch
import torch.distributed as dist
from conftest import features
from torch import nn

from rdm_solo.filters import SpectralFilter
from rdm_solo.spectra import BranchSpectra

CASES = [("online", "log1p", None), ("online", "pow", 1.0), ("target", "pow", -0.5)]
# More directions than rows (rows are gathered) and fewer (Gram matrices are added).
SHAPES = [(32, 48), (64, 24)]
GRADIENT = 1e-5
# A row that is NaN on one process, another memory layout, and float64 rows that keep their digits.
WHOLE = {
    "broken, wide": lambda: broken(features("1/i", 32, 48)),
    "broken, tall": lambda: broken(features("1/i", 64, 24)),
    "columns first": lambda: features("1/i", 32, 48).t().contiguous().t(),
    "short row": lambda: short_row(),
}
# k x k matrices; and a sample of rows, of which each process has more than its share, or fewer.
ROUTES = {"matrices": {}, "sample of 8": {"max_dim": 4, "sample": 8}}
ROUTES["sample of 40"] = {"max_dim": 4, "sample": 40}


def broken(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(torch.arange(len(x))[:, None] == 17, float("nan"))


def short_row() -> torch.Tensor:
    """Return float64 rows of which one is short, with more rows than columns."""
    return features("gaussian", 64, 24).double() * 10.0 ** (-9 * (torch.arange(64) == 50))[:, None]


def loss_of(model: nn.Module, branch: str, head: SpectralFilter, x: torch.Tensor) -> torch.Tensor:
    """A SimSiam-like loss, the mean over the rows at hand."""
    y = model(x)
    online, target = (head(y), y.detach()) if branch == "online" else (y, head(y))
    return -nn.functional.cosine_similarity(online, target.roll(1, 1).detach()).mean()


def make_model(k: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(k, k), nn.Tanh(), nn.Linear(k, k))


def measured(rank: int, world: int, **options: int) -> dict[str, object]:
    """Spectra of that process's share of the rows, its uneven batches with a broken row among
    them; two epochs, of which the second counts."""
    metric = BranchSpectra(dim=24, steps=True, **options)
    parts = [features("1/i", 64, 24), *(features("gaussian", 64, 24, seed=i) for i in (5, 6, 7))]
    parts[2][40, 3] = float("nan")
    metric.update(*(x.chunk(world)[rank] for x in reversed(parts)))
    metric.compute()
    metric.reset()
    for step in torch.arange(64).split(11):
        rows = step.tensor_split(world)[rank]
        metric.update(*(x[rows] for x in parts))
    spectra = metric.compute()
    kept = len(metric.kept[0]) if metric.sampled else 0
    return {"scalars": spectra.scalars, "kept": kept, **spectra.arrays()}


def work(rank: int, world: int) -> dict[str, object]:
    results: dict[str, object] = {}
    for n, k in SHAPES:
        x = features("1/i", n, k)
        mine = x.chunk(world)[rank]
        for branch, name, p in CASES:
            head = SpectralFilter(branch, name, p)
            model = nn.parallel.DistributedDataParallel(make_model(k))
            loss = loss_of(model, branch, head, mine)
            loss.backward()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
            results[f"{branch} {name} {p} {n}"] = (float(mean) / world, gradients)
    for name, x in WHOLE.items():
        results[name] = SpectralFilter("target", "pow", p=-1.0)(x().chunk(world)[rank])
    for name, options in ROUTES.items():
        results[name] = measured(rank, world, **options)
    return results


@pytest.fixture(scope="module")
def several(worlds):
    return worlds(2).run(work)


@pytest.mark.parametrize(("branch", "name", "p"), CASES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_loss_and_gradients_equal_one_process(several, n, k, branch, name, p):
    model = make_model(k)
    loss = loss_of(model, branch, SpectralFilter(branch, name, p), features("1/i", n, k))
    loss.backward()
    want = torch.cat([p.grad.flatten() for p in model.parameters()])
    for rank in several:
        got_loss, got = rank[f"{branch} {name} {p} {n}"]
        assert got_loss == pytest.approx(float(loss.detach()), abs=1e-6)
        assert float((got - want).norm() / want.norm()) <= GRADIENT


@pytest.mark.parametrize("name", WHOLE)
def test_filtered_rows_equal_those_of_one_process(several, name):
    want = SpectralFilter("target", "pow", p=-1.0)(WHOLE[name]())
    got = torch.cat([rank[name] for rank in several])
    exact = {"rtol": 1e-12, "atol": 1e-14}
    close = {"rtol": 0, "atol": 1e-5 * float(want.abs().max())}
    torch.testing.assert_close(got, want, **(exact if name == "short row" else close))


@pytest.mark.parametrize("route", ROUTES)
def test_spectra_of_several_processes_equal_one(several, route):
    """A sample is the same one, in the same order: bit for bit. Sums are to rounding."""
    want = measured(0, 1, **ROUTES[route])
    exact = route != "matrices"
    assert int(want["rows"]) == {"matrices": 63, "sample of 8": 8, "sample of 40": 40}[route]
    assert sum(rank[route]["kept"] for rank in several) == want.pop("kept")  # no more travel
    for rank in several:
        got = dict(rank[route])
        del got["kept"]
        for name, value in got.pop("scalars").items():
            # The variance is a sum over all rows on either route.
            rel = 0 if exact and name not in ("feature/variance", "feature/spread") else 1e-10
            assert value == pytest.approx(want["scalars"][name], rel=rel, abs=1e-12 * (rel > 0))
        for name, array in got.items():
            rel = 0 if exact else 1e-10
            torch.testing.assert_close(array, want[name], rtol=rel, atol=rel, equal_nan=True)
