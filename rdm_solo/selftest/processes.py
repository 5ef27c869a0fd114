"""Several processes against one: values, gradients and spectra of a batch of which each process
holds a share.

CPU processes talk by gloo, GPUs by NCCL. A process that fails or hangs ends all of them, and the
line says so.
"""

import datetime
import logging
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rdm_solo.bench.filters import batch_normed
from rdm_solo.distributed import sum_over_processes
from rdm_solo.filters import SpectralFilter
from rdm_solo.messages import first_line
from rdm_solo.selftest.precisions import EXACT
from rdm_solo.selftest.results import Check, Result, Settings, judged, not_tested
from rdm_solo.spectra import BranchSpectra

multiprocessing: Any = torch.multiprocessing  # most of it has no types
Filters = list[tuple[str, str, str, float | None]]  # name, branch, function, exponent


def checks(settings: Settings) -> Iterator[Check]:
    """One line for each: values, gradients through DDP, eigenvalues."""
    name = "several processes equal one"
    if settings.devices < 2:
        kind = "process" if settings.on_cpu else "GPU"
        reason = f"one {kind}; two or more are needed"
        yield Check(name, lambda: [not_tested(name, reason)])
        return
    yield Check(f"{settings.devices} processes equal one", partial(_equal, settings))


def _equal(settings: Settings) -> list[Result]:
    from rdm_solo.selftest.filters import spectral  # Hydra, which the processes need not load

    filters = [(f.name, str(f.branch), str(f.function), f.p) for f in spectral()]
    found = run(settings, filters)
    wanted = measured(0, 1, settings.devices, settings.device, filters)
    errors: dict[str, dict[str, float]] = {}
    for case, want in wanted.items():
        kind = case.split(",")[0]
        parts = [process[case] for process in found]
        if kind == "values":
            parts = [torch.cat(parts)]
        worst = max(float((got - want).norm() / want.norm()) for got in parts)
        # max() of Python passes NaN over.
        finite = all(bool(got.isfinite().all()) for got in parts)
        errors.setdefault(kind, {})[case] = worst if finite else float("nan")
    words = f"on {settings.devices} {'CPU processes (gloo)' if settings.on_cpu else 'GPUs (NCCL)'}"
    return [judged(f"{kind} {words}", of_kind, EXACT) for kind, of_kind in errors.items()]


def run(settings: Settings, filters: Filters) -> list[dict[str, Tensor]]:
    """What each process measures; an error in a sentence where one fails or hangs."""
    count, until = settings.devices, time.monotonic() + settings.patience
    with tempfile.TemporaryDirectory() as folder:
        arguments = (count, settings.device, folder, settings.patience, filters)
        started = multiprocessing.start_processes(
            work, arguments, nprocs=count, join=False, start_method="spawn"
        )
        try:
            while not started.join(max(0.1, until - time.monotonic())):
                if time.monotonic() > until:
                    raise TimeoutError(
                        f"the {count} processes were not done after {settings.patience:.0f} s; "
                        "they were ended."
                    )
        except multiprocessing.ProcessRaisedException as error:
            last = str(error).strip().splitlines()[-1]
            raise RuntimeError(f"process {error.error_index}: {last}") from error
        except multiprocessing.ProcessExitedException as error:
            raise RuntimeError(first_line(error)) from error
        finally:
            for process in started.processes:
                process.kill()
                process.join(10)  # one that a driver holds cannot be waited for
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(count)]


def work(
    rank: int, count: int, device: str, folder: str, patience: float, filters: Filters
) -> None:
    """One of the processes."""
    logging.getLogger("rdm_solo").setLevel(logging.ERROR)
    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    if device == "cuda":
        device = f"cuda:{rank}"
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "gloo" if device == "cpu" else "nccl",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=patience),
    )
    try:
        found = measured(rank, count, count, device, filters)
        torch.save(found, Path(folder) / f"{rank}.pt")
        # Nobody leaves while another still talks.
        sum_over_processes(torch.ones((), device=device)).item()
    finally:
        dist.destroy_process_group()


def measured(
    rank: int, world: int, shares: int, device: str, filters: Filters
) -> dict[str, Tensor]:
    """Values, gradients and eigenvalues of that process's share, or of the whole if it is alone;
    of batches of which ``shares`` processes can hold a share."""
    found: dict[str, Tensor] = {}
    # More directions than rows (rows are gathered) and fewer (Gram matrices are added).
    for n, k in ((32 * shares, 64 * shares), (64 * shares, 32 * shares)):
        mine = batch_normed(n, k).chunk(world)[rank].to(device)
        for name, branch, function, p in filters:
            head = SpectralFilter(branch, function, p)
            with torch.no_grad():
                found[f"values, {name} ({n}, {k})"] = head(mine).double().cpu()
            gradient = _gradient(mine, k, head, branch, world)
            found[f"gradients, {name} ({n}, {k})"] = gradient.double().cpu()
        metric = BranchSpectra(k, steps=True).to(device)
        for rows in mine.chunk(2):
            metric.update(rows, rows.roll(1, 1), rows.roll(2, 1))
        found[f"eigenvalues, ({n}, {k})"] = metric.compute().lam_online
    return found


def _gradient(x: Tensor, k: int, head: SpectralFilter, branch: str, world: int) -> Tensor:
    """Of a small network's weights, by a loss such as SimSiam's, the mean over the rows at hand."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(k, k), nn.Tanh(), nn.Linear(k, k)).to(x.device)
    if world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    y = model(x)
    online, target = (head(y), y) if branch == "online" else (y, head(y))
    loss: Any = -nn.functional.cosine_similarity(online, target.roll(1, 1).detach()).mean()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
