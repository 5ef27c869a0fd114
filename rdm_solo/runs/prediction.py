"""Theorem 4's effective ranks from a run's first spectra, beside the measured ones."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rdm_solo import theory
from rdm_solo.runs.folder import Run
from rdm_solo.theory.rank_path import STEP, Path, follow, rank_of, relation, unit_sum

__all__ = ["Prediction", "predict"]

MOST_EPOCHS = 40  # that are followed; of more, evenly spaced ones
STEP_SIZES = np.geomspace(0.05, 6, 13)  # that are tried, alpha summed over one interval

# What a fitted step size at an end of those tried means.
AT_END = {
    "smallest": " (the smallest tried: slower ones might fit better, and the path hardly moves)",
    "largest": " (the largest tried: faster ones might fit better)",
}


@dataclass(frozen=True)
class Prediction:
    """The ranks that Theorem 4 predicts from a run's spectra, beside the measured ones.

    Three paths start from the first measured spectra: ``every_epoch`` uses each epoch's filter and
    omega, ``first_epoch`` only the first epoch's, and ``perfect_positives`` the first epoch's
    filter with omega = 1 (the theorem's second condition). ``alpha``, summed over an epoch, is the
    only number that is fitted, for ``every_epoch`` over the whole run; the others use it as well.
    Errors are root mean squares of log erank/online.

    ``right`` counts the ``intervals`` in which the online rank goes in the direction that the
    theorem predicts, without any fit; ``right_by_guess`` those that a guess of always the more
    common direction gets right.
    """

    label: str
    epochs: np.ndarray
    measured: Path
    every_epoch: Path
    first_epoch: Path
    perfect_positives: Path
    alpha: float
    error: float  # of every_epoch
    error_first_epoch: float
    error_no_change: float
    right: int
    intervals: int
    right_by_guess: int
    at_end: str  # "smallest" or "largest" where no smaller or larger step size was tried, or ""

    @property
    def direction(self) -> str:
        """How often the theorem is right about the direction of the rank, which needs no fit."""
        return (
            "Without any fit, the theorem predicts from each epoch's own spectra whether the "
            f"online rank rises or falls: right in {self.right} of {self.intervals} intervals "
            f"(a guess of always the more common direction: {self.right_by_guess})."
        )

    @property
    def note(self) -> str:
        """What the picture shows, how it was computed, and how far it can be trusted."""
        return (
            "Theorem 4, iterated from the first measured spectra: features move freely, "
            "eigenvectors are paired by rank, spectra are rescaled to sum 1. One number, alpha per "
            f"epoch = {self.alpha:.2g}{AT_END.get(self.at_end, '')}, is fitted to the online rank "
            "of the whole run, for the path with every epoch's filter and ω = λ⁺/λᶻ, and used for "
            "all paths. So that path is a fit, not a forecast; the path with the first epoch's "
            "predicts direction and shape, not the pace. Error of log erank: every epoch's "
            f"{self.error:.2f}, first epoch's {self.error_first_epoch:.2f}, no change "
            f"{self.error_no_change:.2f}. {self.direction}"
        )


def predict(run: Run) -> Prediction:
    """Theorem 4 from a run's first measured spectrum, beside what was measured.

    ValueError where the run has fewer than three measured epochs.
    """
    epochs = run.spectra.get("epoch", np.empty(0))
    if len(epochs) < 3:
        raise ValueError(
            f"{run.folder} has {len(epochs)} measured spectra; a prediction needs three at least "
            "(diagnostics.every_n_epochs sets how often they are measured)."
        )
    knots = np.unique(np.linspace(0, len(epochs) - 1, MOST_EPOCHS).round().astype(int))
    lam_p, lam_z, lam_plus = (
        torch.from_numpy(run.spectra[f"lam_{name}"][knots]).double().clamp_min(0)
        for name in ("online", "target", "positive")
    )
    if not all(bool(lam.isfinite().all() and (lam.sum(1) > 0).all()) for lam in (lam_p, lam_z)):
        raise ValueError(f"{run.folder} has spectra without a finite value: training diverged.")
    epochs, gaps = epochs[knots], np.diff(epochs[knots])
    online, target = (np.array([rank_of(lam) for lam in rows]) for rows in (lam_p, lam_z))
    measured = Path(online, target)
    filters = [relation(unit_sum(p), unit_sum(z)) for p, z in zip(lam_p, lam_z)]
    omegas = [
        theory.ideal_filter(plus, z).nan_to_num(0.0).clamp(0, 1) for plus, z in zip(lam_plus, lam_z)
    ]
    n = len(gaps)

    def with_every_epoch(alpha: float) -> Path:
        return follow(lam_p[0], filters, omegas[:n], list(alpha * gaps))

    alphas = STEP_SIZES / gaps.mean()
    paths = [with_every_epoch(alpha) for alpha in alphas]
    best = int(np.argmin([_error(path, measured) for path in paths]))
    steps = list(alphas[best] * gaps)
    first_epoch = follow(lam_p[0], [filters[0]] * n, [omegas[0]] * n, steps)
    ones = [torch.ones_like(omegas[0])] * n
    perfect_positives = follow(lam_p[0], [filters[0]] * n, ones, steps)
    unmoved = Path(np.full(n + 1, measured.online[0]), measured.target)
    rose = [bool(change > 0) for change in np.diff(measured.online)]
    predicted = [_rises(*lams) for lams in zip(lam_p, lam_z, lam_plus)]
    return Prediction(
        label=run.label,
        epochs=epochs,
        measured=measured,
        every_epoch=paths[best],
        first_epoch=first_epoch,
        perfect_positives=perfect_positives,
        alpha=float(alphas[best]),
        error=_error(paths[best], measured),
        error_first_epoch=_error(first_epoch, measured),
        error_no_change=_error(unmoved, measured),
        right=sum(map(operator.eq, predicted, rose)),
        intervals=n,
        right_by_guess=max(sum(rose), n - sum(rose)),
        at_end={0: "smallest", len(alphas) - 1: "largest"}.get(best, ""),
    )


def _rises(lam_p: Tensor, lam_z: Tensor, lam_plus: Tensor) -> bool:
    """Whether a small step raises the online rank."""
    new = theory.updated_eigenvalues(lam_p, lam_z, lam_plus, STEP / 2)
    return rank_of(new) > rank_of(lam_p)


def _error(path: Path, measured: Path) -> float:
    return float(np.sqrt(np.mean(np.log(path.online / measured.online) ** 2)))
