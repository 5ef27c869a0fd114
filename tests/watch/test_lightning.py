"""Modules of both Lightning packages under their own Trainers, in one process."""

import importlib
import json
import math
from pathlib import Path

import pytest
import torch
from support.own_models import DIM, SimSiam, batches, siamese_step, watched_epoch
from support.small_methods import batch as solo_batch
from support.small_methods import make
from support.small_runs import SILENT, CutInEpoch, all_rows, rows
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from rdm_solo import runs
from rdm_solo.callbacks import Diagnostics
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import PACKAGES, pl
from rdm_solo.watch import Bounds, Watch, WatchCallback
from rdm_solo.watch.loop import USER_SCALARS


def module(package=pl, dead: bool = False):
    """Return a user's module of that package, which logs a validation accuracy."""

    class Mine(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            for name, part in SimSiam().named_children():
                setattr(self, name, part)
            if dead:
                nn.init.zeros_(self.projection_head.weight)

        forward = SimSiam.forward

        def training_step(self, batch, batch_idx):
            return siamese_step(self, batch)

        def validation_step(self, batch, batch_idx):
            self(batch[0])
            self.log("val/acc1", 50.0)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Mine()


def fit(model, *callbacks, epochs: int = 2, data=None, size=None, package=pl, **options):
    loader = DataLoader(data or batches(), batch_size=size)
    checkpoint = options.pop("ckpt_path", None)
    trainer = package.Trainer(max_epochs=epochs, callbacks=list(callbacks), **SILENT | options)
    validated = loader if data is None and hasattr(model, "projection_head") else None
    trainer.fit(model, loader, validated, ckpt_path=checkpoint)
    return trainer


@pytest.mark.parametrize("name", PACKAGES)
def test_one_callback_measures_writes_and_logs(name, tmp_path):
    """Compare with a plain watch; scalars reach the Trainer's loggers through the module."""
    folder, package = tmp_path / "run", importlib.import_module(name)
    logger = importlib.import_module(f"{name}.loggers").CSVLogger(tmp_path)
    fit(module(package), WatchCallback(folder, views=2), package=package, logger=logger)
    model = SimSiam()
    with Watch(tmp_path / "plain", model, views=2, steps_per_epoch=4) as plain:
        for batch in batches():
            plain.step(siamese_step(model, batch))
        expected = plain.end_epoch(val_acc1=50)
    first, second = rows(folder)
    assert first == {"epoch": 1, **expected}
    table = all_rows(Path(logger.log_dir))
    logged = [row["erank/online"] for row in table if "erank/online" in row]
    assert logged == pytest.approx([first["erank/online"], second["erank/online"]], rel=1e-6)
    run = runs.load(folder)
    assert (run.method, run.config.max_epochs, run.missing) == ("Mine", 2, ())


def test_an_accuracy_of_an_earlier_epoch_is_not_repeated(tmp_path):
    options = {"check_val_every_n_epoch": 2, "num_sanity_val_steps": 2}
    fit(module(), WatchCallback(tmp_path / "run"), epochs=3, **options)
    assert ["val/acc1" in row for row in rows(tmp_path / "run")] == [False, True, False]


@pytest.mark.parametrize(("stop", "epochs"), [(False, 4), (True, 2)])
def test_stop_ends_the_run_at_the_first_collapse(tmp_path, stop, epochs):
    watch = WatchCallback(tmp_path / "run", stop=stop, bounds=Bounds(warmup=0))
    fit(module(dead=True), watch, epochs=4)
    assert len(rows(tmp_path / "run")) == epochs
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped"] == ("stop=True: complete collapse" if stop else None)


def test_a_run_that_resumes_keeps_the_trainers_epochs(tmp_path):
    """Resume in the same folder, in one with fewer epochs, and in an empty one."""
    checkpoint = tmp_path / "three.ckpt"
    fit(module(), WatchCallback(tmp_path / "short"), epochs=1)
    trainer = fit(module(), WatchCallback(tmp_path / "run"), epochs=3)
    trainer.save_checkpoint(checkpoint)
    before = rows(tmp_path / "run")
    with pytest.raises(UserError, match="holds a run"):
        fit(module(), WatchCallback(tmp_path / "run"))
    for name, epochs in (("other", [4]), ("short", [1, 4]), ("run", [1, 2, 3, 4])):
        watch = WatchCallback(tmp_path / name)
        fit(module(), watch, epochs=4, ckpt_path=checkpoint)
        assert [row["epoch"] for row in rows(tmp_path / name)] == epochs
        assert runs.load(tmp_path / name).spectra["epoch"].tolist() == epochs
    assert rows(tmp_path / "run")[:3] == before


@pytest.mark.parametrize(("folder", "epochs"), [("run", [1, 2, 3]), ("other", [2, 3])])
def test_a_run_that_resumes_within_an_epoch_measures_its_rest(tmp_path, folder, epochs):
    class Saves(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if (trainer.current_epoch, batch_idx) == (1, 1):
                trainer.save_checkpoint(tmp_path / "within.ckpt")

    fit(module(), WatchCallback(tmp_path / "run"), Saves())
    watch, checkpoint = WatchCallback(tmp_path / folder), tmp_path / "within.ckpt"
    fit(module(), watch, epochs=3, ckpt_path=checkpoint)
    assert [row["epoch"] for row in rows(tmp_path / folder)] == epochs
    assert all("erank/online" in row for row in rows(tmp_path / folder))


def test_an_error_releases_the_folder(tmp_path):
    with pytest.raises(RuntimeError, match="killed"):
        fit(module(), WatchCallback(tmp_path / "run"), CutInEpoch(2))
    run = runs.load(tmp_path / "run")
    assert run.epochs == 1
    assert any("killed" in reason for reason in run.missing)
    Watch(tmp_path / "run", SimSiam(), resume=True).close()


@pytest.mark.parametrize(("accumulated", "logged"), [(1, True), (2, False)])
def test_the_loss_is_the_mean_of_the_steps(tmp_path, accumulated, logged):
    """Lightning divides it by the number of accumulated batches, and logs the last one's."""
    model = module()
    step = model.training_step

    def training_step(batch, batch_idx):
        loss = 0 * step(batch, batch_idx) + 8 + batch_idx
        if logged:
            model.log("train/loss", loss)
        return loss

    model.training_step = training_step
    options = {"epochs": 1, "accumulate_grad_batches": accumulated}
    fit(model, WatchCallback(tmp_path / "run"), **options)
    assert rows(tmp_path / "run")[0]["train/loss"] == 9.5


class Stream(IterableDataset):
    def __iter__(self):
        return iter(batches(8))


def test_steps_of_data_without_a_length_are_spaced_by_the_epoch_before(tmp_path):
    fit(module(), WatchCallback(tmp_path / "run", max_rows=60), data=Stream())
    first, second = rows(tmp_path / "run")
    # lr=0, so the epochs differ in their steps alone: 0, 1, 2 of the first, 0, 3, 6 of the second.
    assert first["erank/online"] != second["erank/online"]


class Bare(pl.LightningModule):
    """Has no part of a known name; ``returns``: whether training_step returns its outputs."""

    returns = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(DIM, 8)

    def training_step(self, batch, batch_idx):
        z = self.net(batch.transpose(0, 1))  # (N, 2, k)
        return {"loss": z.square().mean(), **({"online": z, "target": z} if self.returns else {})}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.parametrize("options", [{"normalize": False}, {"tokens": "rows"}])
def test_outputs_may_be_returned_from_a_step(tmp_path, monkeypatch, options):
    with pytest.raises(UserError, match=r"no branches were found in Bare.*from training_step"):
        fit(Bare(), WatchCallback(tmp_path / "run"))
    fit(Bare(), WatchCallback(tmp_path / "named", online="net", **options), epochs=1)
    monkeypatch.setattr(Bare, "returns", True)
    fit(Bare(), WatchCallback(tmp_path / "returned", **options), epochs=1)
    assert rows(tmp_path / "returned") == rows(tmp_path / "named")
    fit(Bare(), WatchCallback(tmp_path / "default"), epochs=1)
    assert rows(tmp_path / "returned") != rows(tmp_path / "default")


@pytest.mark.parametrize("method", ["byol", "dino", "deepclusterv2"])
def test_solo_learns_methods_give_the_scalars_of_diagnostics(method, tmp_path):
    """Compare the third epochs of two equal runs, in which two of four steps are recorded.

    DeepCluster v2 has no target in its first epoch, of which nothing is measured.
    """
    _, crops, labels = solo_batch()
    n = len(labels)
    data = [  # images one by one, as DeepCluster v2's memory of all of them needs
        (step * n + i, [view[i].roll(step, 1) for view in crops], labels[i])
        for step in range(4)
        for i in range(n)
    ]
    diagnostics = Diagnostics(tmp_path, max_rows=64)
    watch = WatchCallback(tmp_path / "run", max_rows=64)
    clusters = method == "deepclusterv2"
    options = [f"batch_size={n}", *["method.kwargs.num_prototypes=[5,5]"] * clusters]
    for callback in (watch, diagnostics):
        model = make(f"method={method}", *options)
        trainer = fit(model, callback, epochs=3, data=data, size=n)
    first, _, row = rows(tmp_path / "run")
    assert (first.keys() == {"epoch", "train/loss"}) is clusters
    measured = {k: v for k, v in row.items() if k not in ("epoch", *USER_SCALARS)}
    scalars, k = dict(diagnostics.latest.scalars), len(diagnostics.latest.lam_target)
    if method != "byol":
        share = float(trainer.callback_metrics["train/loss"]) / math.log(k)
        assert diagnostics.scalars["train/loss_share"] == pytest.approx(share, rel=1e-6)
    assert measured == scalars
    with Watch(tmp_path / "run", SimSiam(), resume=True) as resumed:
        assert repr(resumed.alarm.epochs[-1]) == repr(watch.watch.alarm.epochs[-1])
        watched_epoch(resumed, resumed.module)
