"""A watch over a plain loop: what it measures, writes, warns of and leaves alone."""

import numpy as np
import pytest
import torch
from support.own_models import (
    BYOL,
    DIM,
    SimSiam,
    batches,
    collapsed_model,
    siamese_step,
    watched_epoch,
)
from support.small_runs import rows
from torch import nn

from rdm_solo import plots, report, runs
from rdm_solo.ground.errors import UserError
from rdm_solo.report import figures
from rdm_solo.runs import spectra_files
from rdm_solo.spectra import BranchSpectra
from rdm_solo.spectra.features import FeatureSpectra
from rdm_solo.watch import Bounds, Collapsed, Watch


def watch_epochs(folder, epochs=1, model=None, **options):
    """Run some epochs of a loop and return the closed watch."""
    with Watch(folder, model or SimSiam(), **options) as watch:
        for _ in range(epochs):
            watched_epoch(watch, watch.module)
    return watch


def test_scalars_are_the_metrics_of_the_outputs_and_go_to_any_logger(tmp_path):
    model = SimSiam()
    metric = BranchSpectra(8, steps=True)
    features = FeatureSpectra(8)
    logged = []
    losses = []
    options = {"backbone": "projection_head", "views": 2}
    watch = Watch(tmp_path, model, log=lambda *row: logged.append(row), **options)
    for batch in batches():
        z1, p1 = model(batch[0])
        z2, p2 = model(batch[1])
        online = torch.cat([p1, p2])
        metric.update(online, torch.cat([z1, z2]), torch.cat([z2, z1]))
        features.update([z1, z2])
        loss = online.detach().mean()
        losses.append(float(loss))
        watch.step(loss)
    row = watch.end_epoch(val_knn_acc1=50)
    expected = metric.compute()
    user_scalars = {"train/loss": sum(losses) / 4, "val/knn_acc1": 50.0}
    # Equal formulas on equal rows; MKL's bits may depend on where the rows lie in memory.
    scalars = {**expected.scalars, **features.compute(), **user_scalars}
    assert row == pytest.approx(scalars, rel=1e-6)
    assert rows(tmp_path) == [{"epoch": 1, **row}]
    assert logged == [(row, 1)]
    arrays, _ = spectra_files.read(tmp_path)
    for name, array in expected.arrays().items():
        np.testing.assert_allclose(arrays[name][0], array, rtol=1e-6, atol=1e-9)
    assert runs.load(tmp_path).features_dimensions == z1.shape[1]


