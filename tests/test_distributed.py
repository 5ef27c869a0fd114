"""Several gloo processes against one: filters, gradients through DDP, spectra."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import features
from torch import nn

from rdm_solo.filters import SpectralFilter
from rdm_solo.spectra import BranchSpectra

CASES = [
    ("online", "log1p", None),
    ("online", "log", None),
    ("online", "pow", 1.0),
    ("target", "pow", -0.5),
    ("target", "pow", -1.0),
]
# More directions than rows (rows are gathered) and fewer (Gram matrices are added).
SHAPES = [(32, 48), (64, 24)]
GRADIENT = 1e-5


def loss_of(model: nn.Module, branch: str, head: SpectralFilter, x: torch.Tensor) -> torch.Tensor:
    """A SimSiam-like loss, the mean over the rows at hand."""
    y = model(x)
    online, target = (head(y), y.detach()) if branch == "online" else (y, head(y))
    return -nn.functional.cosine_similarity(online, target.roll(1, 1).detach()).mean()


def make_model(k: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(k, k), nn.Tanh(), nn.Linear(k, k))


def work(rank: int, world: int, port: int, out: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
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
        if k < n:  # a row that is NaN on one process must not hang or poison the others
            broken = mine.clone()
            if rank == 1:
                broken[0, 0] = float("nan")
            results[f"broken {n}"] = SpectralFilter("target", "pow", p=-0.5)(broken)
    flat = (features("gaussian", 64, 5) @ features("gaussian", 5, 24)).double()
    results["float64"] = SpectralFilter("target", "pow", p=-1.0)(flat.chunk(world)[rank])
    metric = BranchSpectra(dim=24)
    x = features("1/i", 64, 24)
    y = features("gaussian", 64, 24, seed=5)
    metric.update(x.chunk(world)[rank], y.chunk(world)[rank], x.chunk(world)[rank])
    results["spectra"] = metric.compute().scalars
    torch.save(results, Path(out) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=[2, 4])
def several(request, tmp_path_factory):
    world, out = request.param, tmp_path_factory.mktemp("ddp")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(work, (world, port, str(out)), nprocs=world)
    return [torch.load(out / f"{rank}.pt", weights_only=True) for rank in range(world)]


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


def test_a_filter_of_each_shard_would_be_another_function():
    """The tests above would not pass by accident: per-shard spectra give other gradients."""
    n, k = SHAPES[0]
    x = features("1/i", n, k)
    head = SpectralFilter("online", "log1p")
    whole, shards = make_model(k), make_model(k)
    loss_of(whole, "online", head, x).backward()
    (sum(loss_of(shards, "online", head, part) for part in x.chunk(2)) / 2).backward()
    a, b = (torch.cat([p.grad.flatten() for p in m.parameters()]) for m in (whole, shards))
    assert float((a - b).norm() / a.norm()) > 100 * GRADIENT


def test_a_broken_row_on_one_process_is_left_out_on_all(several):
    n, k = SHAPES[1]
    x = features("1/i", n, k)
    at = n // len(several)  # the first row of rank 1
    x[at, 0] = float("nan")
    want = SpectralFilter("target", "pow", p=-0.5)(x)
    got = torch.cat([rank[f"broken {n}"] for rank in several])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_null_directions_are_dropped_in_float64_too(several):
    sigma = torch.linalg.svdvals(torch.cat([rank["float64"] for rank in several]))
    torch.testing.assert_close(sigma[:5], torch.ones(5).double(), rtol=1e-4, atol=0)
    assert sigma[5:].max() < 1e-4


def test_spectra_of_several_processes_equal_one(several):
    metric = BranchSpectra(dim=24)
    x, y = features("1/i", 64, 24), features("gaussian", 64, 24, seed=5)
    metric.update(x, y, x)
    for rank in several:
        assert rank["spectra"] == pytest.approx(metric.compute().scalars, rel=1e-9, abs=1e-12)
