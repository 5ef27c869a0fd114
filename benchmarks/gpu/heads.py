"""Time decompositions, and filters without a network around them."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.filters import algorithm_2, batch_normed, spectrum_floor
from benchmarks.gpu.bench import Bench, digits
from benchmarks.gpu.loops import predictor
from benchmarks.timing import Call, Calls
from rdm_solo.filters import SpectralFilter, get, relative_cut

SOLVERS = ("eigh", "products")


def eigh_float32(gram: Tensor) -> object:
    return torch.linalg.eigh(gram.float())


def eigh_on_cpu(gram: Tensor) -> object:
    return torch.linalg.eigh(gram.cpu())


def with_backward(apply: Callable[[Tensor], Tensor], leaf: Tensor) -> None:
    rows = apply(leaf).flatten(0, -2)
    loss = nn.functional.normalize(rows, dim=1).sum()
    loss.backward()


def decompositions(bench: Bench) -> None:
    """Time ``eigh`` of one Gram matrix, of a stack of two, and its alternatives."""
    sizes = (32, 64) if bench.small else (128, 256, 512, 2048)
    bench.write("## Decompositions of a float64 Gram matrix (ms)\n")
    for n in sizes:
        x = batch_normed(n, sizes[-1]).to(bench.device).double()
        gram = x @ x.mT
        stack = torch.stack([gram, gram + torch.eye(n, device=bench.device)])
        on_cpu = gram.cpu()
        calls: Calls = {
            "eigh": partial(torch.linalg.eigh, gram),
            "eigh of a stack of two": partial(torch.linalg.eigh, stack),
            "eigvalsh": partial(torch.linalg.eigvalsh, gram),
            "eigh float32": partial(eigh_float32, gram),
            "copy to the CPU, eigh there": partial(eigh_on_cpu, gram),
            "eigh on the CPU alone": partial(torch.linalg.eigh, on_cpu),
            "the Gram matrix itself": partial(torch.matmul, x, x.mT),
        }
        if n == sizes[0]:
            bench.head(["matrix", *calls])
        times = bench.times(calls, slow=n > 1000).values()
        bench.row([f"{n} × {n}", *(digits(max(time)) for time in times)])
    bench.write()


class PaperTarget(nn.Module):
    """The paper's target filter as printed, with a float32 SVD."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.function = get("pow", p)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return algorithm_2(x.float(), "target", self.function)


class Oracle:
    """A float64 SVD of a batch on the CPU, with the filters' cut for rounding noise."""

    def __init__(self, x: Tensor) -> None:
        self.u, sigma, vh = torch.linalg.svd(x.cpu().double(), full_matrices=False)
        kept = sigma > relative_cut(x.dtype, *x.shape) * sigma[0]
        self.sigma = sigma.where(kept, 1.0)
        self.vh = vh * kept[:, None]

    def error(self, filtered: Tensor, gain: Callable[[Tensor], Tensor]) -> float:
        """Return the largest error of a row, scaled to unit length."""
        expected = (self.u * self.sigma * gain(self.sigma)) @ self.vh
        rows = nn.functional.normalize(filtered.detach().cpu().double())
        error = rows - nn.functional.normalize(expected)
        return float(error.norm(dim=1).max())


class Head(NamedTuple):
    """What is timed: a pass of one view and perhaps one of two, and the error against float64."""

    one: Call
    two: Call | None = None
    error: float | None = None


POWERS = {"σ^-0.5": -0.5, "σ^-1": -1.0}


def contestants(x: Tensor) -> dict[str, Head]:
    """Return the heads on a batch."""
    k = x.shape[1]
    views = torch.stack([x, x.flip(1)])
    oracle = Oracle(x)
    heads = {}
    for name, p in POWERS.items():
        for solver in SOLVERS:
            target = SpectralFilter("target", "pow", p, solver=solver)
            error = oracle.error(target(x), get("pow", p))
            one, two = partial(target, x), partial(target, views)
            heads[f"{name}, {solver}"] = Head(one, two, error)

    online = SpectralFilter("online", "log1p")
    leaf = x.clone().requires_grad_()
    leaves = views.clone().requires_grad_()
    heads["log(1+σ), online"] = Head(
        partial(with_backward, online, leaf),
        partial(with_backward, online, leaves),
        oracle.error(online(x), get("log1p")),
    )
    learned = predictor(k).to(x.device)
    heads["learned predictor"] = Head(partial(with_backward, learned, leaf))
    paper = PaperTarget(-0.5)
    error = oracle.error(paper(x), get("pow", -0.5))
    heads["Algorithm 2 as printed, σ^-0.5"] = Head(partial(paper, x), error=error)
    heads["floor: Gram matrix and eigh"] = Head(partial(spectrum_floor, x))
    return heads


def filters(bench: Bench) -> None:
    """Time the filters on one view and on two in one call; check the values against float64."""
    shapes = [(256, 2048), (128, 512), (4096, 2048)]
    if bench.small:
        shapes = [(16, 32), (32, 16)]
    bench.write("## Filters alone (ms, GPU / wall)\n")
    bench.write("The online filter and the predictor are timed with their backward pass.\n")
    bench.head(["batch", "head", "one view", "two views", "error of a unit row", "waits"])
    for n, k in shapes:
        x = batch_normed(n, k).to(bench.device)
        heads = contestants(x)
        calls: Calls = {}
        for name, head in heads.items():
            calls[name] = head.one
            if head.two is not None:
                calls[f"{name}, two views"] = head.two
        times = bench.times(calls, slow=n > 1000)
        for name, head in heads.items():
            one = times[name]
            two = times.get(f"{name}, two views")
            cells = [f"({n}, {k})", name, str(one), str(two or "–")]
            cells.append("–" if head.error is None else f"{head.error:.1e}")
            bench.row([*cells, bench.waits(head.two or head.one)])
    bench.write()
