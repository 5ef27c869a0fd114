"""Spectra of the logits before a softmax, from the last layer's inputs and its weight."""

import torch
from torch import Tensor

from rdm_solo.spectra.ranks import descending, symmetric
from rdm_solo.spectra.sums import SumMetric, step_mean, valid_rows


class StepCorrelation(SumMetric):
    """Correlation matrices of rows ``(N, b)`` and of the steps' means, in float64.

    Each update is a training step that all processes make together.

    >>> metric = StepCorrelation(dim=2)
    >>> metric.update(torch.eye(2))
    >>> C, C_means = metric.compute()
    >>> C.diagonal(), C_means.diagonal()
    (tensor([0.5000, 0.5000], dtype=torch.float64), tensor([0.2500, 0.2500], dtype=torch.float64))
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.add_sum("total", dim, dim)  # x x^T, over rows
        self.add_sum("means", dim, dim)  # N m m^T of the step's mean m, over steps
        self.add_count("count")  # rows

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        valid = valid_rows([x])
        x = x.double().where(valid[:, None], 0.0)
        count = valid.sum()
        mean = step_mean(x.sum(0), count)
        self.total += x.mT @ x
        self.means.addr_(mean, mean)
        self.count += count

    @torch.no_grad()
    def compute(self) -> tuple[Tensor, Tensor]:
        return self.total / self.count, self.means / self.count


def low_rank_spectrum(C_h: Tensor, W: Tensor) -> Tensor:
    r"""Return the eigenvalues of the logits' k x k correlation matrix :math:`W C_h W^T`.

    The rank of logits :math:`W h` is at most b, the dimension of h. The eigenvalues are computed as
    those of the b x b matrix :math:`R W^T W R^T` with :math:`C_h = R^T R`.

    Shapes: ``(b, b), (k, b) -> (min(k, b),)``.

    >>> W = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    >>> low_rank_spectrum(torch.diag(torch.tensor([1.0, 4.0])), W)
    tensor([16.,  1.], dtype=torch.float64)
    """
    lam, v = torch.linalg.eigh(symmetric(C_h))
    roots = lam.clamp_min(0).sqrt()
    R = roots[:, None] * v.mT
    image = W.double() @ R.mT
    eigenvalues = descending(image.mT @ image)
    return eigenvalues[: min(W.shape)]
