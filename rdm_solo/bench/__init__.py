"""Measure what the filters cost: ``python -m rdm_solo.bench filters``, ``step``, ``views``,
``cost`` or ``spectra``.

Every ratio comes from one process that runs the contestants in turn; medians are printed with the
number of runs and the spread of the ratio, since machines are shared and noisy.
"""

from __future__ import annotations

import argparse
import functools
import platform
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rdm_solo.filters.functions import get
from rdm_solo.filters.spectral_filter import SpectralFilter

SHAPES = [(64, 64), (128, 512), (256, 256), (512, 256), (128, 2048), (256, 2048), (512, 2048)]
SHAPES += [(1024, 2048), (4096, 256)]
FILTERS = [
    ("online_pow", "online", "pow", 1.0),
    ("online_log", "online", "log", None),
    ("online_log1p", "online", "log1p", None),
    ("online_log1p_sq", "online", "log1p_sq", None),
    ("target_pow", "target", "pow", -0.5),
]


def algorithm_2(x: Tensor, branch: str, function: Callable[[Tensor], Tensor]) -> Tensor:
    """The paper's Algorithm 2 as it is printed, on any device."""
    with torch.no_grad():
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        if branch == "target":
            return u @ torch.diag(s * function(s)) @ vh
        w = vh.T @ torch.diag(function(s)) @ vh
    return x @ w.detach()


def spectrum_floor(x: Tensor) -> Tensor:
    """The float64 Gram matrix and its eigenvectors: what no exact filter of this kind avoids."""
    y = x.double()
    return torch.linalg.eigh(y @ y.T if len(x) <= x.shape[1] else y.T @ y)[1]


