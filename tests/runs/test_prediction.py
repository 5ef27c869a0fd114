"""Theorem 4 against runs whose course is known, and against outputs of every kind of design."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from support.written_runs import OMEGA, Epoch, by_the_theorem, erank, write, write_run
from torch import Tensor

from rdm_solo import runs, theory
from rdm_solo.evaluate.figure5 import sinkhorn
from rdm_solo.runs import prediction
from rdm_solo.theory import rank_path


def predicted(folder: Path, epochs: Sequence[Epoch]) -> prediction.Prediction:
    return prediction.predict(runs.load(write(folder, epochs)))


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    pull = float(prediction.STEP_SIZES[5])
    return prediction.predict(runs.load(write_run(tmp_path_factory.mktemp("runs") / "run", pull)))


def test_one_step_is_theorem_4():
    lam_p, lam_z = torch.tensor([0.7, 0.3]).double(), torch.tensor([0.6, 0.4]).double()
    omega = torch.tensor([0.9, 0.5]).double()
    path = rank_path.follow(lam_p, [rank_path.relation(lam_p, lam_z)], [omega], [0.2], step=0.2)
    new = theory.updated_eigenvalues(lam_p, lam_z, omega * lam_z, 0.2)
    np.testing.assert_allclose(path.online, [erank(lam_p), erank(new)])


def test_a_run_that_follows_the_theorem_is_found_out(followed):
    found = followed
    assert found.alpha == pytest.approx(prediction.STEP_SIZES[5])
    assert found.error(found.every_epoch.online) < 1e-3  # interpolation of the filter
    assert found.error(found.first_epoch.online) < 1e-3  # its filter and omega stay
    assert found.error(found.measured.online[:1]) > 0.05
    assert (found.correct, found.intervals, found.correct_by_guess) == (7, 7, 7)
    np.testing.assert_allclose(found.every_epoch.target, found.measured.target, rtol=1e-2)


def test_where_the_filter_changes_the_targets_path_has_each_epochs_own(tmp_path):
    found = predicted(
        tmp_path / "run",
        by_the_theorem(
            float(prediction.STEP_SIZES[5]), filters=lambda epoch: (0.5, 0.8)[epoch % 2]
        ),
    )
    assert np.abs(np.diff(found.measured.target)).min() > 0.5  # it goes up and down
    # Measured: 4e-14, since each epoch's filter is known where it is used.
    np.testing.assert_allclose(found.every_epoch.target, found.measured.target, rtol=1e-10)


def test_the_wrong_way_is_never_right(tmp_path):
    backwards = by_the_theorem(0.3)[::-1]
    found = predicted(tmp_path / "run", backwards)
    assert (found.correct, found.correct_by_guess) == (0, 7)


def test_a_step_at_either_end_of_those_tried_is_chosen(tmp_path):
    slow = predicted(tmp_path / "slow", by_the_theorem(0.3)[::-1])
    # Twice the largest; perfect positives and a weak filter let the rank go on climbing.
    steady = by_the_theorem(12.0, filters=lambda epoch: 0.9, omega=torch.ones_like(OMEGA))
    fast = predicted(tmp_path / "fast", steady)
    assert slow.alpha == pytest.approx(prediction.STEP_SIZES[0])
    assert fast.alpha == pytest.approx(prediction.STEP_SIZES[-1])


def test_a_prediction_needs_spectra(tmp_path):
    short = write_run(tmp_path / "short", pull=0.5, epochs=2)
    with pytest.raises(ValueError, match="has 2 measured spectra"):
        prediction.predict(runs.load(short))


# --------------------------------------------------------------------------------------
# Every path starts at what was measured
# --------------------------------------------------------------------------------------


def spectrum(*views: Tensor) -> Tensor:
    """Eigenvalues of E[x y^T], made symmetric; of E[x x^T] for one view."""
    x, y = views[0].double(), views[-1].double()
    product = x.T @ y / len(x)
    return torch.linalg.eigvalsh((product + product.T) / 2).flip(0).clamp_min(0)


def outputs(design: str, epoch: int) -> Epoch:
    """Spectra of 200 pairs of views' outputs in 24 dimensions, as a method compares them."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(200, 24, generator=rng) * torch.logspace(0, -1 - 0.1 * epoch, 24)
    views = [images + 0.1 * torch.randn(200, 24, generator=rng) for _ in range(2)]
    if design == "swav":  # logits between -1 and 1, as of unit rows and prototypes
        views = [torch.nn.functional.normalize(z, dim=1) for z in views]
        online = [(z / 0.1).softmax(1) for z in views]
        target = [sinkhorn(z, 0.05, 3) for z in views]
    elif design == "dino":
        online = [(z / 0.1).softmax(1) for z in views]
        target = [((z - torch.cat(views).mean(0)) / 0.04).softmax(1) for z in views]
    else:
        narrow = torch.randn(24, 6, generator=rng) @ torch.randn(6, 24, generator=rng)
        predictor = narrow if design == "bottleneck" else torch.eye(24)
        online = [torch.nn.functional.normalize(z @ predictor, dim=1) for z in views]
        target = [torch.nn.functional.normalize(z, dim=1) for z in views]
    return spectrum(torch.cat(online)), spectrum(torch.cat(target)), spectrum(*target)


@pytest.mark.parametrize("design", ["swav", "dino", "bottleneck", "symmetric"])
def test_every_path_starts_where_the_run_does(design, tmp_path):
    epochs = [outputs(design, epoch) for epoch in range(4)]
    first = epochs[0]
    if design in ("swav", "dino"):
        assert first[0].sum() < 0.9  # a softmax's rows are no unit rows
    if design == "bottleneck":
        assert int((first[0] > 1e-9).sum()) == 6
    found = predicted(tmp_path / "run", epochs)
    for name in ("every_epoch", "first_epoch"):
        path = getattr(found, name)
        # Measured: 6e-16; without the order among zeros, 0.05 of the bottleneck's.
        assert path.online[0] == pytest.approx(erank(first[0]), rel=1e-10), name
        assert path.target[0] == pytest.approx(erank(first[1]), rel=1e-10), name


def test_zeros_keep_their_order():
    lam_p = torch.tensor([0.9, 0.1, 0.0, 0.0]).double()
    lam_z = torch.tensor([0.5, 0.3, 0.15, 0.05]).double()
    torch.testing.assert_close(rank_path.relation(lam_p, lam_z)(lam_p), lam_z, rtol=1e-9, atol=0)
