r"""Powers of a Gram matrix by matrix products alone, without its eigenvectors.

Starting from :math:`M = G` and :math:`X = I`, each step takes a polynomial :math:`T` of degree 2
with :math:`T(M) \approx M^{-1/r}` and sets :math:`X \leftarrow XT`, :math:`M \leftarrow T^r M`. M
converges to the identity, and X to the inverse r-th root of G. Each polynomial is the best one for
the interval of eigenvalues that the previous steps leave (coupled Newton iterations: Guo & Higham,
2006; polynomials for an interval: Amsel et al., "The Polar Express", 2025).
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.filters.batch import Batch, relative_cut

# Exponent p of the singular values -> r, where sigma^p is the inverse r-th root of G.
ROOTS = {-1.0: 2, -0.5: 4}
# The largest accepted error of the inverse in each direction, and of each filtered row.
BOUND = 1e-5
# Outside this range of the matrix's norm, the result may leave the range of half precision.
SMALLEST, LARGEST = 1e-12, 1e12
FINISHING = 3  # steps by the polynomial that is best near 1


class Power(NamedTuple):
    """``G^(p/2)`` of a Gram matrix G (this process's rows if n x n), and whether it is accurate."""

    matrix: Tensor
    accurate: Tensor  # (): whether eigh would give the same rows to BOUND
    directions: Tensor  # (): number above rounding noise


def power(batch: Batch, gram: Tensor, p: float) -> Power:
    r"""Return the matrix that a filter :math:`\sigma^p` applies to rows, with p in ``ROOTS``.

    ``accurate`` is True only if ``eigh`` would give the same rows to ``BOUND`` (in half precision:
    to a quarter of its rounding). For this the result must be an inverse to ``BOUND``, every
    direction must be above :func:`relative_cut`, and the norm must be in range. A batch norm leaves
    the direction of the rows' sum at rounding noise. If it is below the cut, it is removed without
    a decomposition. ``accurate`` is then False if removing the nearest eigenvector would change a
    row by more than the bound. Nothing here synchronises with the device.

    Shapes: ``(n, n)`` or ``(k, k) -> (N, n)`` or ``(k, k)``, in float64.

    >>> from rdm_solo.filters.batch import gather
    >>> batch, gram = gather(torch.diag(torch.tensor([4.0, 1.0])))
    >>> result = power(batch, gram, -1)
    >>> result.matrix.round(decimals=6), bool(result.accurate)
    (tensor([[0.2500, 0.0000],
            [0.0000, 1.0000]], dtype=torch.float64), True)
    """
    r, n = ROOTS[p], len(gram)
    cut = relative_cut(batch.dtype, batch.n, batch.k) ** 2  # for eigenvalues
    size = torch.linalg.matrix_norm(gram)
    G = gram / size  # its largest eigenvalue is at most 1, and at least 1 / trace
    sums = G.sum(0)
    # 1/n where the rows' sum is noise, as in centred rows, and is removed; otherwise 0.
    removed = torch.zeros_like(size)
    if batch.dual:
        removed = (sums.sum() / n <= cut / G.diagonal().sum()).to(G) / n
    G = _without_sum(G, removed)

    X = T = M = G
    for step, (a, b, c) in enumerate(coefficients(r, cut)):
        if step:
            root = T if r == 2 else T @ T
            M = root @ M @ root
            M = (M + M.mT) / 2
        T = c * (M @ M) + b * M
        T.diagonal().add_(a)
        X = X @ T if step else T
    X = _without_sum((X + X.mT) / 2, removed)

    root = X if r == 2 else X @ X
    identity = root @ G @ root
    inverse = root.square().sum()  # the sum of the eigenvalues' inverses, at least the largest
    accurate = (inverse * cut < 1) & (size > SMALLEST) & (size < LARGEST)
    # Component of each eigenvector along the rows' sum, and how much that changes a row.
    lean = root @ (root @ (sums - sums.mean())) * removed * math.sqrt(n)
    outputs = identity if r == 2 else X @ G @ X  # the Gram matrix of the filtered rows
    change = (lean * (outputs @ lean)).sum() / n
    bound = max(BOUND, torch.finfo(batch.dtype).eps / 4 if batch.dtype.itemsize == 2 else 0.0)
    accurate &= change <= bound**2 * outputs.diagonal().amin()
    identity += removed
    identity.diagonal().sub_(1)
    accurate &= torch.linalg.matrix_norm(identity) <= BOUND
    rows = X[batch.local] if batch.dual else X
    return Power(rows * size ** (p / 2), accurate, n - n * removed)


@functools.lru_cache
def coefficients(r: int, least: float) -> list[tuple[float, float, float]]:
    """Return the coefficients of T for each step, for eigenvalues from ``least`` to 1."""
    steps = []
    low = least ** (1 / r)  # range of x^(1/r), which the steps bring to 1
    while True:
        a, b, c, error = best_polynomial(low, r)
        if error < 1e-3:
            break
        # Scaled so that no value exceeds 1, where the next step would diverge.
        steps.append((a / (1 + error), b / (1 + error), c / (1 + error)))
        low = (1 - error) / (1 + error)
    q = 1 / r
    near_1 = ((1 + q) * (2 + q) / 2, -q * (2 + q), q * (1 + q) / 2)  # Taylor series
    return steps + FINISHING * [near_1]


def best_polynomial(low: float, r: int) -> tuple[float, float, float, float]:
    r"""Return a, b, c with :math:`s(a + b s^r + c s^{2r})` nearest to 1 on [low, 1], and the error.

    The method is Remez' exchange.
    """
    powers = (1, 1 + r, 1 + 2 * r)
    inner = [(3 * low + 1) / 4, (low + 3) / 4]
    before = math.inf
    while True:
        points = [low, *inner, 1.0]
        rows = [[*(s**e for e in powers), (-1.0) ** i] for i, s in enumerate(points)]
        ones = torch.ones(4, dtype=torch.float64, device="cpu")
        matrix = torch.tensor(rows, dtype=torch.float64, device="cpu")
        a, b, c, error = torch.linalg.solve(matrix, ones).tolist()
        if abs(error - before) <= 1e-12:
            return a, b, c, abs(error)
        before = error
        # Where the derivative a + (1 + r) b y + (1 + 2r) c y^2 of y = s^r is zero.
        half, last = b * (1 + r), c * (1 + 2 * r)
        width = math.sqrt(max(half**2 - 4 * last * a, 0.0))
        inner = sorted(max((-half + side) / (2 * last), 0.0) ** (1 / r) for side in (-width, width))


def _without_sum(matrix: Tensor, removed: Tensor) -> Tensor:
    """Remove the direction of the rows' sum from a symmetric matrix, unless ``removed`` is zero."""
    sums = matrix.sum(0) * removed
    return matrix - sums - sums[:, None] + sums.sum() * removed
