"""Modules of both Lightning packages under their own Trainers, in one process."""

from __future__ import annotations

import csv
import importlib
import json
import math

import pytest
import torch
from support.own_models import DIM, SimSiam, batches, siamese_step
from support.small_methods import batch as solo_batch
from support.small_methods import make
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from rdm_solo import runs
from rdm_solo.callbacks import Diagnostics
from rdm_solo.lightning import PACKAGES, pl
from rdm_solo.watch import Bounds, Watch, WatchCallback
from rdm_solo.watch.loop import OWN

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*num_workers", "ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*litlogger", "ignore:.*LeafSpec", "ignore:.*srun"),
    pytest.mark.filterwarnings("ignore:You are trying to `self.log"),
]


@pytest.fixture(params=PACKAGES)
def package(request):
    return importlib.import_module(request.param)


def module(package, dead: bool = False):
    """Somebody's own module of that package, with validation and accuracies."""

    class Mine(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            for name, part in SimSiam().named_children():
                setattr(self, name, part)
            if dead:
                nn.init.zeros_(self.projection_head.weight)
                self.projection_head.requires_grad_(False)

        forward = SimSiam.forward

        def training_step(self, batch, batch_idx):
            return siamese_step(self, batch)

        def validation_step(self, batch, batch_idx):
            self(batch[0])
            self.log("val/acc1", 50.0)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Mine()


def fit(package, model, callbacks, epochs: int = 2, folder=None, data=None, size=None, **options):
    loader = DataLoader(data or batches(), batch_size=size)
    given = {"logger": False, "enable_checkpointing": False, **options}
    resumed = given.pop("ckpt_path", None)
    trainer = package.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **given,
    )
    validated = data is None and hasattr(model, "validation_step")
    own = {"val_dataloaders": loader} if validated else {}
    trainer.fit(model, loader, **own, ckpt_path=resumed)
    return trainer


