"""Two recent proposals for choosing a run without labels, which the package does not have."""

import itertools
import math

import numpy as np
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from rdm_solo.data.draws import generator

# Three random subsets of an eighth, a quarter and a half of the rows, and all rows.
SUBSETS = [*itertools.product((8, 4, 2), range(3)), (1, 0)]


def intrinsic_dimension(x: Tensor) -> float:
    """Estimate the intrinsic dimension from the length of the minimum spanning tree.

    The length of n points' tree grows as n^((d - 1) / d) for points of dimension d (Steele, 1988).
    The exponent is fitted by least squares on subsets of an eighth of the rows to all of them.

    >>> plane = torch.zeros(960, 16)
    >>> plane[:, :2] = torch.rand(960, 2, generator=torch.Generator().manual_seed(0))
    >>> 1.7 < intrinsic_dimension(plane) < 2.3
    True
    """
    distances = torch.cdist(x.double(), x.double()).numpy()
    sizes = []
    lengths = []
    for share, repeat in SUBSETS:
        order = torch.randperm(len(x), generator=generator("idest", share, repeat))
        rows = order[: len(x) // share].numpy()
        tree = minimum_spanning_tree(distances[np.ix_(rows, rows)])
        sizes.append(len(rows))
        lengths.append(tree.sum())
    if min(lengths) <= 0:
        return 0.0
    slope, _ = np.polyfit(np.log(sizes), np.log(lengths), 1)
    return float(1 / (1 - slope)) if slope < 1 else math.nan


def explained_variance(x: Tensor) -> float:
    """Return the area under the cumulative explained variance over the share of the components.

    >>> round(explained_variance(torch.eye(4)[:, :2] * 1.0), 3)
    0.833
    """
    x = x.double()
    lam = torch.linalg.svdvals(x - x.mean(0)).square()
    if lam.sum() == 0:
        return 1.0
    shares = torch.zeros(x.shape[1], dtype=torch.float64)
    shares[: len(lam)] = lam
    return float((shares.cumsum(0) / lam.sum()).mean())
