"""Modules of both Lightning packages under their own Trainers, in one process."""

import importlib
from pathlib import Path

import pytest
import torch
from support.own_models import DIM, SimSiam, batches, siamese_step, watched_epoch
from support.small_methods import batch as solo_batch
from support.small_methods import make
from support.small_runs import SILENT, CutInEpoch, all_rows, read_summary, rows
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from rdm_solo import runs
from rdm_solo.callbacks import Diagnostics
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import PACKAGES, pl
from rdm_solo.watch import Bounds, Watch, WatchCallback
from rdm_solo.watch.loop import USER_SCALARS


def make_module(package=pl):
    """Return a user's module of that package, which logs a validation accuracy."""

    class Mine(package.LightningModule):
        def __init__(self):
            super().__init__()
            for name, part in SimSiam().named_children():
                setattr(self, name, part)

        forward = SimSiam.forward

        def training_step(self, batch, batch_idx):
            return siamese_step(self, batch)

        def validation_step(self, batch, batch_idx):
            self(batch[0])
            self.log("val/acc1", 50.0)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Mine()


def fit(model, *callbacks, data=None, batch_size=None, package=pl, ckpt_path=None, **options):
    loader = DataLoader(data or batches(), batch_size=batch_size)
    options = SILENT | {"max_epochs": 2, **options}
    trainer = package.Trainer(callbacks=list(callbacks), **options)
    validation = None if data else loader
    trainer.fit(model, loader, validation, ckpt_path=ckpt_path)


def fit_watched(folder, *callbacks, **options):
    """Fit a user's module, watched in that folder."""
    watch = WatchCallback(folder)
    fit(make_module(), watch, *callbacks, **options)


def epochs_in(folder):
    return [row["epoch"] for row in rows(folder)]


@pytest.mark.parametrize("name", PACKAGES)
def test_one_callback_measures_writes_and_logs(name, tmp_path):
    """Compare with a plain watch; scalars reach the Trainer's loggers through the module."""
    package = importlib.import_module(name)
    logger = importlib.import_module(f"{name}.loggers").CSVLogger(tmp_path)
    callback = WatchCallback(tmp_path, views=2)
    fit(make_module(package), callback, package=package, logger=logger)
    model = SimSiam()
    with Watch(tmp_path / "plain", model, views=2, steps_per_epoch=4) as plain:
        expected = watched_epoch(plain, model)
    first, second = rows(tmp_path)
    assert first == {"epoch": 1, "val/acc1": 50.0, **expected}
    logged = []
    for row in all_rows(Path(logger.log_dir)):
        if "erank/online" in row:
            logged.append(row["erank/online"])
    written = [first["erank/online"], second["erank/online"]]
    assert logged == pytest.approx(written, rel=1e-6)
    run = runs.load(tmp_path)
    assert run.method == "Mine"
    assert run.missing == (), "all epochs of the Trainer"


def test_an_accuracy_of_an_earlier_epoch_is_not_repeated(tmp_path):
    fit_watched(tmp_path, max_epochs=3, check_val_every_n_epoch=2, num_sanity_val_steps=2)
    assert ["val/acc1" in row for row in rows(tmp_path)] == [False, True, False]


def test_stop_ends_the_run_at_the_first_collapse(tmp_path):
    module = make_module()
    nn.init.zeros_(module.projection_head.weight)
    callback = WatchCallback(tmp_path, stop=True, bounds=Bounds(warmup=0))
    fit(module, callback, max_epochs=4)
    assert epochs_in(tmp_path) == [1, 2]
    assert read_summary(tmp_path)["stopped"] == "stop=True: complete collapse"


