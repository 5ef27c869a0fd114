"""Measure the cost of each part of a filter on several processes.

Each shape is the batch of all processes together. Times are the wall time from a common start to
the end of the last process, and the CPU time of one process, because processes may share cores.
Bytes are those that one process receives from the others. ``--count`` runs in one process, which
acts as one of many: only shapes and bytes are counted.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.filters import batch_normed, timed_pass
from benchmarks.memory import peak_bytes
from benchmarks.timing import Call, Calls, parse, parser
from rdm_solo.filters import SpectralFilter, decompose
from rdm_solo.ground.distributed import gather_equal, rank, world_size

SHAPES = [(256, 2048), (1024, 2048), (2048, 2048), (4096, 512)]


class Traffic(TorchDispatchMode):
    """Counts the bytes that the other processes send to this one.

    Processes are assumed to form a ring. A gather sends each process the rows of all others once.
    An all-reduce passes each share of the tensor round the ring twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d":
            times = 1 + ("allreduce" in func.name())
            for x in tree_leaves(args[0]):
                if isinstance(x, torch.Tensor):
                    self.bytes += times * x.nbytes * (1 - 1 / world_size())
        return func(*args, **(kwargs or {}))


def traffic(run: Call) -> float:
    """Return the bytes that this process receives during a call."""
    with Traffic() as counter:
        run()
    return counter.bytes


def passes(x: torch.Tensor) -> Calls:
    """Return a filter's pass on each branch: forward, and backward on the online branch."""

    return {
        "target": timed_pass(SpectralFilter("target", "pow", p=-0.5), x, learns=False),
        "online": timed_pass(SpectralFilter("online", "log1p"), x, learns=True),
    }


def parts(x: torch.Tensor) -> Calls:
    """Return the parts of a filter, and two ways to divide the work among the processes."""
    share = x.double()
    products: Calls = {}
    if len(x) * world_size() < x.shape[1]:
        rows = gather_equal(x).double()
        gram = rows @ rows.mT
        products["rows"] = lambda: gather_equal(x)
        products["Gram, each the whole"] = lambda: rows @ rows.mT
        products["Gram, each its part"] = lambda: gather_equal(share @ rows.mT)
    else:
        gram = share.mT @ share
        products["Gram"] = lambda: dist.all_reduce(share.mT @ share)
    dist.broadcast(gram, 0)  # all processes decompose the same matrix

    def first_decomposes() -> None:
        vectors = torch.empty_like(gram)
        if rank() == 0:
            vectors = torch.linalg.eigh(gram).eigenvectors.contiguous()
        dist.broadcast(vectors, 0)

    return {
        "eigh": lambda: torch.linalg.eigh(gram),
        "eigh by the first, sent": first_decomposes,
        **products,
    }


def _timed(run: Call, runs: int) -> tuple[list[float], list[float]]:
    """Return wall time and this process's CPU time; the first round warms up."""
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
    """Measure as one process of the group; the first process writes the results."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=number, world_size=size)
    lines = []
    for n, k in shapes:
        x = batch_normed(n, k).chunk(size)[number].clone()
        for name, run in (passes(x) | parts(x)).items():
            medians = map(statistics.median, _timed(run, runs))
            lines.append((n, k, name, *medians, peak_bytes(run, "cpu"), traffic(run)))
    if number == 0:
        (folder / "lines.json").write_text(json.dumps(lines))
    dist.barrier()
    dist.destroy_process_group()


def measure(runs: int, shapes: list[tuple[int, int]], processes: Sequence[int]) -> None:
    """Print time, memory and bytes received of each part on these numbers of processes."""
    print(
        f"{'processes':>9}{'(n, k)':>14}  {'part':<24}{'clock':>11}{'own CPU':>11}{'peak':>11}"
        f"{'received':>12}"
    )
    for size in processes:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(_process, (size, Path(folder), shapes, runs), size)
            lines = json.loads((Path(folder) / "lines.json").read_text())
        for n, k, name, wall, cpu, peak, received in lines:
            print(
                f"{size:>9}{f'({n}, {k})':>14}  {name:<24}{wall * 1e3:>8.1f} ms{cpu * 1e3:>8.1f} ms"
                f"{peak / 2**20:>7.1f} MiB{received / 2**20:>8.2f} MiB"
            )


def count(shapes: list[tuple[int, int]], processes: Sequence[int]) -> None:
    """Print the bytes that a process receives in groups of these sizes."""
    print(f"{'processes':>9}{'(n, k)':>14}{'rows each':>11}{'eigh of':>15}{'received':>13}")
    for size in processes:
        for n, k in shapes:
            side, received = counted(size, n, k)
            print(
                f"{size:>9}{f'({n}, {k})':>14}{n // size:>11}{f'{side} x {side}':>15}"
                f"{received / 2**20:>9.2f} MiB"
            )


def counted(size: int, n: int, k: int) -> tuple[int, float]:
    """Return the side of the matrix that each process decomposes, and the bytes that it receives.

    The bytes are those of a filter's forward pass; its backward pass exchanges nothing.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        x = torch.empty(n // size, k, device="meta")
        return decompose(x).vectors.shape[0], traffic(passes(x)["target"])
    finally:
        dist.destroy_process_group()


def main() -> None:
    options = parser("scale", "the parts of a filter on several processes", shapes=True)
    sizes: dict[str, Any] = {"type": int, "nargs": "*", "metavar": "PROCESSES"}
    options.add_argument("--processes", default=[1, 2, 4], help="default: 1 2 4", **sizes)
    options.add_argument(
        "--count", default=[], help="numbers of processes for which to count only", **sizes
    )
    arguments = parse(options)
    shapes = arguments.shapes or SHAPES
    if arguments.processes:
        measure(arguments.runs, shapes, arguments.processes)
    if arguments.count:
        count(shapes, arguments.count)


if __name__ == "__main__":
    main()