def test_training_is_unchanged(tmp_path):
    """Compare loss, weights and random numbers, with dropout that draws."""
    results = []
    for is_watched in (True, False):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Dropout(0.1), nn.Linear(DIM, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(model, batch, optimizer=optimizer):
            loss = model(batch[0]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        if is_watched:
            watch = Watch(tmp_path, {"projector": model})
            watched_epoch(watch, model, step)
        else:
            for batch in batches():
                step(model, batch)
        results.append((torch.rand(3).tolist(), model[1].weight.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize("length", [None, 8])
def test_a_long_epoch_is_thinned_out_evenly(tmp_path, length):
    """8 steps of 20 rows and room for 80."""
    model = SimSiam()
    recorded = []
    watch = Watch(tmp_path, model, max_rows=80, steps_per_epoch=length)
    for _ in range(2):
        for step, batch in enumerate(batches(8)):
            if watch.recorder.observer.recording:
                recorded.append(step)
            watch.step(siamese_step(model, batch))
        watch.end_epoch()
    evenly = [0, 2, 4, 6]
    first = evenly if length else [0, 1, 2, 3]
    assert recorded == first + evenly
    assert runs.load(tmp_path).spectra["rows"].tolist() == [80, 80]


@pytest.mark.parametrize("warmup", [0, Bounds().warmup])
def test_a_collapse_raises_one_warning(tmp_path, caplog, warmup):
    watch = watch_epochs(tmp_path, 6, collapsed_model(), bounds=Bounds(warmup=warmup))
    assert watch.collapsed == ["complete collapse"]
    assert caplog.text.count("complete collapse") == 1
    run = runs.load(tmp_path)
    constant, warning = run.summary["warnings"]
    if not warmup:
        constant, warning = warning, constant
    assert (constant["kind"], constant["epoch"]) == ("constant", 3)
    assert (warning["kind"], warning["epoch"]) == ("complete collapse", warmup + 2)
    assert warning["text"].endswith(f" {warning['advice']}")
    assert run.config.scheduler.warmup_epochs == warmup


@pytest.mark.parametrize(
    ("name", "online", "leads", "kinds"),
    [
        ("NNCLR", "predictor", None, []),
        ("SimSiam", "predictor", None, ["negative gap"]),
        ("NNCLR", "student", True, ["negative gap"]),
    ],
)
def test_a_negative_gap_counts_where_the_target_should_lead(tmp_path, name, online, leads, kinds):
    named_class = type(name, (nn.ModuleDict,), {})
    model = named_class({online: nn.Identity(), "teacher": nn.Linear(DIM, DIM, bias=False)})
    weight = torch.diag(torch.arange(1.0, DIM + 1) ** -2)
    model["teacher"].weight = nn.Parameter(weight)

    def step(model, batch):
        for part in model.values():
            part(batch[0])

    bounds = Bounds(erank=None, spread=None)
    options = {"online": online, "target": "teacher", "leads": leads, "bounds": bounds}
    options["checks"] = False  # the predictor is an identity
    with Watch(tmp_path, model, **options) as watch:
        for _ in range(3):
            watched_epoch(watch, model, step)
    assert watch.collapsed == [], "a negative gap is no collapse"
    assert [warning["kind"] for warning in watch.alarm.warnings] == kinds
    assert runs.load(tmp_path).description.leads is bool(kinds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": 2}, "an argument of Watch"),
        ({"views": "2"}, "views must be an integer"),
        ({"bounds": {"spread": 0.1}}, "bounds must be Bounds"),
        ({"seed": "a"}, "seed must be an integer"),
        ({"leads": False, "bounds": Bounds(gap_epochs=2)}, "gap_epochs"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
        ({"max_rows": 0}, "max_rows"),
        ({"online": "predicton_head"}, "did you mean 'prediction_head'"),
        ({"target": "backbone"}, "online="),
        ({"tokens": "row"}, "tokens"),
        ({"model": nn.ModuleDict({"body": nn.Identity()})}, "body"),
        ({"config": {"lr": torch.tensor(0.1)}}, r"config\.lr="),
        ({"config": {"betas": [0.9, np.float64(0.95)]}}, r"config\.betas\[1\]="),
        ({"config": {"root": "${oc.env:HOME}"}}, r"config\.root="),
    ],
)
def test_a_wrong_argument_is_refused_before_a_folder_is_made(options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        Watch(tmp_path / "run", **{"model": SimSiam(), **options})
    assert not (tmp_path / "run").exists()


def test_arguments_in_the_wrong_place_or_of_the_wrong_name_are_explained(tmp_path):
    with pytest.raises(UserError, match="Watch"):
        Watch(SimSiam(), tmp_path)
    with pytest.raises(UserError, match="val_acc1"):
        Watch(tmp_path, SimSiam()).end_epoch(val_ac=1.0)


def test_the_report_opens_the_folder_and_commands_that_need_a_model_refuse_it(
    tmp_path, monkeypatch, typed
):
    watch_epochs(tmp_path, 2, views=2, seed=5)
    run = runs.load(tmp_path)
    assert (run.label, run.seed, run.epochs) == ("SimSiam", 5, 2)
    monkeypatch.setattr(figures, "PLOTS", (plots.effective_rank,))  # a second for each figure
    assert "SimSiam" in report.write([tmp_path]).read_text()
    assert (tmp_path / "report" / "effective_rank.png").stat().st_size > 0
    for command in ("linear", "export"):
        process = typed(f"rdm_solo.{command}", f"run={tmp_path}", cwd=tmp_path)
        assert process.returncode != 0
        assert "rdm_solo.watch" in process.stderr


@pytest.mark.parametrize(
    ("model", "momentum", "symmetric"),
    [
        (BYOL(), True, False),
        (SimSiam(), False, False),
        (nn.ModuleDict({"projector": nn.Identity()}), False, True),
    ],
)
def test_the_folder_describes_the_branches(tmp_path, model, momentum, symmetric):
    Watch(tmp_path, model, name="byol").close()
    description = runs.load(tmp_path).description
    assert (description.momentum, description.symmetric) == (momentum, symmetric)
    assert description.loss_minimum is None, "it is not the package's byol"


def test_a_run_is_still_training_until_it_is_closed_or_has_all_epochs(tmp_path):
    watch = Watch(tmp_path, SimSiam(), epochs=3)
    watched_epoch(watch, watch.module)
    assert "not closed" in str(runs.load(tmp_path).missing)
    watch.close()
    assert runs.load(tmp_path).missing == ("1 of 3 epochs",)
    watch = Watch(tmp_path, SimSiam(), epochs=3, resume=True)
    watched_epoch(watch, watch.module)
    watched_epoch(watch, watch.module)
    assert runs.load(tmp_path).missing == ()


def test_an_error_in_the_loop_leaves_its_reason_and_the_epochs_before(tmp_path):
    model = SimSiam()
    watch = Watch(tmp_path, model)
    watched_epoch(watch, model)
    with pytest.raises(RuntimeError), watch:
        raise RuntimeError("power cut")
    assert "power cut" in str(runs.load(tmp_path).missing)
    for part in model.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    watch_epochs(tmp_path, resume=True)
    run = runs.load(tmp_path)
    assert (run.missing, run.epochs) == ((), 2)
    with pytest.raises(UserError, match="closed"):
        watch.end_epoch()


def test_nan_is_left_out_and_is_divergence(tmp_path, caplog):
    model = SimSiam()
    with Watch(tmp_path, model, stop=True) as watch:
        watched_epoch(watch, model)
        nn.init.constant_(model.projection_head.weight, torch.nan)
        with pytest.raises(Collapsed, match="NaN"):
            watched_epoch(watch, model)
    assert caplog.text.count("warning: ") == 2  # the outputs and the loss
    run = runs.load(tmp_path)
    assert (run.epochs, run.diverged) == (1, 2)
    assert run.summary["last"]["train/loss"] is None
    assert [warning["kind"] for warning in run.summary["warnings"]] == ["NaN loss"]


def test_the_folder_of_another_run_is_refused_and_kept(tmp_path):
    model = SimSiam()
    with Watch(tmp_path, model) as watch:
        watched_epoch(watch, model)
        for options in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(UserError, match="another run"):
                Watch(tmp_path, model, **options)
    before = (tmp_path / "metrics.csv").read_bytes()
    for resume in (False, 0):
        with pytest.raises(UserError, match="overwrite=True"):
            Watch(tmp_path, model, resume=resume)
    (tmp_path / ".hydra" / "config.yaml").write_text("method: {name: simsiam}\n")
    with pytest.raises(UserError, match="train"):
        Watch(tmp_path, model, resume=True)
    assert (tmp_path / "metrics.csv").read_bytes() == before


def test_overwrite_keeps_the_earlier_run_under_another_name(tmp_path):
    folder = tmp_path / "run"
    watch_epochs(folder, 2, overwrite=True)  # there is no folder yet
    watch_epochs(folder, 1, overwrite=True, resume=True)  # resumes, and moves nothing
    assert list(tmp_path.iterdir()) == [folder]
    watch_epochs(folder, 1, overwrite=True)
    (old,) = tmp_path.glob("run.old-*")
    assert (len(rows(old)), len(rows(folder))) == (3, 1)
