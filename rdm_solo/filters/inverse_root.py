"""Inverse square and fourth roots of Gram matrices by matrix products alone.

sigma^-1 multiplies the rows of a batch by the inverse square root of their Gram matrix G, and
sigma^-0.5 by its inverse fourth root. On a GPU, ``eigh`` of a 256 x 256 matrix takes longer than
all products below, which run as one CUDA graph.

The iteration starts at ``M = G / |G|`` and ``Z = I``. A step computes the polynomial
``R = a + b M + c M^2`` and replaces Z by ``Z R`` and M by ``R^m M``, where m is 2 or 4. M then
approaches I, and Z approaches ``(G / |G|)^(-1/m)``. This is the coupled iteration of Iannazzo
(2006) with minimax polynomials, as Polar Express (Amsel et al., 2025) uses them for polar factors.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# (a, b, c) of each step, by m. A step maps x = lambda^(1/m) to x (a + b x^m + c x^2m), and is the
# best such approximation of 1 on the interval that the step before leaves. The first interval is
# 3e-6 <= lambda^(1/2) <= 1, and the error after the last step is below 3e-9. The last polynomials
# are Taylor's.
STEPS = {
    2: (
        (8.51416970098, -25.2812268598, 18.7670316163),
        (4.25692332627, -3.16006124535, 0.586464783871),
        (4.25618152182, -3.15954815321, 0.586406256819),
        (4.25302712831, -3.1573660642, 0.58615735258),
        (4.23966299625, -3.14811668102, 0.585102319054),
        (4.1839189377, -3.10945476996, 0.580692636687),
        (3.9658802997, -2.9568996245, 0.563299312127),
        (3.2966741448, -2.47226100721, 0.508211391293),
        (2.28212537023, -1.65223112804, 0.417007155314),
        (1.8894923382, -1.26601003601, 0.37660457522),
        (1.875, -1.25, 0.375),
    ),
    4: (
        (4.93345481761, -16.0951254376, 13.1531256256),
        (2.4594969276, -0.508349430143, 0.0263955283405),
        (2.43170063983, -0.510851744229, 0.0271558900866),
        (2.36690710827, -0.517086096834, 0.0291032119394),
        (2.22767812371, -0.532401611261, 0.0342988178383),
        (1.97433492952, -0.56584270014, 0.0490971185104),
        (1.63905678287, -0.602048270312, 0.0899725732024),
        (1.4298065191, -0.573762259071, 0.146225669807),
        (1.40625, -0.5625, 0.15625),
        (1.40625, -0.5625, 0.15625),
    ),
}
# A root is used if G^(-1/2) G G^(-1/2) equals I up to this error, and if the null direction of
# batch norm changes the rows of U by at most as much.
TOLERANCE = 1e-7
# The range of |G| in which no filtered row is too long or too short for a loss to normalise.
SMALLEST, LARGEST = 1e-10, 1e10
# A graph saves the time to launch kernels, which is negligible for larger matrices.
LARGEST_GRAPH = 1024


class InverseRoot(NamedTuple):
    """The inverse roots of a stack of matrices, ``(V, n, n)``, and which can be used, ``(V,)``."""

    root: Tensor
    usable: Tensor


def inverse_root(gram: Tensor, order: int, cut: float) -> InverseRoot:
    """Return ``G^(-1/order)`` of each matrix of a stack, as one CUDA graph on a GPU.

    ``order`` is 2 or 4, and ``cut`` is the share of the largest singular value below which a
    direction is noise. The result must be read before the next call.

    >>> root, usable = inverse_root(torch.diag(torch.tensor([16.0, 1.0])).double()[None], 4, 1e-6)
    >>> root.round(decimals=6), usable
    (tensor([[[0.5000, 0.0000],
             [0.0000, 1.0000]]], dtype=torch.float64), tensor([True]))
    """
    if gram.device.type != "cuda" or gram.shape[-1] > LARGEST_GRAPH:
        return iterate(gram, order, cut)
    graph, static_gram, result = _capture(gram.shape, gram.device, order, cut)
    static_gram.copy_(gram)
    graph.replay()
    return result


def iterate(gram: Tensor, order: int, cut: float) -> InverseRoot:
    """Compute the inverse roots, without a decision that needs a value on the host.

    Batch norm subtracts the mean row, so the vector of ones is a null direction of G. Its
    eigenvalue is replaced for the iteration, and its part of the root is zero.

    A matrix is not usable if another direction is noise, or if the result is inexact.
    """
    n = gram.shape[-1]
    size = torch.linalg.matrix_norm(gram)
    mean_row = gram.mean(-1)
    ones_lam = n * mean_row.mean(-1)  # u^T G u with u = (1, ..., 1) / sqrt(n)
    # |G| / sqrt(n) is at most the largest eigenvalue.
    is_null = ones_lam <= cut**2 * size / n**0.5
    fill = gram.diagonal(dim1=-2, dim2=-1).mean(-1).where(is_null, 0.0)
    gram = gram + (fill / n)[:, None, None]

    size = torch.linalg.matrix_norm(gram)
    eye = torch.eye(n, dtype=gram.dtype, device=gram.device)
    M = gram / size[:, None, None]
    Z = eye.expand_as(M)
    for a, b, c in STEPS[order]:
        R = a * eye + b * M + c * (M @ M)
        Z = Z @ R
        R = R @ R
        if order == 4:
            R = R @ R
        M = R @ M
        M = (M + M.mT) / 2  # keeps rounding errors from growing
    scale = size ** (-1 / order)
    root = Z * scale[:, None, None]

    inverse_sqrt = root
    if order == 4:
        inverse_sqrt = root @ root
    residual = inverse_sqrt @ gram @ inverse_sqrt - eye
    # G^-1 G u is u without its part in the null direction: zero if u is that direction.
    tilt = inverse_sqrt @ (inverse_sqrt @ mean_row[..., None])
    tilt = torch.linalg.vector_norm(tilt, dim=(-2, -1)).where(is_null, 0.0)
    # The sum of all 1 / lambda is at least that of the smallest one.
    inverse_trace = inverse_sqrt.square().sum((-2, -1))
    usable = residual.abs().amax((-2, -1)) <= TOLERANCE
    usable &= tilt <= TOLERANCE
    usable &= inverse_trace * size * cut**2 < 1
    usable &= (size > SMALLEST) & (size < LARGEST)

    null_gain = fill.where(is_null, 1.0) ** (-1 / order)
    null_part = null_gain.where(is_null, 0.0) / n
    return InverseRoot(root - null_part[:, None, None], usable)


def read_later(flag: Tensor) -> Callable[[], bool]:
    """Start to copy a flag to the host; return a function that waits for this copy and returns it.

    >>> read_later(torch.tensor(True))()
    True
    """
    copy = flag.to("cpu", non_blocking=True)
    if flag.device.type != "cuda":
        return lambda: bool(copy)
    with torch.cuda.device(flag.device):
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()

    def read() -> bool:
        copied.synchronize()
        return bool(copy)

    return read


@functools.lru_cache(maxsize=16)
def _capture(
    shape: torch.Size, device: torch.device, order: int, cut: float
) -> tuple[torch.cuda.CUDAGraph, Tensor, InverseRoot]:
    """Return the graph of :func:`iterate`, its input and its result."""
    n = shape[-1]
    with torch.cuda.device(device):
        gram = torch.eye(n, dtype=torch.float64, device=device).expand(shape).clone()
        # cuBLAS allocates its workspace in the first product, which a graph cannot record.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            iterate(gram, order, cut)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as a loader's, may use the device meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            result = iterate(gram, order, cut)
    return graph, gram, result