def batch_normed(n: int, k: int, seed: int = 0) -> Tensor:
    """Features with a 1/i spectrum after batch norm, as a projector makes them."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, k, generator=rng) / torch.arange(1, k + 1)
    x = x @ torch.linalg.qr(torch.randn(k, k, generator=rng))[0]
    return nn.functional.batch_norm(x, None, None, training=True)


def interleaved(
    contestants: Sequence[Callable[[], object]], runs: int, device: str
) -> list[list[float]]:
    """Seconds of each contestant in ``runs`` rounds, all of them once a round."""
    cuda = device.startswith("cuda")
    seconds: list[list[float]] = [[] for _ in contestants]
    for round_ in range(runs + 1):
        for times, contestant in zip(seconds, contestants):
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            contestant()
            if cuda:
                torch.cuda.synchronize()
            if round_:  # the first round warms up
                times.append(time.perf_counter() - start)
    return seconds


def ratio(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """Median, minimum and maximum of the ratio, round by round."""
    ratios = [a / b for a, b in zip(slow, fast)]
    return statistics.median(ratios), min(ratios), max(ratios)


def _pass(apply: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor | None) -> Callable[[], None]:
    """One forward, and a backward where the branch has one."""

    def run() -> None:
        out = apply(x.detach().requires_grad_(grad is not None))
        if grad is not None:
            out.backward(grad)

    return run


def bench_filters(runs: int, device: str, shapes: Sequence[tuple[int, int]]) -> None:
    """Each filter against Algorithm 2 and against the Gram matrix and its eigenvectors alone."""
    print(f"{'filter':<16}{'(n, k)':>13}{'alg. 2':>10}{'this':>10}{'ratio':>8}  min..max")
    for n, k in shapes:
        x = batch_normed(n, k).to(device)
        upstream = torch.randn(n, k, generator=torch.Generator().manual_seed(1)).to(device)
        for label, branch, function, p in FILTERS:
            grad = upstream if branch == "online" else None
            printed = functools.partial(algorithm_2, branch=branch, function=get(function, p))
            seconds = interleaved(
                [
                    _pass(printed, x, grad),
                    _pass(SpectralFilter(branch, function, p), x, grad),
                    functools.partial(spectrum_floor, x),
                ],
                runs,
                device,
            )
            middle, low, high = ratio(seconds[0], seconds[1])
            above, _, _ = ratio(seconds[1], seconds[2])
            times = "".join(f"{statistics.median(s) * 1e3:>8.2f}ms" for s in seconds[:2])
            print(
                f"{label:<16}{f'({n}, {k})':>13}{times}{middle:>8.2f}  {low:.2f}..{high:.2f}"
                f"   {above:.2f} x (Gram + eigh)"
            )


def bench_step(runs: int, device: str, batch: int, size: int) -> None:
    """The share of each head in a two-view SimSiam step: ResNet-18, CIFAR stem, SGD."""
    from torchvision.models import resnet18

    torch.manual_seed(0)
    backbone = resnet18()
    backbone.fc = nn.Identity()
    backbone.conv1 = nn.Conv2d(3, 64, 3, 1, 2, bias=False)
    backbone.maxpool = nn.Identity()
    k = 2048
    projector = nn.Sequential(
        nn.Linear(512, k, bias=False),
        nn.BatchNorm1d(k),
        nn.ReLU(),
        nn.Linear(k, k, bias=False),
        nn.BatchNorm1d(k),
        nn.ReLU(),
        nn.Linear(k, k),
        nn.BatchNorm1d(k, affine=False),
    )
    predictor = nn.Sequential(
        nn.Linear(k, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, k)
    )
    trunk = nn.Sequential(backbone, projector).to(device)
    optimizer = torch.optim.SGD(trunk.parameters(), lr=0.1, momentum=0.9)
    predictor.to(device)
    head_optimizer = torch.optim.SGD(predictor.parameters(), lr=0.1, momentum=0.9)
    views = [torch.randn(batch, 3, size, size, device=device) for _ in range(2)]
    z = [torch.randn(batch, k, device=device) for _ in range(2)]
    grad = torch.randn(batch, k, device=device)

    def step() -> None:
        """The step without any head; a head's own cost is timed beside it."""
        z1, z2 = trunk(views[0]), trunk(views[1])
        loss = -(
            nn.functional.cosine_similarity(z1, z2.detach()).mean()
            + nn.functional.cosine_similarity(z2, z1.detach()).mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def head(module: nn.Module, learns: bool = False, online: bool = True) -> Callable[[], None]:
        def run() -> None:
            for features in z:
                out = module(features.detach().requires_grad_(online))
                if online:
                    out.backward(grad)
            if learns:
                head_optimizer.step()
                head_optimizer.zero_grad()

        return run

    online, target = SpectralFilter("online", "log1p"), SpectralFilter("target", "pow", p=-0.5)
    contestants = {
        "learnable predictor": head(predictor, learns=True),
        "online_log1p": head(online),
        "target_pow": head(target, online=False),
    }
    seconds = interleaved([step, *contestants.values()], runs, device)
    base = statistics.median(seconds[0])
    print(f"step without a head, batch {batch}, {size} px: {base * 1e3:.0f} ms")
    for label, times in zip(contestants, seconds[1:]):
        share = ratio(times, seconds[0])[0]
        print(f"{label:<20}{statistics.median(times) * 1e3:>9.2f} ms{share:>9.2%} of it")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m rdm_solo.bench", description=__doc__)
    parser.add_argument("what", choices=["filters", "step", "views", "cost", "spectra"])
    parser.add_argument("--runs", type=int, default=11, help="rounds that count (default 11)")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--shape", type=int, nargs=2, action="append", metavar=("N", "K"))
    parser.add_argument("--batch", type=int, help="of a step (64; of 'spectra' 256)")
    parser.add_argument("--size", type=int, default=32, help="pixels, of a step (32)")
    parser.add_argument("--only", help="of 'cost': this method alone, such as simsiam")
    parser.add_argument(
        "overrides",
        nargs="*",
        help="of 'cost' and 'spectra': options of train, such as backbone.compile=true",
    )
    options = parser.parse_args(argv)
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: this machine has no CUDA device; use cpu")
    if options.runs < 1:
        parser.error(f"--runs must be at least 1, got {options.runs}")
    torch.set_num_threads(options.threads)
    name = platform.processor() or platform.machine()
    if options.device != "cpu":
        name = torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {name}, {options.threads} thread(s), {options.runs} runs")
    if options.what == "filters":
        shapes = [tuple(shape) for shape in options.shape] if options.shape else SHAPES
        bench_filters(options.runs, options.device, shapes)
    elif options.what == "views":
        from rdm_solo.bench.views import bench_views
        from rdm_solo.methods.solo_learn import version

        print(f"solo-learn {version()}; two views a sample, the same settings for both")
        bench_views(options.runs, interleaved, ratio)
    elif options.what == "cost":
        from rdm_solo.bench.cost import bench_cost

        where = options.device, options.batch or 64, options.size
        bench_cost(options.runs, *where, options.overrides, options.only)
    elif options.what == "spectra":
        from rdm_solo.bench.spectra import bench_spectra

        where = options.device, options.batch or 256, options.size
        bench_spectra(options.runs, *where, options.overrides)
    else:
        bench_step(options.runs, options.device, options.batch or 64, options.size)