def rows(folder) -> list[dict[str, float]]:
    with open(folder / "metrics.csv", newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def test_one_callback_measures_writes_and_logs(package, tmp_path):
    """As the plain watch does; scalars reach the Trainer's loggers through the module's own log."""
    folder = tmp_path / "run"
    csv_logger = importlib.import_module(f"{package.__name__}.loggers").CSVLogger(tmp_path)
    trainer = fit(package, module(package), WatchCallback(folder, views=2), logger=csv_logger)
    model = SimSiam()
    with Watch(tmp_path / "plain", model, views=2, steps_per_epoch=4) as plain:
        for batch in batches():
            plain.step(siamese_step(model, batch))
        want = plain.end_epoch(val_acc1=50)
    found = rows(folder)
    assert [row["epoch"] for row in found] == [1, 2]
    assert {k: v for k, v in found[0].items() if k != "epoch"} == want
    with open(csv_logger.log_dir + "/metrics.csv", newline="") as file:
        logged = [row for row in csv.DictReader(file) if row["erank/online"]]
    assert [float(row["erank/online"]) for row in logged] == pytest.approx(
        [row["erank/online"] for row in found], rel=1e-6
    )
    assert float(trainer.callback_metrics["erank/target"]) == pytest.approx(want["erank/target"])
    run = runs.load(folder)
    assert (run.method, run.config.max_epochs, run.missing) == ("Mine", 2, ())


def test_an_accuracy_of_an_earlier_epoch_is_not_repeated(package, tmp_path):
    fit(
        package,
        module(package),
        [WatchCallback(tmp_path / "run")],
        epochs=3,
        check_val_every_n_epoch=2,
        num_sanity_val_steps=2,
    )
    assert ["val/acc1" in row for row in rows(tmp_path / "run")] == [False, True, False]


def test_stop_ends_the_run(package, tmp_path):
    for stop, epochs in ((False, 4), (True, 2)):
        folder = tmp_path / f"{stop}"
        watch = WatchCallback(folder, stop=stop, bounds=Bounds(warmup=0))
        fit(package, module(package, dead=True), [watch], epochs=4)
        assert len(rows(folder)) == epochs
        summary = json.loads((folder / "summary.json").read_text())
        assert [w["kind"] for w in summary["warnings"]] == ["complete collapse"]
        assert summary["stopped"] == ("stop=True: complete collapse" if stop else None)


def test_a_run_that_goes_on_from_a_checkpoint_goes_on_here(package, tmp_path):
    folder, saved = tmp_path / "run", tmp_path / "one.ckpt"
    trainer = fit(package, module(package), [WatchCallback(folder)], epochs=1)
    trainer.save_checkpoint(saved)
    first = rows(folder)
    with pytest.raises(ValueError, match="holds a run"):
        fit(package, module(package), [WatchCallback(folder)])
    fit(package, module(package), [WatchCallback(folder)], epochs=2, ckpt_path=saved)
    assert [row["epoch"] for row in rows(folder)] == [1, 2]
    assert rows(folder)[0] == first[0]


def test_epochs_are_the_trainers_in_another_or_a_shorter_folder(package, tmp_path):
    saved = tmp_path / "two.ckpt"
    fit(package, module(package), [WatchCallback(tmp_path / "short")], epochs=1)
    trainer = fit(package, module(package), [WatchCallback(tmp_path / "run")], epochs=3)
    trainer.save_checkpoint(saved)
    for name, want in (("another", [4]), ("short", [1, 4]), ("run", [1, 2, 3, 4])):
        fit(package, module(package), [WatchCallback(tmp_path / name)], epochs=4, ckpt_path=saved)
        assert [row["epoch"] for row in rows(tmp_path / name)] == want
        assert runs.load(tmp_path / name).spectra["epoch"].tolist() == want


def test_an_error_gives_the_folder_back(package, tmp_path):
    class Cut(package.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.current_epoch == 1:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fit(package, module(package), [WatchCallback(tmp_path / "run"), Cut()])
    run = runs.load(tmp_path / "run")
    assert run.epochs == 1
    assert any("power cut" in said for said in run.missing)
    Watch(tmp_path / "run", SimSiam(), resume=True).close()


def test_a_module_in_which_nothing_is_found(package, tmp_path):
    class Bare(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Linear(DIM, 8)

        def training_step(self, batch, batch_idx):
            z = self.net(batch.flatten(0, 1))
            named = {"online": z, "target": z} if self.returns else {}
            return {"loss": z.square().mean(), **named}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    Bare.returns = False
    with pytest.raises(ValueError, match=r"no branches were found in Bare.*training_step return"):
        fit(package, Bare(), [WatchCallback(tmp_path / "run")])
    fit(package, Bare(), [WatchCallback(tmp_path / "named", online="net")], epochs=1)
    Bare.returns = True
    fit(package, Bare(), [WatchCallback(tmp_path / "returned")], epochs=1)
    (named,), (returned,) = rows(tmp_path / "named"), rows(tmp_path / "returned")
    assert named == returned


def test_assignments_are_read_back_with_the_epochs(tmp_path):
    folder, module = tmp_path / "run", make("method=swav")
    callback = WatchCallback(folder)
    number, crops, labels = solo_batch()
    fit(pl, module, [callback], data=[(number, crops, labels)] * 2)
    live = callback.watch.alarm.measured
    assert [math.isfinite(epoch.assigned) for epoch in live] == [True, True]
    with Watch(folder, nn.ModuleDict({"projector": nn.Linear(4, 3)}), resume=True) as watch:
        assert repr(watch.folder.measured()) == repr(live)  # NaN equals NaN


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("logged", [False, True])
def test_the_loss_is_the_mean_of_what_the_steps_gave(package, tmp_path, accumulated, logged):
    """Lightning divides it by the number of accumulated batches, and logs the last one's."""
    model = module(package)
    step = model.training_step

    def training_step(batch, batch_idx):
        loss = 0 * step(batch, batch_idx) + 8 + batch_idx
        if logged:
            model.log("train/loss", loss)
        return loss

    model.training_step = training_step
    options = {"epochs": 1, "accumulate_grad_batches": accumulated}
    fit(package, model, [WatchCallback(tmp_path / "run")], **options)
    assert rows(tmp_path / "run")[0]["train/loss"] == 9.5


@pytest.mark.parametrize(
    ("saved_in", "folder", "epochs"),
    [(0, "run", [1, 2, 3]), (1, "run", [1, 2, 3]), (1, "on", [2, 3])],
)
def test_a_run_that_goes_on_within_an_epoch_measures_its_rest(
    package, tmp_path, saved_in, folder, epochs
):
    """Lightning begins no epoch then."""

    class Saves(package.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if (trainer.current_epoch, batch_idx) == (saved_in, 1):
                trainer.save_checkpoint(tmp_path / "within.ckpt")

    fit(package, module(package), [WatchCallback(tmp_path / "run"), Saves()], epochs=2)
    saved = tmp_path / "within.ckpt"
    fit(package, module(package), [WatchCallback(tmp_path / folder)], epochs=3, ckpt_path=saved)
    assert [row["epoch"] for row in rows(tmp_path / folder)] == epochs
    assert all("erank/online" in row for row in rows(tmp_path / folder))


def test_data_without_a_length_are_spaced_by_the_epoch_before(package, tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(batches(8))

    watch = WatchCallback(tmp_path / "run", max_rows=80)
    taken = []
    watched = watch.on_train_batch_end

    def on_train_batch_end(trainer, *given):
        if watch.watch.observer.due:
            taken.append((trainer.current_epoch, given[-1]))
        watched(trainer, *given)

    watch.on_train_batch_end = on_train_batch_end
    fit(package, module(package), [watch], data=Stream())
    assert taken == [*((0, step) for step in range(4)), *((1, step) for step in (0, 2, 4, 6))]


@pytest.mark.parametrize("options", [{"normalize": False}, {"tokens": "mean"}, {"tokens": "rows"}])
def test_what_a_step_returns_is_treated_as_the_outputs_of_parts_are(tmp_path, options):
    class Tokens(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.projector = nn.Linear(DIM, 8)

        def training_step(self, batch, batch_idx):
            z = self.projector(batch.transpose(0, 1))  # (N, 2, k)
            named = {"online": z, "target": z} if self.returns else {}
            return {"loss": z.square().mean(), **named}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    for Tokens.returns in (False, True):
        fit(pl, Tokens(), [WatchCallback(tmp_path / f"{Tokens.returns}", **options)], epochs=1)
    fit(pl, Tokens(), [WatchCallback(tmp_path / "default")], epochs=1)
    (hooked,), (returned,), (default,) = (
        rows(tmp_path / name) for name in ("False", "True", "default")
    )
    assert returned == hooked
    assert (returned == default) is (options == {"tokens": "mean"})


def test_steps_of_too_many_rows_are_let_go_with_a_warning(tmp_path, caplog):
    number, crops, labels = solo_batch()
    callback = WatchCallback(tmp_path / "run", max_rows=2)
    fit(pl, make("method=swav"), [callback], epochs=1, data=[(number, crops, labels)] * 2)
    assert "a step has more than 8 rows" in caplog.text
    (row,) = rows(tmp_path / "run")
    assert "erank/online" not in row


@pytest.mark.parametrize("method", ["simsiam", "byol", "vanilla", "swav", "dino", "deepclusterv2"])
def test_solo_learns_methods_give_the_scalars_of_diagnostics(method, tmp_path):
    """Exactly, in the third epoch of two runs that are alike; of four steps two are taken. In its
    first epoch DeepCluster v2 has no target, and nothing of it is measured."""
    _, crops, labels = solo_batch()
    n = len(labels)
    data = [  # images one by one, as DeepCluster v2's memory of all of them needs
        (step * n + i, [view[i].roll(step, 1) for view in crops], labels[i])
        for step in range(4)
        for i in range(n)
    ]
    diagnostics = Diagnostics(tmp_path, max_rows=64)
    clusters = method == "deepclusterv2"
    options = [f"batch_size={n}", *["method.kwargs.num_prototypes=[5,5]"] * clusters]
    for callback in (diagnostics, WatchCallback(tmp_path / "run", max_rows=64)):
        fit(
            pl,
            make(f"method={method}", *options),
            [callback],
            epochs=3,
            data=data,
            size=n,
        )
    first, _, row = rows(tmp_path / "run")
    assert (first.keys() == {"epoch", "train/loss"}) is clusters
    assert {k: v for k, v in row.items() if k not in ("epoch", *OWN)} == diagnostics.latest.scalars
    assert "erank/positive" in row
