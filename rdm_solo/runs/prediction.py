"""Theorem 4's effective ranks from a run's first spectra, beside the measured ones."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rdm_solo import theory
from rdm_solo.runs.folder import Run
from rdm_solo.theory import theorems
from rdm_solo.theory.rank_path import STEP, Path, _rank, _unit, follow, relation

__all__ = ["Prediction", "predict"]

KNOTS = 40  # epochs that are followed; of more, evenly spaced ones


PULLS = np.geomspace(0.05, 6, 13)  # what is tried for the one free number, per interval


# What it means that the fitted step is at an end of those tried.
ENDS = {
    "smallest": " (the smallest tried: slower ones might fit better, and the path hardly moves)",
    "largest": " (the largest tried: faster ones might fit better)",
}


@dataclass(frozen=True)
class Prediction:
    """What Theorem 4 makes of a run's spectra, beside what was measured at the same epochs.

    ``told`` knows each epoch's filter and omega, ``first`` the first epoch's alone, and ``aligned``
    assumes perfect positives (omega = 1, the theorem's second condition). All start from the first
    measured spectra. ``pull``, alpha summed over an epoch, is the one number that is fitted, for
    ``told`` and to the whole run; the others use it, too. Errors are root mean squares of log
    erank/online.

    ``hits`` counts the intervals, of all ``changes``, in which the online rank goes the way that
    the theorem says, without any fit; ``commoner`` those that a guess of always one way would get.
    """

    label: str
    epochs: np.ndarray  # from 0
    measured: Path
    told: Path
    first: Path
    aligned: Path
    pull: float
    error: float
    error_first: float
    error_unmoved: float
    hits: int
    changes: int
    commoner: int
    at_end: str  # "smallest" or "largest" where the fitted step is that of those tried, or ""

    @property
    def note(self) -> str:
        """The caption's heart, for the picture itself."""
        return (
            "Iterated from the first measured spectra: free features, eigenvectors shared by rank. "
            "One number is fitted, for the told path and to the whole run: alpha per epoch = "
            f"{self.pull:.2g}{ENDS.get(self.at_end, '')}. So the told path explains and foretells "
            "nothing; the first epoch's foretells direction and shape, not pace. Error of log "
            f"erank: told {self.error:.2f}, first epoch alone {self.error_first:.2f}, no change "
            f"{self.error_unmoved:.2f}. Without any fit, the direction is right in {self.hits} of "
            f"{self.changes} intervals (always the commoner one: {self.commoner})."
        )

    @property
    def direction(self) -> str:
        """How often the theorem is right about the way that the rank goes, which needs no fit."""
        return (
            f"With each epoch's own spectra, without any fit, the online rank goes the way that "
            f"the theorem says in {self.hits} of {self.changes} intervals; always the commoner way "
            f"would be right in {self.commoner}."
        )

    @property
    def caption(self) -> str:
        """What the picture shows, and what it is worth."""
        return (
            "Theorem 4, iterated from the first measured spectra: features move freely, the three "
            "matrices share their eigenvectors by rank, the loss is the squared distance, spectra "
            "are rescaled to sum 1. 'told' is given each epoch's filter and omega = λ⁺/λᶻ, so that "
            "it explains and does not foretell; 'first epoch alone' keeps the first epoch's, and "
            "'perfect positives' takes omega = 1 as well. Steps have no unit in epochs: alpha per "
            f"epoch = {self.pull:.2g} is fitted, for the told path, to the online rank of the "
            f"whole run, one number for all paths{ENDS.get(self.at_end, '')}. So the first epoch "
            "foretells the direction and the shape of its path, and not its pace. Error of log "
            f"erank/online: told {self.error:.2f}, first epoch alone {self.error_first:.2f}, no "
            f"change at all {self.error_unmoved:.2f}. {self.direction}"
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
    knots = np.unique(np.linspace(0, len(epochs) - 1, KNOTS).round().astype(int))
    lam_p, lam_z, lam_plus = (
        torch.from_numpy(run.spectra[f"lam_{name}"][knots]).double().clamp_min(0)
        for name in ("online", "target", "positive")
    )
    if not all(bool(lam.isfinite().all() and (lam.sum(1) > 0).all()) for lam in (lam_p, lam_z)):
        raise ValueError(f"{run.folder} has spectra without a finite value: training diverged.")
    epochs, gaps = epochs[knots], np.diff(epochs[knots])
    measured = Path(np.array([_rank(lam) for lam in lam_p]), np.array([_rank(z) for z in lam_z]))
    filters = [relation(_unit(p), _unit(z)) for p, z in zip(lam_p, lam_z)]
    omegas = [
        theorems.ideal_filter(plus, z).nan_to_num(0.0).clamp(0, 1)
        for plus, z in zip(lam_plus, lam_z)
    ]
    n = len(gaps)

    def told(pull: float) -> Path:
        return follow(lam_p[0], filters, omegas[:n], list(pull * gaps))

    pulls = PULLS / gaps.mean()
    paths = [told(pull) for pull in pulls]
    best = int(np.argmin([_error(path, measured) for path in paths]))
    pull, forward = pulls[best], list(pulls[best] * gaps)
    first = follow(lam_p[0], [filters[0]] * n, [omegas[0]] * n, forward)
    aligned = follow(lam_p[0], [filters[0]] * n, [torch.ones_like(omegas[0])] * n, forward)
    unmoved = Path(np.full(n + 1, measured.online[0]), measured.target)
    rose = [bool(change > 0) for change in np.diff(measured.online)]
    said = [_rises(*lams) for lams in zip(lam_p, lam_z, lam_plus)]
    return Prediction(
        label=run.label,
        epochs=epochs,
        measured=measured,
        told=paths[best],
        first=first,
        aligned=aligned,
        pull=float(pull),
        error=_error(paths[best], measured),
        error_first=_error(first, measured),
        error_unmoved=_error(unmoved, measured),
        hits=sum(map(operator.eq, said, rose)),
        changes=n,
        commoner=max(sum(rose), n - sum(rose)),
        at_end={0: "smallest", len(pulls) - 1: "largest"}.get(best, ""),
    )


def _rises(lam_p: Tensor, lam_z: Tensor, lam_plus: Tensor) -> bool:
    """Whether a small step raises the online rank."""
    new = theory.updated_eigenvalues(lam_p, lam_z, lam_plus, STEP / 2)
    return _rank(new) > _rank(lam_p)


def _error(path: Path, measured: Path) -> float:
    return float(np.sqrt(np.mean(np.log(path.online / measured.online) ** 2)))
