"""A search for batches that the solver by products accepts and filters inexactly."""

import pytest
import torch
from conftest import features

from rdm_solo.filters import SpectralFilter, relative_cut

POPULATION = 50
ROUNDS = 34
# The spectrum's decades and shape, the decades between rows, how far the strongest direction lies
# in two rows, the tilts of the null direction to the strongest and the weakest one, and the scale.
GENES = 7


def batches(genes, shape, generator):
    """Return a batch ``(n, k)`` for each row of genes in [0, 1], whose null direction is tilted.

    It is the vector of ones up to a rotation, as after a batch norm in float32. Long rows lie in
    strong directions, short ones in weak directions.
    """
    n, k = shape

    def normal(*size):
        return torch.randn(len(genes), *size, generator=generator, dtype=torch.float64)

    decades, form, rows, width, strong_tilt, weak_tilt, scale = genes.T[:, :, None].double()
    index = torch.linspace(0, 1, n - 1, dtype=torch.float64)
    sigma = 10 ** (4 * scale - 2 - 5.5 * decades * index**10 ** (2 * form - 1))
    lengths = 10 ** (-6 * rows * torch.linspace(0, 1, n, dtype=torch.float64))
    basis = normal(n, n) * lengths[:, :, None]
    basis[:, :, 0] = 1.0
    basis[:, :, 1] = 10 ** (-6 * width) * normal(n)
    basis[:, 0, 1] += 1
    basis[:, 1, 1] -= 1
    left = torch.linalg.qr(basis).Q
    for direction, tilt in ((1, strong_tilt), (n - 1, weak_tilt)):
        null, other = left[:, :, 0].clone(), left[:, :, direction].clone()
        angle = 10 ** (-9 * tilt)
        left[:, :, 0] = angle.cos() * null + angle.sin() * other
        left[:, :, direction] = angle.cos() * other - angle.sin() * null
    right = torch.linalg.qr(normal(k, n - 1)).Q
    return ((left[:, :, 1:] * sigma[:, None]) @ right.mT).float()


def excess(module, x):
    """Return the error of each accepted batch, divided by the promised bound; -1 if refused."""
    filtered = module(x).double()
    u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
    is_kept = sigma > relative_cut(x.dtype, *x.shape[1:]) * sigma[:, :1]
    smallest = torch.where(is_kept, sigma, torch.inf).amin(1)
    gain = torch.where(is_kept, sigma ** (1 + module.p), 0.0)
    expected = torch.nn.functional.normalize((u * gain[:, None]) @ vh, dim=2)
    error = torch.nn.functional.normalize(filtered, dim=2) - expected
    error = error.norm(dim=2).amax(1)
    bound = 3.1e-7 + 16 * torch.finfo(torch.float64).eps * (sigma[:, 0] / smallest) ** 2
    return torch.where(filtered.flatten(1).any(1), error / bound, -1.0)


def search(p, shape, rounds=ROUNDS):
    """Return the excess of all batches of an evolution toward the largest excess."""
    generator = torch.Generator().manual_seed(0)
    # A batch that fails a delayed check is mapped to zero. The first one is checked at once.
    module = SpectralFilter("target", "pow", p, solver="products", check_delay=10**9)
    module(features("batchnorm", *shape))
    genes = torch.rand(POPULATION, GENES, generator=generator)
    results = []
    for _ in range(rounds):
        values = excess(module, batches(genes, shape, generator))
        results.append(values)
        parents = genes[values.topk(POPULATION // 5).indices].repeat(4, 1)
        step = 0.1 * torch.randn(parents.shape, generator=generator)
        newcomers = torch.rand(POPULATION // 5, GENES, generator=generator)
        genes = torch.cat([(parents + step).clamp(0, 1), newcomers])
    return torch.cat(results)


@pytest.mark.parametrize("p", [-1.0, -0.5])
@pytest.mark.parametrize("shape", [(8, 64), (16, 24), (32, 256)])
def test_no_accepted_batch_exceeds_the_promised_error(shape, p):
    values = search(p, shape)
    assert values.max() <= 1
    # Measured: 0.70 to 0.73. A filter that decomposes would accept all.
    assert 0.5 < (values >= 0).double().mean() < 0.9
