"""Filters, spectra and runs on this machine's GPUs: exact in every precision, and few waits."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import features
from support import small_runs
from support.hostile import COLLAPSED, FEW, KINDS, batch_of, check, check_kind
from support.waits import Waits
from torch import Tensor, nn

from benchmarks.cost import Step
from benchmarks.gpu.bench import Bench
from rdm_solo.filters import SpectralFilter
from rdm_solo.observe.parts import observer
from rdm_solo.spectra import BranchSpectra

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DEVICE = "cuda"
# The bound of benchmarks/cost.md.
EXACT = 1e-5
# Fewer rows than columns, more, and as many: another Gram matrix is decomposed in each case.
SHAPES = [(256, 2048), (512, 256), (64, 64)]


@pytest.fixture(autouse=True, scope="module")
def _all_cores():
    """Use all cores for the float64 SVDs that give the expected values."""
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(params=["highest", "high", "medium"])
def products(request):
    """Compute float32 products without TF32, with TF32, and with fewer digits still."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


def error(actual: Tensor, expected: Tensor) -> float:
    """Return the relative error in the Frobenius norm."""
    difference = actual.detach().cpu().double() - expected
    return float(difference.norm() / expected.norm())


@pytest.mark.parametrize("kind", ["gaussian", "standardised"])
def test_filters_are_exact_whatever_torch_allows(kind, products):
    for shape in SHAPES:
        x = batch_of(kind, *shape).float()
        check(x, FEW, DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            check(x, FEW, DEVICE)


@pytest.mark.parametrize("kind", KINDS)
def test_filters_are_exact_in_every_dtype(kind):
    check_kind(kind, SHAPES, DEVICE)


@pytest.mark.parametrize("kind", COLLAPSED)
@pytest.mark.parametrize("shape", [(2048, 2048), (4096, 256)])
def test_large_collapsed_batches_are_filtered(shape, kind):
    """Solvers of a GPU have failed for such matrices."""
    check(batch_of(kind, *shape).float(), FEW, DEVICE)


@pytest.mark.parametrize(("branch", "name", "p"), FEW)
def test_a_stack_of_views_is_filtered_view_by_view(branch, name, p):
    views = torch.stack([features("batchnorm", 256, 512, seed) for seed in range(2)]).to(DEVICE)
    head = SpectralFilter(branch, name, p)
    each = torch.stack([head(view) for view in views])
    assert error(head(views), each.cpu().double()) < EXACT


@pytest.mark.parametrize("kind", ["gaussian", "batchnorm"])
@pytest.mark.parametrize("route", ["matrices", "samples"])
def test_spectra_match_float64(kind, route, products):
    n, k = 192, 128
    rng = torch.Generator().manual_seed(2)
    noise = torch.randn(n, k, generator=rng)
    target = features(kind, n, k)
    shift = 0.1 * noise
    parts = torch.stack([target + shift, target, target - shift])
    sizes = {}
    if route == "samples":
        sizes = {"max_dim": k // 2, "sample": n}
    metric = BranchSpectra(k, steps=True, **sizes).to(DEVICE)
    for batch in parts.to(DEVICE).split(64, dim=1):
        metric.update(*batch)
    spectra = metric.compute()
    online, target, positive = nn.functional.normalize(parts.double(), dim=2)
    product = target.mT @ positive / n
    symmetric = (product + product.mT) / 2
    expected = {
        "online": torch.linalg.svdvals(online).square() / n,
        "target": torch.linalg.svdvals(target).square() / n,
        "positive": torch.linalg.eigvalsh(symmetric).flip(0).clamp_min(0),
    }
    for name, lam in expected.items():
        actual = getattr(spectra, f"lam_{name}").double().cpu()
        difference = actual - lam[: len(actual)]
        assert difference.abs().amax() < EXACT * lam.amax(), name
    for name in ("online", "target"):
        shares = expected[name] / expected[name].sum()
        erank = torch.special.entr(shares).sum().exp()
        assert spectra.scalars[f"erank/{name}"] == pytest.approx(float(erank), rel=EXACT)


@pytest.mark.parametrize(
    ("name", "most"), [("learnable", 0), ("target_pow", 0), ("online_log1p", 1)]
)
def test_a_training_step_waits_only_in_its_filters(name, most):
    """An online filter waits once for both views. Recording the outputs adds no wait."""
    step = Step(DEVICE, "method=simsiam", f"filter={name}", "batch_size=16")
    k = step.model.projector[-1].num_features
    metric = BranchSpectra(k, steps=True).to(DEVICE)
    watching = observer(step.model)

    def recorded() -> None:
        watching.record_next_step()
        step()
        outputs = watching.pop_outputs(2)
        metric.update(outputs.online, outputs.target, outputs.positive, outputs.projection)

    bench = Bench(DEVICE, runs=1, small=True, out=None)
    for call in (step, recorded):
        call()
        with Waits() as counter:  # in the second call
            call()
        assert len(counter.found) <= most
        assert bench.waits(call) == str(len(counter.found))  # as torch counts them


def measure(rank: int, world: int, shares: int) -> dict[str, Tensor]:
    """Return gradients and eigenvalues for a process's share of each batch."""
    device = f"{DEVICE}:{rank}"
    results = {}
    small, large = 32 * shares, 64 * shares
    for n, k in ((small, large), (large, small)):
        batch = features("batchnorm", n, k)
        x = batch.chunk(world)[rank].to(device)
        for i, (branch, function, p) in enumerate(FEW):
            head = SpectralFilter(branch, function, p)
            torch.manual_seed(0)
            model = nn.Linear(k, k).to(device)
            if world > 1:
                model = nn.parallel.DistributedDataParallel(model)
            online = target = model(x)
            if branch == "online":
                online = head(online)
            else:
                target = head(target)
            similarity = torch.cosine_similarity(online, target.roll(1, 1).detach())
            (-similarity.mean()).backward()
            grads = [parameter.grad.flatten() for parameter in model.parameters()]
            results[f"gradient of {i}, {n}"] = torch.cat(grads).cpu()
        metric = BranchSpectra(k, steps=True).to(device)
        metric.update(x, x.roll(1, 1), x.roll(2, 1))
        results[f"eigenvalues, {n}"] = metric.compute().lam_online.cpu()
    return results


def save_results(rank: int, world: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", f"file://{folder}/meet", rank=rank, world_size=world)
    torch.save(measure(rank, world, world), Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_several_devices_equal_one(tmp_path):
    world = torch.cuda.device_count()
    torch.multiprocessing.spawn(save_results, (world, str(tmp_path)), world)
    shares = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world)]
    for name, expected in measure(0, 1, world).items():
        for share in shares:
            assert error(share[name], expected.double()) < EXACT, name


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])  # test_gpu_runs.py: bf16-mixed
def test_a_run_learns(precision, tmp_path):
    options = ["filter=target_pow", "dataset=digits", "max_epochs=3", "~callbacks.ranks"]
    small_runs.run(tmp_path / "run", *options, "trainer=gpu", f"trainer.precision={precision}")
    assert len(small_runs.rows(tmp_path / "run")) == 3
    assert small_runs.learned(tmp_path / "run")
    summary = small_runs.read_summary(tmp_path / "run")
    assert summary["device"] == torch.cuda.get_device_name()
