"""``filter.solver=iterative`` beside ``eigh``.

Singular values fall from 1 to 1 / condition by a constant factor. Errors are those of rows of unit
length against an SVD in float64. A batch beyond the products' reach falls back to ``eigh``.
"""

import statistics

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.timing import interleaved, parse, parser, ratio
from rdm_solo.filters import SpectralFilter
from rdm_solo.filters.batch import gather
from rdm_solo.filters.iterations import ROOTS, power

SHAPES = [(256, 2048)]
CONDITIONS = (1e1, 1e2, 1e3, 1e4, 3e4, 1e5)


def with_condition(number: float, n: int, k: int) -> Tensor:
    """Return float64 rows ``(n, k)`` with such a spectrum."""
    rng = torch.Generator().manual_seed(0)
    side = min(n, k)
    u, v = (
        torch.linalg.qr(torch.randn(m, side, generator=rng, dtype=torch.float64))[0] for m in (n, k)
    )
    return (u * number ** -torch.linspace(0, 1, side, dtype=torch.float64)) @ v.mT


def products(x: Tensor, p: float) -> float:
    """Return the number of products of matrices of the Gram matrix's size."""
    batch, gram = gather(x)
    assert gram is not None  # x is not float64
    with FlopCounterMode(display=False) as counter:
        power(batch, gram, p)
    return counter.get_total_flops() / (2 * len(gram) ** 3)


def measure(runs: int, device: str, shapes: list[tuple[int, int]]) -> None:
    """Print error, number of products, and time of both solvers."""
    print(
        f"{'(n, k)':>13}{'p':>6}{'condition':>11}{'products':>10}{'enough':>8}{'error':>10}"
        f"{'eigh':>11}{'iterative':>11}{'ratio':>8}  min..max"
    )
    for n, k in shapes:
        for p in ROOTS:
            for condition in CONDITIONS:
                x = with_condition(condition, n, k).float()
                u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
                want = normalize((u * sigma ** (1 + p)) @ vh)
                x = x.to(device)
                filters = [
                    SpectralFilter("target", "pow", p, solver) for solver in ("eigh", "iterative")
                ]
                error = (normalize(filters[1](x).double().cpu()) - want).abs().max()
                enough = bool(power(*gather(x), p).accurate)  # type: ignore[arg-type]
                calls = [lambda f=f, x=x: f(x) for f in filters]
                seconds = interleaved(calls, runs, device)
                middle, low, high = ratio(*seconds)
                times = "".join(f"{statistics.median(s) * 1e3:>8.1f} ms" for s in seconds)
                print(
                    f"{f'({n}, {k})':>13}{p:>6}{condition:>11.0e}{products(x, p):>10.0f}"
                    f"{'yes' if enough else 'no':>8}{error:>10.1e}{times}{middle:>8.2f}  "
                    f"{low:.2f}..{high:.2f}"
                )


def main() -> None:
    options = parse(parser("solvers", "filters by matrix products beside eigh", shapes=True))
    measure(options.runs, options.device, options.shapes or SHAPES)


if __name__ == "__main__":
    main()
