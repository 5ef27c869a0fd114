"""Compare a run's effective ranks with Theorem 4, iterated from its first spectra."""

from dataclasses import dataclass

import numpy as np
import torch

from rdm_solo import theory
from rdm_solo.ground.errors import UserError
from rdm_solo.runs.folder import Run
from rdm_solo.theory.rank_path import STEP, Path, follow, rank_of, relation, unit_sum

MAX_EPOCHS = 40  # longer runs are predicted at this many evenly spaced epochs
STEP_SIZES = np.geomspace(0.05, 6, 13)  # candidates for alpha times the mean interval


@dataclass(frozen=True)
class Prediction:
    """The effective ranks that Theorem 4 predicts from a run's spectra, and the measured ones.

    Two paths start from the first measured spectra: ``every_epoch`` uses each epoch's filter and
    omega, ``first_epoch`` only the first epoch's. ``alpha``, the step size per epoch, is the only
    fitted number. It is fitted to the whole run with ``every_epoch``, and both paths use it.

    ``correct`` counts the intervals between measured epochs in which the theorem, without any fit,
    correctly predicts whether the online rank rises.
    """

    epochs: np.ndarray
    measured: Path
    every_epoch: Path
    first_epoch: Path
    alpha: float
    correct: int

    @property
    def intervals(self) -> int:
        return len(self.epochs) - 1

    @property
    def correct_by_guess(self) -> int:
        """The number of correct intervals if the guess is always the more common direction."""
        rose = int((np.diff(self.measured.online) > 0).sum())
        return max(rose, self.intervals - rose)

    def error(self, online: np.ndarray) -> float:
        """Return the root mean squared error of the logarithm of online ranks."""
        return float(np.sqrt(np.mean(np.log(online / self.measured.online) ** 2)))


def predict(run: Run) -> Prediction:
    """Iterate Theorem 4 from a run's first spectra; raise UserError if it has fewer than three."""
    epochs = run.spectra.get("epoch", np.empty(0))
    if len(epochs) < 3:
        raise UserError(
            f"{run.folder} has {len(epochs)} measured spectra; a prediction needs at least three "
            "(diagnostics.every_n_epochs sets how often they are measured)."
        )
    knots = np.unique(np.linspace(0, len(epochs) - 1, MAX_EPOCHS).round().astype(int))
    lam_p, lam_z, lam_plus = (
        torch.from_numpy(run.spectra[f"lam_{name}"][knots]).double().clamp_min(0)
        for name in ("online", "target", "positive")
    )
    if not all(bool(lam.isfinite().all() and (lam.sum(1) > 0).all()) for lam in (lam_p, lam_z)):
        raise UserError(f"{run.folder} has spectra without a finite value: training diverged.")
    measured = Path(*(np.array([rank_of(lam) for lam in rows]) for rows in (lam_p, lam_z)))
    filters = [relation(unit_sum(p), unit_sum(z)) for p, z in zip(lam_p, lam_z)]
    omegas = [
        theory.ideal_filter(plus, z).nan_to_num(0.0).clamp(0, 1) for plus, z in zip(lam_plus, lam_z)
    ]
    steps = np.diff(epochs[knots])
    alphas = STEP_SIZES / steps.mean()
    paths = [follow(lam_p[0], filters, omegas[:-1], list(alpha * steps)) for alpha in alphas]
    distances = [np.mean(np.log(path.online / measured.online) ** 2) for path in paths]
    best = int(np.argmin(distances))
    n = len(steps)
    # Whether a small step of the theorem raises the online rank.
    rises = [
        rank_of(theory.updated_eigenvalues(p, z, plus, STEP / 2)) > rank_of(p)
        for p, z, plus in zip(lam_p[:-1], lam_z, lam_plus)
    ]
    return Prediction(
        epochs=epochs[knots],
        measured=measured,
        every_epoch=paths[best],
        first_epoch=follow(lam_p[0], filters[:1] * n, omegas[:1] * n, list(alphas[best] * steps)),
        alpha=float(alphas[best]),
        correct=int((np.array(rises) == (np.diff(measured.online) > 0)).sum()),
    )
