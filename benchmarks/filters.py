"""Compare the speed of each spectral filter with the paper's Algorithm 2 as printed."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.timing import interleaved, parse, parser, ratio
from rdm_solo.filters import SpectralFilter, get
from rdm_solo.methods.chosen_filter import shipped_filters

SHAPES = [
    (64, 64),
    (128, 512),
    (256, 256),
    (512, 256),
    (128, 2048),
    (256, 2048),
    (512, 2048),
    (1024, 2048),
    (4096, 256),
]


def algorithm_2(x: Tensor, branch: str, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Filter a batch by the paper's Algorithm 2 as printed."""
    with torch.no_grad():
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        if branch == "target":
            return u @ torch.diag(s * function(s)) @ vh
        w = vh.T @ torch.diag(function(s)) @ vh
    return x @ w.detach()


def spectrum_floor(x: Tensor) -> Tensor:
    """Return the eigenvectors of the float64 Gram matrix, the least work of an exact filter."""
    n, k = x.shape
    x = x.double()
    gram = x @ x.T if n <= k else x.T @ x
    return torch.linalg.eigh(gram).eigenvectors


def batch_normed(n: int, k: int) -> Tensor:
    """Return features with a 1/i spectrum, passed through batch norm as in a projector."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, k, generator=rng) / torch.arange(1, k + 1)
    rotation = torch.linalg.qr(torch.randn(k, k, generator=rng)).Q
    return nn.functional.batch_norm(x @ rotation, None, None, training=True)


def timed_pass(apply: Callable[[Tensor], Tensor], x: Tensor, learns: bool) -> Callable[[], None]:
    """Return a call of a forward pass and, on the branch that learns, a backward pass."""
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.device)

    def run() -> None:
        out = apply(x.detach().requires_grad_(learns))
        if learns:
            out.backward(grad)

    return run


def measure(runs: int, device: str, shapes: Sequence[tuple[int, int]]) -> None:
    """Print each filter's time, and its ratios to Algorithm 2 and to Gram matrix and eigh alone."""
    print(f"{'filter':<18}{'(n, k)':>13}{'alg. 2':>10}{'this':>10}{'ratio':>8}  min..max")
    for n, k in shapes:
        x = batch_normed(n, k).to(device)
        for name, shipped in shipped_filters().items():
            if not shipped.spectral or shipped.symmetric:  # the same as either branch's filter
                continue
            branch, function, p = shipped.branch, shipped.function, shipped.p
            gain = partial(get(function, p, **shipped.parameters), rows=n)
            ours = SpectralFilter(branch, function, p, **shipped.parameters)
            theirs = partial(algorithm_2, branch=branch, function=gain)
            learns = branch == "online"
            contestants = [
                timed_pass(theirs, x, learns),
                timed_pass(ours, x, learns),
                partial(spectrum_floor, x),
            ]
            printed, this, floor = interleaved(contestants, runs, device)
            middle, low, high = ratio(printed, this)
            above, _, _ = ratio(this, floor)
            print(
                f"{name:<18}{f'({n}, {k})':>13}{1e3 * statistics.median(printed):>8.2f}ms"
                f"{1e3 * statistics.median(this):>8.2f}ms{middle:>8.2f}  {low:.2f}..{high:.2f}"
                f"   {above:.2f} x (Gram + eigh)"
            )


def main() -> None:
    options = parse(parser("filters", "each filter against the paper's Algorithm 2", shapes=True))
    measure(options.runs, options.device, options.shapes or SHAPES)


if __name__ == "__main__":
    main()