def test_a_run_that_resumes_within_an_epoch_keeps_the_trainers_epochs(tmp_path):
    """Resume in an empty folder, in one with fewer epochs, and in the run's own."""
    checkpoint = tmp_path / "within.ckpt"

    class SaveInThirdEpoch(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if (trainer.current_epoch, batch_idx) == (2, 1):
                trainer.save_checkpoint(checkpoint)

    fit_watched(tmp_path / "short", max_epochs=1)
    fit_watched(tmp_path / "run", SaveInThirdEpoch(), max_epochs=3)
    before = rows(tmp_path / "run")
    with pytest.raises(UserError, match="resume"):
        fit_watched(tmp_path / "run")
    expected = {"empty": [3, 4], "short": [1, 3, 4], "run": [1, 2, 3, 4]}
    for name, epochs in expected.items():
        folder = tmp_path / name
        fit_watched(folder, max_epochs=4, ckpt_path=checkpoint)
        assert epochs_in(folder) == epochs
        assert runs.load(folder).spectra["epoch"].tolist() == epochs
    assert rows(folder)[:2] == before[:2]


def test_an_error_releases_the_folder(tmp_path):
    with pytest.raises(RuntimeError, match="killed"):
        fit_watched(tmp_path, CutInEpoch(2))
    assert "killed" in str(runs.load(tmp_path).missing)
    Watch(tmp_path, SimSiam(), resume=True).close()
    assert epochs_in(tmp_path) == [1]


@pytest.mark.parametrize(("accumulated", "is_logged"), [(1, True), (2, False)])
def test_the_loss_is_the_mean_of_the_steps(tmp_path, accumulated, is_logged):
    """Lightning divides it by the number of accumulated batches, and logs the last one's."""
    module = make_module()

    def training_step(batch, batch_idx):
        loss = 0 * siamese_step(module, batch) + 8 + batch_idx
        if is_logged:
            module.log("train/loss", loss)
        return loss

    module.training_step = training_step
    callback = WatchCallback(tmp_path)
    fit(module, callback, max_epochs=1, accumulate_grad_batches=accumulated)
    assert rows(tmp_path)[0]["train/loss"] == 9.5


class Bare(pl.LightningModule):
    """A module without a part of a known name, which may return its outputs."""

    def __init__(self, returns_outputs):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(DIM, 8)
        self.returns_outputs = returns_outputs

    def training_step(self, batch, batch_idx):
        z = self.net(batch.transpose(0, 1))  # (N, 2, k)
        loss = z.square().mean()
        if self.returns_outputs:
            return {"loss": loss, "online": z, "target": z}
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Stream(IterableDataset):
    """Data without a length."""

    def __iter__(self):
        return iter(batches(8))


@pytest.mark.parametrize("options", [{"normalize": False}, {"tokens": "rows"}])
def test_outputs_may_be_returned_from_a_step(tmp_path, options):
    def scalars(name, returns_outputs, **options):
        watch = WatchCallback(tmp_path / name, **options)
        fit(Bare(returns_outputs), watch, data=Stream())
        return rows(tmp_path / name)

    with pytest.raises(UserError, match="training_step"):
        scalars("refused", False)
    expected = scalars("named", False, online="net", **options)
    assert scalars("returned", True, **options) == expected
    assert scalars("default", True) != expected


@pytest.mark.parametrize("method", ["byol", "dino", "deepclusterv2"])
def test_solo_learns_methods_give_the_scalars_of_diagnostics(method, tmp_path):
    """Compare the third epochs of two equal runs, in which two of four steps are recorded.

    DeepCluster v2 has no target in its first epoch, of which nothing is measured.
    """
    _, crops, labels = solo_batch()
    n = len(labels)
    data = []  # images one by one, for DeepCluster v2's memory of all of them
    for index in range(4 * n):
        step, i = divmod(index, n)
        views = [view.roll(step, 1)[i] for view in crops]
        data.append((index, views, labels[i]))
    options = [f"method={method}", f"batch_size={n}"]
    if method == "deepclusterv2":
        options.append("method.kwargs.num_prototypes=[5,5]")
    diagnostics = Diagnostics(tmp_path, max_rows=64)
    watch = WatchCallback(tmp_path / "watch", max_rows=64)
    for callback in (watch, diagnostics):
        fit(make(*options), callback, max_epochs=3, data=data, batch_size=n)
    first, _, row = rows(tmp_path / "watch")
    assert (first.keys() == {"epoch", "train/loss"}) is (method == "deepclusterv2")
    expected = diagnostics.latest.scalars
    assert row.keys() - expected.keys() <= {"epoch", "train/loss_share", *USER_SCALARS}
    assert row == row | expected
    with Watch(tmp_path / "watch", SimSiam(), resume=True) as resumed:
        assert repr(resumed.alarm.epochs[-1]) == repr(watch.watch.alarm.epochs[-1])
        watched_epoch(resumed, resumed.module)
