r"""What positive pairs have in common (Lemma 3), on samples of several views of each image."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["conditional_covariance", "mean_correlation", "positive_correlation"]


def mean_correlation(z: Tensor) -> Tensor:
    r"""The correlation :math:`\bar C = E[z_{\bar x} z_{\bar x}^\top]` of views' means (Lemma 3).

    z holds m views of each of n samples. Shapes: ``(n, m, k) -> (k, k)``.

    >>> mean_correlation(torch.tensor([[[1.0], [3.0]]]))
    tensor([[4.]], dtype=torch.float64)
    """
    mean = _views(z, 1).mean(dim=1)
    return mean.mT @ mean / len(mean)


def positive_correlation(z: Tensor) -> Tensor:
    r"""The correlation :math:`C_+ = E[z_x z_{x^+}^\top]` of all pairs of two different views.

    Lemma 3.1, :math:`C_+ = \bar C`, is about expectations. The mean of m views keeps some of their
    noise, so that on samples :math:`C_+ = \bar C - V_{x|\bar x} / m`, exactly: the two differ by
    half of the conditional covariance for the usual two views. Shapes: ``(n, m, k) -> (k, k)``.

    >>> positive_correlation(torch.tensor([[[1.0], [3.0]]]))
    tensor([[3.]], dtype=torch.float64)
    """
    y = _views(z, 2)
    n, m, _ = y.shape
    total, rows = y.sum(dim=1), y.flatten(0, 1)
    return (total.mT @ total - rows.mT @ rows) / (n * m * (m - 1))


def conditional_covariance(z: Tensor, unbiased: bool = True) -> Tensor:
    r"""The covariance :math:`V_{x|\bar x}` that augmentation adds within samples (Lemma 3).

    Lemma 3.2, :math:`C_z = \bar C + V_{x|\bar x}`, holds exactly on samples with
    ``unbiased=False`` beside :func:`mean_correlation`, and with ``unbiased=True`` (divided by
    m - 1 in place of m) beside :func:`positive_correlation`. Shapes: ``(n, m, k) -> (k, k)``.

    >>> conditional_covariance(torch.tensor([[[1.0], [3.0]]]))
    tensor([[2.]], dtype=torch.float64)
    """
    y = _views(z, 2)
    n, m, _ = y.shape
    rest = (y - y.mean(dim=1, keepdim=True)).flatten(0, 1)
    return rest.mT @ rest / (n * (m - 1 if unbiased else m))


def _views(z: Tensor, least: int) -> Tensor:
    if z.ndim != 3 or len(z) == 0 or z.shape[1] < least:
        raise ValueError(
            f"z must have the shape (n, m, k): n samples, each with m >= {least} views, "
            f"got {tuple(z.shape)}."
        )
    return z.detach().to(torch.float64)
