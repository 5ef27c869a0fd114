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

# (a, b, c) of each step, by m. A step maps x = lambda^(1/m) to x (a + b x^m + c x^2m). It is the
# best such approximation of 1 on the interval that the step before leaves, without the part below a
# hundredth (m = 2) or a tenth (m = 4) of its upper end. Without this limit a step would map some
# large eigenvalues to rounding noise. The first interval is 3e-6 <= lambda^(1/2) <= 1, and the
# error after the last step is below 3e-9. The last polynomial of m = 4 is Taylor's.
STEPS = {
    2: (
        (8.09336879938, -23.620431037, 17.4461521701),
        (4.21729505255, -3.34196414468, 0.670228568675),
        (4.21729505634, -3.34196415368, 0.670228571684),
        (4.21729505624, -3.34196415345, 0.670228571604),
        (4.21729505617, -3.34196415328, 0.670228571548),
        (4.21729505612, -3.34196415316, 0.670228571508),
        (4.07825395231, -3.19317414079, 0.638117256619),
        (3.3308692095, -2.49776000263, 0.511098789882),
        (2.31155744187, -1.67867198131, 0.419863733752),
        (1.89242654391, -1.26922941238, 0.376928024798),
        (1.87500184121, -1.25000154214, 0.37499970094),
    ),
    4: (
        (3.85003232477, -10.8538619631, 8.61893493581),
        (2.38376515237, -0.987596968185, 0.115251190307),
        (2.38376515234, -0.987596968119, 0.115251190293),
        (2.38376515235, -0.987596968153, 0.115251190301),
        (2.38376515238, -0.987596968204, 0.115251190311),
        (2.2160951795, -0.869580273036, 0.100300484901),
        (1.69762978413, -0.598988200689, 0.0799881845868),
        (1.44838033266, -0.580749302775, 0.139145531268),
        (1.40649827464, -0.562659557103, 0.156161461622),
        (1.40625, -0.5625, 0.15625),
    ),
}
# The largest accepted error of a filtered row after scaling it to unit length. Rounding to float32
# adds 6e-8, which makes the 3.1e-7 that SpectralFilter promises.
TOLERANCE = 2.5e-7
# Products are used only if |G| is in this range, in which no filtered row needs to be rescaled.
SMALLEST, LARGEST = 1e-10, 1e10
# A graph saves the time to launch kernels, which is negligible for larger matrices.
LARGEST_GRAPH = 1024


class InverseRoot(NamedTuple):
    """The inverse roots of a stack of matrices, ``(V, n, n)``, and which are accurate, ``(V,)``.

    The root of a centred batch multiplies the rows from the left. All others are symmetric.
    """

    root: Tensor
    usable: Tensor


def inverse_root(gram: Tensor, order: int, cut: float, centred: bool = False) -> InverseRoot:
    """Return ``G^(-1/order)`` of each matrix of a stack, as one CUDA graph on a GPU.

    ``order`` is 2 or 4, and directions with ``sigma <= cut sigma_max`` are noise. Set
    ``centred`` if G = X X^T and a batch norm may have subtracted the mean row of X. The result must
    be read before the next call.

    >>> root, usable = inverse_root(torch.diag(torch.tensor([16.0, 1.0])).double()[None], 4, 1e-6)
    >>> root.round(decimals=6), usable
    (tensor([[[0.5000, 0.0000],
             [0.0000, 1.0000]]], dtype=torch.float64), tensor([True]))
    """
    if gram.device.type != "cuda" or gram.shape[-1] > LARGEST_GRAPH:
        return iterate(gram, order, cut, centred)
    graph, static_gram, result = _capture(gram.shape, gram.device, order, cut, centred)
    static_gram.copy_(gram)
    graph.replay()
    return result


