"""A watch over a plain loop: what it measures, writes, warns of and leaves alone."""

import numpy as np
import pytest
import torch
from support.own_models import BYOL, DIM, SimSiam, batches, watched_epoch
from support.small_runs import rows
from torch import nn

from rdm_solo import plots, report, runs
from rdm_solo.ground.errors import UserError
from rdm_solo.report import figures
from rdm_solo.runs import spectra_files
from rdm_solo.spectra import BranchSpectra
from rdm_solo.spectra.features import FeatureSpectra
from rdm_solo.watch import Bounds, Watch


def projector() -> dict[str, nn.Module]:
    """Return a projector that gives all images the same output."""
    model = {"projector": nn.Linear(DIM, 8)}
    nn.init.zeros_(model["projector"].weight)
    return model


def watched(folder, epochs: int = 1, model=None, resume=False, **options) -> Watch:
    model = model or SimSiam()
    with Watch(folder, model, resume=resume, **options) as watch:
        for _ in range(epochs):
            watched_epoch(watch, model)
    return watch


class TestNumbers:
    def test_they_are_the_metrics_of_the_outputs_and_go_to_any_logger(self, tmp_path):
        model, losses, logged = SimSiam(), [], []
        metric, features = BranchSpectra(8, steps=True), FeatureSpectra(16)
        options = {"backbone": "backbone", "views": 2, "log": lambda *row: logged.append(row)}
        watch = Watch(tmp_path / "run", model, **options)
        for batch in batches():
            pairs = [model(view) for view in batch]
            z, p = (torch.cat(x) for x in zip(*pairs))
            losses.append(float(p.detach().mean()))
            features.update([model.backbone(view) for view in batch])
            metric.update(online=p, target=z, positive=torch.cat([pairs[1][0], pairs[0][0]]))
            watch.step(p.mean())
        row = watch.end_epoch(val_knn_acc1=50)
        measured = metric.compute()
        assert row == {
            **measured.scalars,
            **features.compute(),
            "train/loss": pytest.approx(sum(losses) / 4, rel=1e-6),
            "val/knn_acc1": 50.0,
        }
        assert rows(tmp_path / "run") == [{"epoch": 1, **row}]
        assert logged == [(row, 1)]
        spectra, _ = spectra_files.read(tmp_path / "run")
        for name, array in measured.arrays().items():
            np.testing.assert_array_equal(spectra[name][0], array)

    def test_training_is_unchanged(self, tmp_path):
        """Compare loss, weights and random numbers, with dropout that draws."""
        results = []
        for is_watched in (True, False):
            torch.manual_seed(3)
            model = nn.Sequential(nn.Dropout(0.1), nn.Linear(DIM, 8))
            watch = Watch(tmp_path / "run", {"projector": model}) if is_watched else None
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in batches():
                loss = model(batch[0]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if watch:
                    watch.step(loss)
            if watch:
                watch.end_epoch()
            results.append((loss.item(), torch.rand(3).tolist(), model[1].weight.tolist()))
        assert results[0] == results[1]

    def test_scalars_of_other_names_are_refused(self, tmp_path):
        with pytest.raises(UserError, match="did you mean 'val_acc1'"):
            Watch(tmp_path / "run", SimSiam()).end_epoch({"val/ac": 1.0})

    @pytest.mark.parametrize("length", [None, 8])
    def test_a_long_epoch_is_thinned_out_evenly(self, tmp_path, length):
        """8 steps of 20 rows and room for 80."""
        model, recorded = SimSiam(), []
        watch = Watch(tmp_path / "run", model, max_rows=80, steps_per_epoch=length)
        for _ in range(2):
            for step, batch in enumerate(batches(8)):
                recorded += [step] if watch.recorder.observer.recording else []
                for view in batch:
                    model(view)
                watch.step()
            watch.end_epoch()
        assert recorded[:4] == ([0, 2, 4, 6] if length else [0, 1, 2, 3])
        assert recorded[4:] == [0, 2, 4, 6]
        assert spectra_files.read(tmp_path / "run")[0]["rows"].tolist() == [80, 80]


class TestWarnings:
    @pytest.mark.parametrize("warmup", [0, Bounds().warmup])
    def test_a_collapse_raises_one_warning(self, tmp_path, caplog, warmup):
        model = projector()
        watch = Watch(tmp_path / "run", model, bounds=Bounds(warmup=warmup))
        for epoch in range(1, 7):
            watch.step(model["projector"](batches()[0][0]).mean())
            watch.end_epoch()
            assert watch.collapsed == (["complete collapse"] if epoch >= warmup + 2 else [])
        (message,) = [m for m in caplog.messages if "complete collapse" in m]
        assert "bounds=Bounds(spread=" in message
        (warning,) = runs.load(tmp_path / "run").summary["warnings"]
        assert (warning["kind"], warning["epoch"]) == ("complete collapse", warmup + 2)
        assert runs.load(tmp_path / "run").config.scheduler.warmup_epochs == warmup

    @pytest.mark.parametrize(
        ("kind", "online", "leads", "warns"),
        [
            ("NNCLR", "predictor", None, False),
            ("SimSiam", "predictor", None, True),
            ("SimSiam", "student", None, False),
            ("NNCLR", "student", True, True),
        ],
    )
    def test_a_negative_gap_counts_where_the_target_should_lead(
        self, tmp_path, kind, online, leads, warns
    ):
        model = type(kind, (nn.ModuleDict,), {})(
            {name: nn.Linear(8, 8, bias=False) for name in (online, "teacher")}
        )
        with torch.no_grad():
            model[online].weight.copy_(torch.eye(8))
            model["teacher"].weight.copy_(torch.diag(torch.arange(1, 9.0) ** -2))
        bounds = Bounds(erank=None, spread=None)
        options = {"online": online, "target": "teacher", "leads": leads, "bounds": bounds}
        with Watch(tmp_path / "run", model, **options) as watch:
            for _ in range(3):
                x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
                for part in model.values():
                    part(x)
                watch.step()
                watch.end_epoch()
        assert watch.collapsed == [], "a negative gap is no collapse"
        kinds = [warning["kind"] for warning in watch.alarm.warnings]
        assert kinds == ["negative gap"] * warns
        assert runs.load(tmp_path / "run").description.leads is warns

    def test_a_bound_that_would_be_ignored_is_refused(self, tmp_path):
        with pytest.raises(UserError, match="gap_epochs=2 needs leads=True"):
            Watch(tmp_path / "run", projector(), bounds=Bounds(gap_epochs=2))


class TestFolder:
    def test_the_report_opens_it(self, tmp_path, monkeypatch):
        watched(tmp_path / "run", 2, views=2, seed=5)
        run = runs.load(tmp_path / "run")
        assert (run.method, run.label, run.seed, run.epochs) == ("SimSiam", "SimSiam", 5, 2)
        assert not run.missing
        monkeypatch.setattr(figures, "PLOTS", (plots.effective_rank,))  # a second for each figure
        assert "SimSiam" in report.write([tmp_path / "run"]).read_text()
        assert (tmp_path / "run" / "report" / "effective_rank.png").stat().st_size > 0

    def test_commands_that_need_a_model_refuse_it(self, tmp_path, typed):
        Watch(tmp_path / "run", SimSiam()).close()
        for command in ("linear", "export"):
            done = typed(f"rdm_solo.{command}", f"run={tmp_path / 'run'}", cwd=tmp_path)
            assert done.returncode != 0
            assert "was written by rdm_solo.watch" in done.stderr

    @pytest.mark.parametrize(
        ("model", "momentum", "symmetric"),
        [(BYOL, True, False), (SimSiam, False, False), (projector, False, True)],
    )
    def test_it_records_what_the_branches_are(self, tmp_path, model, momentum, symmetric):
        Watch(tmp_path / "run", model(), name="byol").close()
        description = runs.load(tmp_path / "run").description
        assert (description.momentum, description.symmetric) == (momentum, symmetric)
        assert description.loss_minimum is None, "it is not the package's byol"

    def test_a_run_that_is_not_closed_is_still_training_until_all_epochs_are_there(self, tmp_path):
        folder, model = tmp_path / "run", SimSiam()
        watch = Watch(folder, model, epochs=3)
        watched_epoch(watch, model)
        assert any("watch was not closed" in reason for reason in runs.load(folder).missing)
        watch.close()
        assert runs.load(folder).missing == ("1 of 3 epochs",)
        watch = Watch(folder, model, epochs=3, resume=True)
        for _ in range(2):
            watched_epoch(watch, model)
        assert runs.load(folder).missing == ()

    def test_an_error_in_the_loop_leaves_its_reason_and_the_epochs_before(self, tmp_path):
        folder, model = tmp_path / "run", SimSiam()
        watch = Watch(folder, model)
        watched_epoch(watch, model)
        with pytest.raises(RuntimeError, match="power cut"), watch:
            raise RuntimeError("power cut")
        assert any("power cut" in reason for reason in runs.load(folder).missing)
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
        watched(folder, resume=True)
        assert (runs.load(folder).missing, runs.load(folder).epochs) == ((), 2)
        with pytest.raises(UserError, match="is closed"):
            watch.end_epoch()

    def test_nan_is_left_out_and_is_divergence(self, tmp_path, caplog):
        model = SimSiam()
        with Watch(tmp_path / "run", model) as watch:
            watched_epoch(watch, model)
            with torch.no_grad():
                model.projection_head.weight[0, 0] = torch.nan
            row = watched_epoch(watch, model)
        assert set(row) == {"train/loss"}
        assert "NaN or infinite" in caplog.text
        run = runs.load(tmp_path / "run")
        assert (run.epochs, run.diverged) == (1, 2)
        assert run.summary["last"]["train/loss"] is None


class TestResuming:
    def test_after_the_last_epoch_or_an_earlier_one(self, tmp_path):
        folder = tmp_path / "run"
        watched(folder, 2, resume=True)  # nothing is there yet
        watched(folder, 1, resume=True)
        before = rows(folder)
        assert [row["epoch"] for row in before] == [1, 2, 3]
        watched(folder, 1, resume=1)
        assert [row["epoch"] for row in rows(folder)] == [1, 2]
        assert rows(folder)[0] == before[0]
        assert spectra_files.read(folder)[0]["epoch"].tolist() == [1, 2]

    def test_the_rules_read_the_epochs_before(self, tmp_path):
        model, folder = SimSiam(), tmp_path / "run"
        nn.init.zeros_(model.projection_head.weight)
        first = watched(folder, 1, model, bounds=Bounds(warmup=0))
        assert first.collapsed == [], "one epoch decides nothing"
        second = watched(folder, 1, model, resume=True, bounds=Bounds(warmup=0))
        assert second.collapsed
        third = watched(folder, 0, model, resume=True, bounds=Bounds(warmup=0))
        assert third.collapsed == second.collapsed
        assert repr(third.alarm.epochs) == repr(second.alarm.epochs)  # NaN differs from NaN

    @pytest.mark.parametrize("resume", [False, 0])
    def test_a_folder_that_holds_a_run_is_kept(self, tmp_path, resume):
        folder = tmp_path / "run"
        watched(folder)
        before = (folder / "metrics.csv").read_bytes()
        with pytest.raises(UserError, match="resume"):
            Watch(folder, SimSiam(), resume=resume)
        assert (folder / "metrics.csv").read_bytes() == before

    def test_a_folder_of_train_or_of_an_open_watch_is_refused(self, tmp_path):
        with (
            Watch(tmp_path / "run", SimSiam()),
            pytest.raises(UserError, match=r"is writing to .* another folder"),
        ):
            Watch(tmp_path / "run", SimSiam())
        Watch(tmp_path / "run", SimSiam()).close()
        (tmp_path / "run" / ".hydra" / "config.yaml").write_text("method: {name: simsiam}\n")
        with pytest.raises(UserError, match="a run of the train command"):
            Watch(tmp_path / "run", SimSiam(), resume=True)
