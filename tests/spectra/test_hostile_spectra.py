"""Hostile outputs through the measures and the metric, against NumPy in float64."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from support.drills import draws, record_faults, tries
from support.hostile import batch, describe

from rdm_solo.spectra import BranchSpectra, alignment, correlation, effective_rank, rankme

# Of eigenvalues beside the largest; singular values by another routine are exact to this.
ROUNDING = 1e-13


def unit(x: np.ndarray) -> np.ndarray:
    largest = np.abs(x).max(1, keepdims=True)
    x = x / np.where(largest > 0, largest, 1)
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norm > 0, norm, 1)


def erank(x: np.ndarray) -> float:
    lam = np.linalg.svd(x, compute_uv=False) ** 2
    q = lam[lam > 0] / lam.sum() if lam.sum() > 0 else lam[:0]
    return float(np.exp(-(q * np.log(q)).sum())) if len(q) else 0.0


def fault(draw: random.Random) -> str | None:
    """Return what is wrong with the spectra of four hostile outputs, or None."""
    x = batch(draw, largest=draw.choice([4, 16, 40]))
    outputs = [x]
    for optional in (False, True, True):
        other = x if draw.random() < 0.3 else batch(draw, 40, draw.choice([None, x.dtype]))
        rows = torch.arange(len(x)) % len(other)
        other = other[rows][:, torch.arange(x.shape[1]) % other.shape[1]]
        outputs.append(None if optional and draw.random() < 0.3 else other)
    sampled, normalize = draw.random() < 0.5, draw.random() < 0.7
    options = {"max_dim": 1, "sample": draw.choice([1, 8, 64])} if sampled else {}
    metric = BranchSpectra(x.shape[1], normalize=normalize, m=draw.choice([1, 512]), **options)
    for rows in torch.arange(len(x)).split(draw.choice([7, 1000])):
        metric.update(*(part if part is None else part[rows] for part in outputs))
    arrays = [part.detach().double().numpy() for part in outputs if part is not None]
    end = math.inf if normalize else 1e140
    whole = np.all([(np.abs(part) < end).all(1) for part in arrays], axis=0)
    if int(metric.broken) != int((~whole).sum()):
        return f"{int(metric.broken)} broken rows counted, {int((~whole).sum())} there are"
    try:
        spectra = metric.compute()
    except ValueError as error:
        return None if not whole.any() and "no finite row" in str(error) else f"raised {error}"
    if not all(map(math.isfinite, spectra.scalars.values())):
        return f"not finite: {[k for k, v in spectra.scalars.items() if not math.isfinite(v)]}"
    if spectra.rows == whole.sum():
        for name, part in zip(("online", "target"), arrays):
            rows = unit(part[whole]) if normalize else part[whole]
            size = np.abs(rows).max()
            if size and (size < 1e-140 or size > 1e140):
                continue  # their squares are not in float64
            want, got = erank(rows / size if size else rows), spectra.scalars[f"erank/{name}"]
            # An entropy moves by at most about k d log(1/d) where k weights move by d.
            d = ROUNDING * max(x.shape)
            if abs(got - want) > max(x.shape) * d * math.log(1 / d) * max(got, want, 1) + 1e-12:
                return f"erank/{name} is {got}, not {want}"
    C = correlation(x)
    measures = (effective_rank(C), rankme(C), alignment(C, C), alignment(C, torch.eye(len(C))))
    if not all(value.isfinite() == C.isfinite().all() for value in measures):
        return f"a measure is not finite, or is a number where C is not: {measures}"
    if float(effective_rank(C)) > float(rankme(C)) * (1 + 1e-6):
        return f"the effective rank {measures[0]} is above RankMe {measures[1]}"
    return None


@pytest.mark.drill
def test_hostile_outputs_through_the_spectra():
    def attempt(seed):
        words = describe(batch(random.Random(seed), 40))
        return words, lambda: fault(random.Random(seed))

    draw = draws("spectra")
    record_faults("hostile outputs through spectra", draw, tries(80, 4000), attempt)
