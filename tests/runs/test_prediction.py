"""Theorem 4 against runs whose course is known."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from support.written_runs import OMEGA, Epoch, by_the_theorem, erank, write, write_run
from torch import Tensor

from rdm_solo import runs, theory
from rdm_solo.runs import prediction
from rdm_solo.theory import rank_path


def predicted(folder: Path, epochs: Sequence[Epoch]) -> prediction.Prediction:
    return prediction.predict(runs.load(write(folder, epochs)))


def test_one_step_is_theorem_4():
    lam_p, lam_z = torch.tensor([0.7, 0.3]).double(), torch.tensor([0.6, 0.4]).double()
    omega = torch.tensor([0.9, 0.5]).double()
    path = rank_path.follow(lam_p, [rank_path.relation(lam_p, lam_z)], [omega], [0.2], step=0.2)
    new = theory.updated_eigenvalues(lam_p, lam_z, omega * lam_z, 0.2)
    np.testing.assert_allclose(path.online, [erank(lam_p), erank(new)])


def test_a_run_that_follows_the_theorem_is_predicted(tmp_path):
    pull = float(prediction.STEP_SIZES[5])
    result = predicted(tmp_path / "run", by_the_theorem(pull))
    assert result.alpha == pytest.approx(pull)
    assert result.error(result.every_epoch.online) < 1e-3  # interpolation of the filter
    assert result.error(result.first_epoch.online) < 1e-3  # its filter and omega stay
    assert result.error(result.measured.online[:1]) > 0.05
    assert (result.correct, result.intervals, result.correct_by_guess) == (7, 7, 7)
    np.testing.assert_allclose(result.every_epoch.target, result.measured.target, rtol=1e-2)


def test_where_the_filter_changes_the_targets_path_has_each_epochs_own(tmp_path):
    pull = float(prediction.STEP_SIZES[5])
    epochs = by_the_theorem(pull, filters=lambda epoch: (0.5, 0.8)[epoch % 2])
    result = predicted(tmp_path / "run", epochs)
    assert np.abs(np.diff(result.measured.target)).min() > 0.5  # it goes up and down
    # Measured: 4e-14, since each epoch's filter is known where it is used.
    np.testing.assert_allclose(result.every_epoch.target, result.measured.target, rtol=1e-10)


def test_a_step_at_either_end_of_those_tried_is_chosen(tmp_path):
    slow = predicted(tmp_path / "slow", by_the_theorem(0.3)[::-1])
    assert (slow.correct, slow.correct_by_guess) == (0, 7), "the wrong way is never right"
    # Twice the largest; perfect positives and a weak filter let the rank go on climbing.
    steady = by_the_theorem(12.0, filters=lambda epoch: 0.9, omega=torch.ones_like(OMEGA))
    fast = predicted(tmp_path / "fast", steady)
    assert slow.alpha == pytest.approx(prediction.STEP_SIZES[0])
    assert fast.alpha == pytest.approx(prediction.STEP_SIZES[-1])


def test_a_prediction_needs_spectra(tmp_path):
    short = write_run(tmp_path / "short", pull=0.5, epochs=2)
    with pytest.raises(ValueError, match="has 2 measured spectra"):
        prediction.predict(runs.load(short))


def spectrum(rng: torch.Generator, total: float = 1.0, directions: int = 16) -> Tensor:
    lam = torch.rand(16, generator=rng, dtype=torch.float64).sort(descending=True).values
    lam[directions:] = 0
    return total * lam / lam.sum()


@pytest.mark.parametrize(
    ("online", "target"),
    [((1.0, 16), 1.0), ((0.5, 16), 0.8), ((1.0, 6), 1.0)],
    ids=["unit rows", "rows of a softmax", "bottleneck"],
)
def test_every_path_starts_where_the_run_does(online, target, tmp_path):
    rng = torch.Generator().manual_seed(0)
    epochs = []
    for _ in range(4):
        lam_z = spectrum(rng, target)
        epochs.append((spectrum(rng, *online), lam_z, 0.9 * lam_z))
    result = predicted(tmp_path / "run", epochs)
    for path in (result.every_epoch, result.first_epoch):
        # Measured: 6e-16.
        assert path.online[0] == pytest.approx(erank(epochs[0][0]), rel=1e-10)
        assert path.target[0] == pytest.approx(erank(epochs[0][1]), rel=1e-10)
