"""Effective ranks predicted by iterating Theorem 4's update of the eigenvalues."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rdm_solo.spectra.ranks import effective_rank
from rdm_solo.theory.theorems import updated_eigenvalues

STEP = 0.1  # alpha of a single update
SEPARATION = 1e-12  # between logarithms of equal eigenvalues; rounding errors are 100 times smaller

# A function that maps the online spectrum to the target's.
Relation = Callable[[Tensor], Tensor]


class Path(NamedTuple):
    """Effective ranks of both branches, before the first interval and after each."""

    online: np.ndarray
    target: np.ndarray


def relation(lam_p: Tensor, lam_z: Tensor) -> Relation:
    """Return the function that maps online to target eigenvalues by interpolating two spectra.

    It interpolates log lam_z over log lam_p, both sorted, and extrapolates with their mean slope.
    Zeros in lam_p, for example after a predictor with a bottleneck, are paired by rank.

    >>> lam = torch.tensor([8.0, 4.0, 2.0])
    >>> relation(lam, lam.sqrt())(torch.tensor([32.0, 3.0]))
    tensor([5.6569, 1.7321], dtype=torch.float64)
    """
    floor, least = (1e-15 * min(float(lam.max()), 1.0) for lam in (lam_p, lam_z))
    x = np.sort(_ranked(np.log(np.maximum(lam_p.double().numpy(), floor))))
    y = np.log(np.maximum(np.sort(lam_z.double().numpy()), least))
    slope = (y[-1] - y[0]) / (x[-1] - x[0]) if x[-1] - x[0] > 1e-6 else 1.0

    def to_target(lam: Tensor) -> Tensor:
        at = _ranked(np.log(np.maximum(lam.double().numpy(), floor)))
        beyond = at - np.clip(at, x[0], x[-1])
        return torch.from_numpy(np.exp(np.interp(at, x, y) + slope * beyond))

    return to_target


def _ranked(values: np.ndarray) -> np.ndarray:
    """Return distinct values; the earlier of two equal values becomes slightly larger."""
    offsets = np.empty_like(values)
    offsets[np.argsort(-values, kind="stable")] = SEPARATION * np.arange(len(values))[::-1]
    return np.asarray(values + offsets)


def follow(
    lam_p: Tensor,
    filters: Sequence[Relation],
    omegas: Sequence[Tensor],
    pulls: Sequence[float],
    step: float = STEP,
) -> Path:
    """Iterate Theorem 4 over intervals, each with a filter and an omega.

    A pull is the sum of an interval's step sizes alpha. In each step the filter maps ``lam_p`` to
    ``lam_z``, ``lam_plus`` is ``omega * lam_z``, and the new ``lam_p`` is sorted and
    rescaled to sum 1, as for l2-normalised outputs. ``filters`` may have one more entry, for the
    target after the last interval. Shapes: ``(k,)`` spectra.

    >>> lam = torch.tensor([0.8, 0.2])
    >>> path = follow(lam, [torch.sqrt], [torch.ones(2)], [0.5])
    >>> path.online.round(3), path.target.round(3)
    (array([1.649, 1.771]), array([1.89 , 1.934]))
    """
    lam_p = unit_sum(lam_p)
    online, target = [rank_of(lam_p)], [rank_of(unit_sum(filters[0](lam_p)))]
    next_filters = [*filters[1:], filters[-1]]
    for to_target, next_filter, omega, pull in zip(filters, next_filters, omegas, pulls):
        steps = max(1, round(pull / step))
        for _ in range(steps):
            lam_z = to_target(lam_p)  # in the order of lam_p's directions
            lam_z = lam_z / lam_z.sum()
            lam_p = unit_sum(updated_eigenvalues(lam_p, lam_z, omega * lam_z, pull / steps))
        online.append(rank_of(lam_p))
        target.append(rank_of(unit_sum(next_filter(lam_p))))
    return Path(np.array(online), np.array(target))


def unit_sum(lam: Tensor) -> Tensor:
    """Return descending eigenvalues, rescaled to sum 1; negative eigenvalues count as 0."""
    lam = lam.double().clamp_min(0).sort(descending=True).values
    return lam / lam.sum()


def rank_of(lam: Tensor) -> float:
    """Return the effective rank as a float."""
    return float(effective_rank(lam))
