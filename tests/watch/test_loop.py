"""A watch over a plain loop: what it measures, writes, warns of and leaves alone."""

import numpy as np
import pytest
import torch
from support.own_models import BYOL, DIM, SimSiam, batches, siamese_step, watched_epoch
from support.small_runs import rows
from torch import nn

from rdm_solo import plots, report, runs
from rdm_solo.ground.errors import UserError
from rdm_solo.report import figures
from rdm_solo.runs import spectra_files
from rdm_solo.spectra import BranchSpectra
from rdm_solo.spectra.features import FeatureSpectra
from rdm_solo.watch import Bounds, Watch


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def collapsed_projector() -> nn.ModuleDict:
    """Return a projector that gives all images the same output."""
    model = nn.ModuleDict({"projector": nn.Linear(DIM, 8)})
    nn.init.zeros_(model["projector"].weight)
    return model


def watch_epochs(folder, epochs: int = 1, model=None, **options) -> Watch:
    """Run some epochs of a loop and return the closed watch."""
    model = model or SimSiam()
    with Watch(folder, model, **options) as watch:
        for _ in range(epochs):
            watched_epoch(watch, model)
    return watch


def test_scalars_are_the_metrics_of_the_outputs_and_go_to_any_logger(folder):
    model = SimSiam()
    metric = BranchSpectra(8, steps=True)
    features = FeatureSpectra(16)
    logged = []
    losses = []
    options = {"backbone": "backbone", "views": 2}
    watch = Watch(folder, model, **options, log=lambda *row: logged.append(row))
    for batch in batches():
        z1, p1 = model(batch[0])
        z2, p2 = model(batch[1])
        p = torch.cat([p1, p2])
        metric.update(p, torch.cat([z1, z2]), torch.cat([z2, z1]))
        features.update([model.backbone(view) for view in batch])
        losses.append(p.detach().mean())
        watch.step(losses[-1])
    row = watch.end_epoch(val_knn_acc1=50)
    expected = metric.compute()
    loss = pytest.approx(float(sum(losses)) / 4, rel=1e-6)
    user_scalars = {"train/loss": loss, "val/knn_acc1": 50.0}
    assert row == {**expected.scalars, **features.compute(), **user_scalars}
    assert rows(folder) == [{"epoch": 1, **row}]
    assert logged == [(row, 1)]
    arrays, _ = spectra_files.read(folder)
    for name, array in expected.arrays().items():
        np.testing.assert_array_equal(arrays[name][0], array)


