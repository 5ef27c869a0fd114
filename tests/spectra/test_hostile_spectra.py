"""Hostile outputs through the measures and the metric, against NumPy in float64."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from support.drills import draws, record_faults, tries
from support.hostile import batch, describe

from rdm_solo.spectra import (
    BranchSpectra,
    alignment,
    correlation,
    effective_rank,
    filter_curve,
    rankme,
)

# Of eigenvalues beside the largest; singular values by another routine are exact to this.
ROUNDING = 1e-13


def unit(x: np.ndarray) -> np.ndarray:
    largest = np.abs(x).max(1, keepdims=True)
    x = x / np.where(largest > 0, largest, 1)
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norm > 0, norm, 1)


def erank(x: np.ndarray) -> float:
    lam = np.linalg.svd(x, compute_uv=False) ** 2
    if not lam.sum() > 0:
        return 0.0
    q = lam / lam.sum()
    q = q[q > 0]
    return float(np.exp(-(q * np.log(q)).sum()))


def near(a: float, b: float, dimensions: int) -> bool:
    """An entropy moves by at most about k d log(1/d) where k weights move by d."""
    d = ROUNDING * dimensions
    return abs(a - b) <= dimensions * d * math.log(1 / d) * max(a, b, 1) + 1e-12


def fault(draw: random.Random) -> str | None:
    """What is wrong with the spectra of four hostile outputs, or None."""
    x = batch(draw, largest=draw.choice([4, 16, 40]))
    others = []
    for _ in range(3):
        other = x if draw.random() < 0.3 else batch(draw, 40, draw.choice([None, x.dtype]))
        rows = torch.arange(len(x)) % len(other)
        columns = torch.arange(x.shape[1]) % other.shape[1]
        others.append(other[rows][:, columns])
    parts = [x, *others]
    sampled, normalize = draw.random() < 0.5, draw.random() < 0.7
    options = {"max_dim": 1, "sample": draw.choice([1, 8, 64])} if sampled else {}
    metric = BranchSpectra(x.shape[1], normalize=normalize, m=draw.choice([1, 512]), **options)
    given = [parts[0], parts[1], *(part if draw.random() < 0.7 else None for part in parts[2:])]
    for rows in torch.arange(len(x)).split(draw.choice([7, 1000])):
        metric.update(*(part if part is None else part[rows] for part in given))
    used = [part.detach().double().numpy() for part in given if part is not None]
    end = math.inf if normalize else 1e140
    whole = np.all([(np.abs(part) < end).all(1) for part in used], axis=0)
    if int(metric.broken) != int((~whole).sum()):
        return f"{int(metric.broken)} broken rows counted, {int((~whole).sum())} there are"
    try:
        found = metric.compute()
    except ValueError as error:
        return None if not whole.any() and "no finite row" in str(error) else f"raised {error}"
    if not all(map(math.isfinite, found.scalars.values())):
        return f"not finite: {[k for k, v in found.scalars.items() if not math.isfinite(v)]}"
    for name in ("lam_online", "lam_target", "lam_projection"):
        if not getattr(found, name).isfinite().all():
            return f"{name} is not finite"
    if found.rows == whole.sum():
        p, z = (unit(part[whole]) if normalize else part[whole] for part in used[:2])
        for name, rows in (("online", p), ("target", z)):
            size = np.abs(rows).max()
            if size and (size < 1e-140 or size > 1e140):
                continue  # their squares are not in float64
            want = erank(rows / size if size else rows)
            if not near(found.scalars[f"erank/{name}"], want, max(x.shape)):
                return f"erank/{name} is {found.scalars[f'erank/{name}']}, not {want}"
    # The functions by themselves, on the first output as it is.
    C = correlation(x)
    measured = (effective_rank(C), rankme(C), alignment(C, C), alignment(C, torch.eye(len(C))))
    if not C.isfinite().all():
        return None if all(value.isnan() for value in measured) else "a measure of NaN is a number"
    if not all(value.isfinite() for value in measured):
        return f"a measure is not finite: {measured}"
    largest = len(C) * math.exp(1e-7 * len(C) * math.log(len(C)))  # RankMe's epsilon adds to k
    if not 0 <= float(effective_rank(C)) <= float(rankme(C)) * (1 + 1e-6) <= largest * (1 + 2e-6):
        return f"effective rank {measured[0]}, RankMe {measured[1]}, k {len(C)}"
    lam = torch.linalg.eigvalsh(C).flip(0).clamp_min(0)
    curve = filter_curve(lam.flip(0), lam)
    if not (curve.isfinite() | curve.isnan()).all():
        return "a curve is infinite"
    return None


@pytest.mark.drill
def test_hostile_outputs_through_the_spectra():
    def attempt(seed):
        words = describe(batch(random.Random(seed), 40))
        return words, lambda: fault(random.Random(seed))

    draw = draws("spectra")
    record_faults("hostile outputs through spectra", draw, tries(80, 4000), attempt)