def iterate(gram: Tensor, order: int, cut: float, centred: bool = False) -> InverseRoot:
    """Compute the inverse roots, without a decision that needs a value on the host.

    Batch norm subtracts the mean row, so the vector of ones, u, is nearly a null direction of G:
    rounding the rows leaves a small component. With ``centred``, the root is computed from the rows
    without their mean, whose null direction is exactly u, and the filtered mean row is added to
    first order.

    A matrix is not usable if another direction is noise, or if the result is inexact.
    """
    n = gram.shape[-1]
    size = torch.linalg.matrix_norm(gram)
    mean_row = gram.mean(-1)  # G u / sqrt(n)
    mean = mean_row.mean(-1)
    null_lam = n * mean  # u^T G u
    # |G| / sqrt(n) is at most the largest eigenvalue.
    is_null = null_lam <= cut**2 * size / n**0.5
    if not centred:
        is_null = torch.zeros_like(is_null)
    # Replace G by (I - u u^T) G (I - u u^T) + fill u u^T.
    fill = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
    coupling = (mean_row - mean[:, None])[..., None]  # (I - u u^T) G u / sqrt(n)
    without_mean = gram - mean_row[:, :, None] - coupling.mT + (fill / n)[:, None, None]
    gram = without_mean.where(is_null[:, None, None], gram)

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
    scale = size ** (-1 / order)
    root = Z * scale[:, None, None]

    inverse_sqrt = root
    if order == 4:
        inverse_sqrt = root @ root
    sqrt = inverse_sqrt @ gram
    identity = sqrt @ inverse_sqrt
    residual = torch.linalg.matrix_norm(identity - eye)
    # The sum of 1 / lambda, an upper bound of 1 / lambda_min.
    inverse_trace = inverse_sqrt.square().sum((-2, -1))

    null_gain = fill ** (-1 / order) / n
    root = root - null_gain.where(is_null, 0.0)[:, None, None]
    # The left singular vectors of X are those of the centred rows plus u times this.
    tilt = inverse_sqrt @ (inverse_sqrt @ coupling)
    tilt = tilt.where(is_null[:, None, None], 0.0)
    # The size of the omitted second-order terms: the largest filtered row is at most size^(1/2 -
    # 1/order). In random batches, they were at most 0.83 of this estimate.
    second_order = n**0.5 * torch.linalg.vector_norm(tilt, dim=(-2, -1))
    second_order = second_order * (null_lam.clamp_min(0) * inverse_trace).sqrt()
    # The squared lengths of filtered rows are the diagonal of G^(1 - 2/order) without u's part.
    squares = identity if order == 2 else sqrt
    null_square = torch.where(is_null, fill ** (1 - 2 / order) / n, 0.0)
    lengths = (squares.diagonal(dim1=-2, dim2=-1) - null_square[:, None]).clamp_min(0).sqrt()
    # A root's own error commutes with G, so it scales with each row. Rounding does not, and is the
    # second term of SpectralFilter's bound.
    error = residual / 2 + second_order * size ** (1 / 2 - 1 / order) / lengths.amin(-1)

    usable = error <= TOLERANCE
    usable &= inverse_trace * size * cut**2 < 1
    usable &= (size > SMALLEST) & (size < LARGEST)
    return InverseRoot(root + (root @ tilt).mT, usable)


def read_later(flags: Tensor) -> Callable[[], list[bool]]:
    """Start to copy flags to the host; return a function that waits for this copy and returns them.

    >>> read_later(torch.tensor([True, False]))()
    [True, False]
    """
    copy = flags.to("cpu", non_blocking=True)
    if flags.device.type != "cuda":
        return copy.tolist
    with torch.cuda.device(flags.device):
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()

    def read() -> list[bool]:
        copied.synchronize()
        values: list[bool] = copy.tolist()
        return values

    return read


@functools.lru_cache(maxsize=16)
def _capture(
    shape: torch.Size, device: torch.device, order: int, cut: float, centred: bool
) -> tuple[torch.cuda.CUDAGraph, Tensor, InverseRoot]:
    """Return the graph of :func:`iterate`, its input and its result."""
    n = shape[-1]
    with torch.cuda.device(device):
        gram = torch.eye(n, dtype=torch.float64, device=device).expand(shape).clone()
        # cuBLAS allocates its workspace in the first product, which a graph cannot record.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            iterate(gram, order, cut, centred)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as a loader's, may use the device meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            result = iterate(gram, order, cut, centred)
    return graph, gram, result