def test_training_is_unchanged(folder):
    """Compare loss, weights and random numbers, with dropout that draws."""
    results = []
    for is_watched in (True, False):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Dropout(0.1), nn.Linear(DIM, 8))
        if is_watched:
            watch = Watch(folder, {"projector": model})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches():
            loss = model(batch[0]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if is_watched:
                watch.step(loss)
        if is_watched:
            watch.end_epoch()
        results.append((loss.item(), torch.rand(3).tolist(), model[1].weight.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize("length", [None, 8])
def test_a_long_epoch_is_thinned_out_evenly(folder, length):
    """8 steps of 20 rows and room for 80."""
    model = SimSiam()
    recorded = []
    watch = Watch(folder, model, max_rows=80, steps_per_epoch=length)
    for _ in range(2):
        for step, batch in enumerate(batches(8)):
            if watch.recorder.observer.recording:
                recorded.append(step)
            watch.step(siamese_step(model, batch))
        watch.end_epoch()
    first = [0, 2, 4, 6] if length else [0, 1, 2, 3]
    assert recorded == [*first, 0, 2, 4, 6]
    assert runs.load(folder).spectra["rows"].tolist() == [80, 80]


@pytest.mark.parametrize("warmup", [0, Bounds().warmup])
def test_a_collapse_raises_one_warning(folder, caplog, warmup):
    model = collapsed_projector()
    watch = Watch(folder, model, bounds=Bounds(warmup=warmup))
    for epoch in range(1, 7):
        watch.step(model["projector"](batches()[0][0]).mean())
        watch.end_epoch()
        assert watch.collapsed == (["complete collapse"] if epoch >= warmup + 2 else [])
    assert caplog.text.count("complete collapse") == 1
    run = runs.load(folder)
    (warning,) = run.summary["warnings"]
    assert (warning["kind"], warning["epoch"]) == ("complete collapse", warmup + 2)
    assert run.config.scheduler.warmup_epochs == warmup


@pytest.mark.parametrize(
    ("name", "online", "leads", "kinds"),
    [
        ("NNCLR", "predictor", None, []),
        ("SimSiam", "predictor", None, ["negative gap"]),
        ("SimSiam", "student", None, []),
        ("NNCLR", "student", True, ["negative gap"]),
    ],
)
def test_a_negative_gap_counts_where_the_target_should_lead(folder, name, online, leads, kinds):
    model = type(name, (nn.ModuleDict,), {})()
    model[online] = nn.Linear(8, 8, bias=False)
    model["teacher"] = nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        model[online].weight.copy_(torch.eye(8))
        model["teacher"].weight.copy_(torch.diag(torch.arange(1, 9.0) ** -2))
    bounds = Bounds(erank=None, spread=None)
    with Watch(folder, model, online=online, target="teacher", leads=leads, bounds=bounds) as watch:
        for _ in range(3):
            x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
            for part in model.values():
                part(x)
            watch.step()
            watch.end_epoch()
    assert watch.collapsed == [], "a negative gap is no collapse"
    assert [warning["kind"] for warning in watch.alarm.warnings] == kinds
    assert runs.load(folder).description.leads is bool(kinds)


def test_options_that_would_be_ignored_are_refused(folder):
    with pytest.raises(UserError, match="gap_epochs"):
        Watch(folder, collapsed_projector(), bounds=Bounds(gap_epochs=2))
    with pytest.raises(UserError, match="val_acc1"):
        Watch(folder, SimSiam()).end_epoch({"val/ac": 1.0})


def test_the_report_opens_the_folder(folder, monkeypatch):
    watch_epochs(folder, 2, views=2, seed=5)
    run = runs.load(folder)
    assert (run.method, run.label, run.seed, run.epochs) == ("SimSiam", "SimSiam", 5, 2)
    assert not run.missing
    monkeypatch.setattr(figures, "PLOTS", (plots.effective_rank,))  # a second for each figure
    assert "SimSiam" in report.write([folder]).read_text()
    assert (folder / "report" / "effective_rank.png").stat().st_size > 0


@pytest.mark.parametrize("command", ["linear", "export"])
def test_commands_that_need_a_model_refuse_the_folder(folder, typed, command):
    Watch(folder, SimSiam()).close()
    process = typed(f"rdm_solo.{command}", f"run={folder}", cwd=folder.parent)
    assert process.returncode != 0
    assert "was written by rdm_solo.watch" in process.stderr


@pytest.mark.parametrize(
    ("make_model", "momentum", "symmetric"),
    [(BYOL, True, False), (SimSiam, False, False), (collapsed_projector, False, True)],
)
def test_the_folder_describes_the_branches(folder, make_model, momentum, symmetric):
    Watch(folder, make_model(), name="byol").close()
    description = runs.load(folder).description
    assert (description.momentum, description.symmetric) == (momentum, symmetric)
    assert description.loss_minimum is None, "it is not the package's byol"


def test_a_run_is_still_training_until_it_is_closed_or_has_all_epochs(folder):
    model = SimSiam()
    watch = Watch(folder, model, epochs=3)
    watched_epoch(watch, model)
    assert any("watch was not closed" in reason for reason in runs.load(folder).missing)
    watch.close()
    assert runs.load(folder).missing == ("1 of 3 epochs",)
    watch = Watch(folder, model, epochs=3, resume=True)
    watched_epoch(watch, model)
    watched_epoch(watch, model)
    assert runs.load(folder).missing == ()


def test_an_error_in_the_loop_leaves_its_reason_and_the_epochs_before(folder):
    model = SimSiam()
    watch = Watch(folder, model)
    watched_epoch(watch, model)
    with pytest.raises(RuntimeError), watch:
        raise RuntimeError("power cut")
    assert any("power cut" in reason for reason in runs.load(folder).missing)
    for part in model.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    watch_epochs(folder, resume=True)
    assert (runs.load(folder).missing, runs.load(folder).epochs) == ((), 2)
    with pytest.raises(UserError, match="closed"):
        watch.end_epoch()


def test_nan_is_left_out_and_is_divergence(folder, caplog):
    model = SimSiam()
    with Watch(folder, model) as watch:
        watched_epoch(watch, model)
        with torch.no_grad():
            model.projection_head.weight[0, 0] = torch.nan
        row = watched_epoch(watch, model)
    assert set(row) == {"train/loss"}
    assert "NaN or infinite" in caplog.text
    assert "no step" not in caplog.text
    run = runs.load(folder)
    assert (run.epochs, run.diverged) == (1, 2)
    assert run.summary["last"]["train/loss"] is None


def test_a_watch_resumes_after_the_last_epoch_or_an_earlier_one(folder):
    watch_epochs(folder, 2, resume=True)  # the folder is empty
    watch_epochs(folder, 1, resume=True)
    before = rows(folder)
    assert [row["epoch"] for row in before] == [1, 2, 3]
    watch_epochs(folder, 1, resume=1)
    first, second = rows(folder)
    assert first == before[0]
    assert second["epoch"] == 2
    assert runs.load(folder).spectra["epoch"].tolist() == [1, 2]


def test_a_resumed_watch_judges_the_epochs_before(folder):
    model, bounds = SimSiam(), Bounds(warmup=0)
    nn.init.zeros_(model.projection_head.weight)
    first = watch_epochs(folder, 1, model, bounds=bounds)
    assert first.collapsed == [], "one epoch decides nothing"
    second = watch_epochs(folder, 1, model, resume=True, bounds=bounds)
    assert second.collapsed
    third = watch_epochs(folder, 0, model, resume=True, bounds=bounds)
    assert third.collapsed == second.collapsed
    assert repr(third.alarm.epochs) == repr(second.alarm.epochs)  # NaN differs from NaN


@pytest.mark.parametrize("resume", [False, 0])
def test_a_folder_that_holds_a_run_is_kept(folder, resume):
    watch_epochs(folder)
    before = (folder / "metrics.csv").read_bytes()
    with pytest.raises(UserError, match="resume"):
        Watch(folder, SimSiam(), resume=resume)
    assert (folder / "metrics.csv").read_bytes() == before


def test_a_folder_of_train_or_of_an_open_watch_is_refused(folder):
    with Watch(folder, SimSiam()), pytest.raises(UserError):
        Watch(folder, SimSiam())
    (folder / ".hydra" / "config.yaml").write_text("method: {name: simsiam}\n")
    with pytest.raises(UserError):
        Watch(folder, SimSiam(), resume=True)
