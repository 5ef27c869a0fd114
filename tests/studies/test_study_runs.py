"""The runs of the alarms study: their options, what they measure, and the row of each."""

import pytest
import torch
from hydra.utils import instantiate
from support import small_runs

from rdm_solo.train import compose
from studies import images, training
from studies.alarms import outcome, plan
from studies.alarms import runs as alarms
from studies.alarms.page import STUDY as ALARMS


def train_two_epochs(options, folder):
    """Train two epochs of two batches in this process, and return the summary."""
    quick = ["max_epochs=2", "scheduler.warmup_epochs=0", "++trainer.limit_train_batches=2"]
    small_runs.run(folder, *options, *quick, "++trainer.check_val_every_n_epoch=1")
    return small_runs.read_summary(folder)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:lbfgs failed to converge")
def test_a_run_becomes_a_row(monkeypatch):
    monkeypatch.setattr(training, "train", train_two_epochs)
    monkeypatch.setattr(outcome, "MOST_ITERATIONS", 10)
    row = ALARMS.row("test/digits/no batch norm, simsiam/0")
    table = ALARMS.read()
    assert set(table) <= set(row)
    always_measured = table.columns[(table != "").all()]
    assert [name for name in always_measured if not row[name]] == []


def source(options):
    """Return the data set that a run with these options trains on."""
    cfg = compose(options)
    return instantiate(cfg.dataset.source)


def pixels(part) -> set[bytes]:
    return set(map(bytes, part.images.numpy()))


def test_held_out_images_are_in_no_other_part():
    runs = plan.all_runs()
    for name in ("textures", "angles", "digits"):
        run = runs[f"test/{name}/vanilla/0"]
        trained = source(plan.draw(run) + alarms.study_options(run))
        labelled = images.labelled(name, 1920)
        assert torch.equal(trained.train.images, labelled.train.images)
        if name == "digits":  # a few digits occur twice
            assert len(labelled.val) == images.HELD_OUT_DIGITS
        else:
            assert len(labelled.val) == 1920
            known = pixels(trained.train) | pixels(trained.val)
            assert known.isdisjoint(pixels(labelled.val))


def test_the_linear_accuracy_depends_on_what_features_keep():
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    noise = torch.randn(300, 3, generator=rng)
    x = torch.eye(3)[y] + 0.1 * noise
    constant = torch.ones(300, 3)
    assert outcome.linear_accuracy(x, y, x, y) == 100
    assert outcome.linear_accuracy(x, y, x, y.roll(1)) == 0
    assert outcome.linear_accuracy(constant, y, x, y) < 40
