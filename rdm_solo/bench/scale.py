"""What a filter costs on several processes, part by part: ``python -m rdm_solo.bench scale``.

Each shape is the batch of all processes together. Seconds are those of the clock from a common
start to the last process's end, and of one process's CPU, since here processes may share cores.
Bytes are what a process is sent by the others. With ``--count`` one process takes itself for one of
many, and nothing is computed or sent: shapes and bytes are counted.
"""

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rdm_solo.bench.filters import batch_normed
from rdm_solo.bench.memory import peak_bytes
from rdm_solo.distributed import gather_equal, rank, world_size
from rdm_solo.filters import SpectralFilter, decompose
from rdm_solo.messages import UserError

SHAPES = [(256, 2048), (1024, 2048), (2048, 2048), (4096, 512)]
FILTERS = {"target": ("target", "pow", -0.5), "online": ("online", "log1p", None)}


class Traffic(TorchDispatchMode):
    """Counts the bytes that the other processes send to this one.

    Rows are gathered in a ring, which sends each process the others' once; sums go round it twice,
    a process's share of the tensor at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d":
            size = sum(x.nbytes for x in tree_leaves(args[0]) if isinstance(x, torch.Tensor))
            self.bytes += size * (1 - 1 / world_size()) * (2 if "allreduce" in func.name() else 1)
        return func(*args, **(kwargs or {}))


def received(run: Callable[[], object]) -> float:
    """The bytes that this process is sent while it runs."""
    with Traffic() as traffic:
        run()
    return traffic.bytes


def passes(x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """A filter on each branch: forward, and on the online branch backward."""

    def run(branch: str, function: str, p: float | None) -> Callable[[], object]:
        module = SpectralFilter(branch, function, p)
        grad = torch.ones_like(x)

        def whole() -> None:
            out = module(x.detach().requires_grad_(branch == "online"))
            if branch == "online":
                out.backward(grad)

        return whole

    return {name: run(*which) for name, which in FILTERS.items()}


def parts(x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What a filter does one after another, and two ways to do less of it in each process."""
    n, k = len(x) * world_size(), x.shape[1]
    rows = gather_equal(x).double() if n < k else x.double()
    own = rows[rank() * len(x) :][: len(x)] if n < k else rows
    gram = rows @ rows.mT if n < k else own.mT @ own
    dist.broadcast(gram, 0)  # without rounding that differs

    def first_decomposes() -> None:
        vectors = torch.linalg.eigh(gram)[1] if rank() == 0 else torch.empty_like(gram)
        dist.broadcast(vectors.contiguous(), 0)

    found: dict[str, Callable[[], object]] = {
        "eigh": lambda: torch.linalg.eigh(gram),
        "eigh by the first, sent": first_decomposes,
    }
    if n < k:
        found["rows"] = lambda: gather_equal(x)
        found["Gram, each the whole"] = lambda: rows @ rows.mT
        found["Gram, each its part"] = lambda: gather_equal(own @ rows.mT)
    else:
        found["Gram"] = lambda: dist.all_reduce(own.mT @ own)
    return found


def _clocked(run: Callable[[], object], runs: int) -> tuple[list[float], list[float]]:
    """Seconds of the clock and of this process's CPU; the first round warms up."""
    wall, cpu = [], []
    for _ in range(runs + 1):
        dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        run()
        used = time.process_time() - used
        dist.barrier()  # the slowest process ends the round
        wall.append(time.perf_counter() - start)
        cpu.append(used)
    return wall[1:], cpu[1:]


def _process(
    number: int, size: int, folder: Path, shapes: list[tuple[int, int]], runs: int
) -> None:
    """One of the group; the first one writes what was measured."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=number, world_size=size)
    lines = []
    for n, k in shapes:
        x = batch_normed(n, k).chunk(size)[number].clone()
        for name, run in (passes(x) | parts(x)).items():
            wall, cpu = _clocked(run, runs)
            peak = peak_bytes(run, "cpu")
            lines.append((n, k, name, *map(statistics.median, (wall, cpu)), peak, received(run)))
    if number == 0:
        (folder / "lines.json").write_text(json.dumps(lines))
    dist.barrier()
    dist.destroy_process_group()


def bench_scale(
    runs: int,
    shapes: Sequence[tuple[int, int]] | None = None,
    processes: Sequence[int] = (1, 2, 4),
    count: Sequence[int] = (),
) -> None:
    """Measure on that many processes; then count for groups of that many more."""
    shapes = [(n, k) for n, k in shapes or SHAPES]
    for n, size in itertools.product([n for n, _ in shapes], [*processes, *count]):
        if size < 1 or n % size or not n:
            raise UserError(f"{n} rows cannot be divided equally among {size} processes.")
    if processes:
        print(
            f"{'processes':>9}{'(n, k)':>14}  {'part':<24}{'clock':>11}{'own CPU':>11}{'peak':>11}"
            f"{'received':>12}"
        )
    for size in processes:
        for n, k, name, wall, cpu, peak, sent in _measured(size, shapes, runs):
            print(
                f"{size:>9}{f'({n}, {k})':>14}  {name:<24}{wall * 1e3:>8.1f} ms{cpu * 1e3:>8.1f} ms"
                f"{peak / 2**20:>7.1f} MiB{sent / 2**20:>8.2f} MiB"
            )
    if count:
        print(f"{'processes':>9}{'(n, k)':>14}{'rows each':>11}{'eigh of':>15}{'received':>13}")
    for size in count:
        for n, k in shapes:
            side, sent = counted(size, n, k)
            print(
                f"{size:>9}{f'({n}, {k})':>14}{n // size:>11}{f'{side} x {side}':>15}"
                f"{sent / 2**20:>9.2f} MiB"
            )


def counted(size: int, n: int, k: int) -> tuple[int, float]:
    """The side of the matrix that each of so many processes decomposes, and the bytes that it is
    sent for a call of a filter: forward, since nothing crosses for a backward."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        x = torch.empty(n // size, k, device="meta")
        return decompose(x).vectors.shape[0], received(passes(x)["target"])
    finally:
        dist.destroy_process_group()


def _measured(size: int, shapes: list[tuple[int, int]], runs: int) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_process, (size, Path(folder), shapes, runs), size)
        lines: list[Any] = json.loads((Path(folder) / "lines.json").read_text())
    return lines
