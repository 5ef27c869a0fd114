"""A watch over a plain loop: what it measures, writes, says and leaves alone."""

from __future__ import annotations

import csv
import json
import logging
import re

import numpy as np
import pytest
import torch
from support.own_models import BYOL, DIM, SimSiam, batches, siamese_step
from torch import nn

import rdm_solo.__main__
from rdm_solo import report, runs
from rdm_solo.report import verdicts
from rdm_solo.runs import spectra_files
from rdm_solo.spectra import BranchSpectra
from rdm_solo.watch import Bounds, Watch


def trained(watch: Watch | None, model: nn.Module, epochs: int = 1, views=None) -> list[float]:
    """A loop of somebody's own; the losses of its steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(epochs):
        for batch in views or batches():
            loss = siamese_step(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
            if watch is not None:
                watch.step(loss)
        if watch is not None:
            watch.end_epoch()
    return losses


def table(folder) -> list[dict[str, float]]:
    with open(folder / "metrics.csv", newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def test_the_numbers_are_those_of_the_outputs(tmp_path):
    model = SimSiam()
    outputs = []
    watch = Watch(tmp_path / "run", model, views=2)
    want = BranchSpectra(8, steps=True)
    for batch in batches():
        pairs = [model(view) for view in batch]
        z, p = (torch.cat(x) for x in zip(*pairs))
        outputs.append(float(p.detach().mean()))
        want.update(online=p, target=z, positive=torch.cat([pairs[1][0], pairs[0][0]]))
        watch.step(p.mean())
    found = watch.end_epoch(val_knn_acc1=50)
    measured = want.compute()
    assert found == {
        **measured.scalars,
        "train/loss": pytest.approx(sum(outputs) / 4, rel=1e-6),
        "val/knn_acc1": 50.0,
    }
    (row,) = table(tmp_path / "run")
    assert row == {"epoch": 1, **found}
    saved, _ = spectra_files.read(tmp_path / "run")
    for name, array in measured.arrays().items():
        np.testing.assert_array_equal(saved[name][0], array)


def test_training_is_what_it_is_without(tmp_path):
    """Losses, weights, random numbers and modes, with dropout that draws."""
    model, plain = (nn.Sequential(nn.Dropout(0.1)) for _ in "12")
    for one in (model, plain):
        one.append(nn.Linear(DIM, 8))
    plain.load_state_dict(model.state_dict())
    results = []
    for one in (model, plain):
        torch.manual_seed(3)
        holder = {"projector": one}
        watch = Watch(tmp_path / "run", holder) if one is model else None
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        losses = []
        for batch in batches():
            loss = one(batch[0]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
            if watch:
                watch.step(loss)
        if watch:
            watch.end_epoch()
        results.append((losses, torch.rand(3).tolist(), one[1].weight.tolist()))
    assert results[0] == results[1]


def test_the_report_opens_what_it_wrote(tmp_path):
    model = SimSiam()
    with Watch(tmp_path / "run", model, views=2, seed=5, epochs=3) as watch:
        trained(watch, model, epochs=3)
    run = runs.load(tmp_path / "run")
    assert (run.method, run.label, run.seed, run.epochs) == ("SimSiam", "SimSiam", 5, 3)
    assert run.missing == ()
    page = report.write([tmp_path / "run"]).read_text()
    assert "SimSiam" in page
    assert "it failed with" not in page
    assert (tmp_path / "run" / "report" / "effective_rank.png").stat().st_size > 0
    with Watch(tmp_path / "unsaid", model) as watch:  # how many epochs there will be
        trained(watch, model, epochs=2)
    page = report.write([tmp_path / "unsaid"]).read_text()
    assert ">?<" not in page
    assert "of ?" not in page
    heads = re.findall("<th[^>]*>([^<]+)<", page)
    assert "seeds" in heads
    assert "network" not in heads  # which the loop alone knows


@pytest.mark.parametrize("command", ["linear run={}", "export run={}", "train resume={}"])
def test_commands_that_need_a_model_say_that_there_is_none(tmp_path, capsys, monkeypatch, command):
    with Watch(tmp_path / "run", SimSiam()) as watch:
        trained(watch, watch.module)
    monkeypatch.setattr("sys.argv", ["rdm-solo", *command.format(tmp_path / "run").split()])
    with pytest.raises(SystemExit):
        rdm_solo.__main__.main()
    assert "was written by rdm_solo.watch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parts", "momentum", "symmetric"),
    [(BYOL, True, False), (SimSiam, False, False), (nn.Linear, False, True)],
)
def test_the_report_knows_what_the_branches_are(tmp_path, parts, momentum, symmetric):
    model = {"projector": nn.Linear(DIM, 8)} if parts is nn.Linear else parts()
    with Watch(tmp_path / "run", model, name="byol"):
        pass
    described = runs.load(tmp_path / "run").described
    assert (described.momentum, described.symmetric) == (momentum, symmetric)
    assert described.loss_minimum is None  # it is not the package's own byol


@pytest.mark.parametrize("warmup", [0, Bounds().warmup])
def test_a_collapse_is_said_once_in_the_log_and_in_the_summary(tmp_path, caplog, warmup):
    model = {"projector": nn.Linear(DIM, 8)}
    nn.init.zeros_(model["projector"].weight)
    watch = Watch(tmp_path / "run", model, bounds=Bounds(warmup=warmup))
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        for epoch in range(1, 7):
            for batch in batches():
                watch.step(model["projector"](batch[0]).mean())
            watch.end_epoch()
            assert watch.collapsed == (["complete collapse"] if epoch >= warmup + 2 else [])
    (said,) = [r.message for r in caplog.records if "complete collapse" in r.message]
    assert "bounds=Bounds(variance=0.1)" in said
    assert "optimizer." not in said
    (warning,) = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    assert (warning["kind"], warning["epoch"]) == ("complete collapse", warmup + 2)
    assert said == f"warning: {warning['text']}"


def test_ranks_that_crash_in_the_first_epochs_are_no_collapse(tmp_path):
    """Every rank does; the rates of docs/collapse.md leave three epochs out, too."""
    model = {"projector": nn.Linear(DIM, 8)}
    healthy = model["projector"].weight.detach().clone()
    with Watch(tmp_path / "run", model) as watch:
        for epoch in range(1, 7):
            with torch.no_grad():
                model["projector"].weight.copy_(healthy if epoch > 3 else 0 * healthy)
            watch.step(model["projector"](batches()[0][0]).mean())
            watch.end_epoch()
    assert watch.collapsed == []
    assert runs.load(tmp_path / "run").config.scheduler.warmup_epochs == 3


def test_bounds_are_the_users(tmp_path):
    model = {"projector": nn.Linear(DIM, 8)}
    nn.init.zeros_(model["projector"].weight)
    watch = Watch(tmp_path / "run", model, bounds=Bounds(variance=None, erank=None, warmup=0))
    for _ in range(3):
        watch.step(model["projector"](batches()[0][0]).mean())
        watch.end_epoch()
    assert watch.collapsed == []


def test_a_negative_gap_is_a_warning_where_the_target_should_lead(tmp_path):
    """A predictor alone does not say so: NNCLR and MoCo v3 have one."""
    flat, steep = torch.eye(8), torch.diag(torch.arange(1, 9.0) ** -2)

    def found(kind="NNCLR", gap_epochs=3, leads=None, **names) -> list[str]:
        names = names or {"online": "predictor", "target": "teacher"}
        parts = type(kind, (nn.ModuleDict,), {})
        model = parts({name: nn.Linear(8, 8, bias=False) for name in names.values()})
        with torch.no_grad():
            model[names["online"]].weight.copy_(flat)
            model[names["target"]].weight.copy_(steep)
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        bounds = Bounds(erank=None, variance=None, gap_epochs=gap_epochs)
        with Watch(folder, model, **names, leads=leads, bounds=bounds) as watch:
            for _ in range(3):
                x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
                for part in model.values():
                    part(x)
                watch.step()
                watch.end_epoch()
        assert not watch.collapsed  # which a negative gap is not
        warned = [warning["kind"] for warning in watch.alarm.warnings]
        run = runs.load(folder)
        assert run.described.leads is bool(warned)
        verdict = verdicts.leads([run])
        assert (verdict.answer, verdict.good) == (
            "no, the online branch leads",
            False if warned else None,
        )
        return warned

    gap = ["negative gap"]
    assert found() == []
    assert found("JEPA") == []
    assert found("SimSiam") == gap
    assert found("SimSiam", online="student", target="teacher") == []
    assert found("SimSiam", leads=False) == []
    assert found(leads=True) == gap
    assert found(leads=True, online="student", target="teacher") == gap
    assert found(leads=True, gap_epochs=2) == gap
    with pytest.raises(ValueError, match="gap_epochs=2 counts only with leads=True"):
        found(gap_epochs=2)
    with pytest.raises(ValueError, match="leads must be true or false, got 0"):
        found(leads=0)


def test_scalars_go_to_any_logger(tmp_path):
    model, logged = SimSiam(), []
    watch = Watch(tmp_path / "run", model, log=lambda *given: logged.append(given))
    trained(watch, model, epochs=2)
    assert [epoch for _, epoch in logged] == [1, 2]
    assert logged[1][0] == {k: v for k, v in table(tmp_path / "run")[1].items() if k != "epoch"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"val/acc": 1.0}, "'val/acc' is no column; did you mean 'val/acc1'?"),
        ({"erank_online": 1.0}, "'erank_online' is measured by the watch"),
    ],
)
def test_scalars_of_other_names_are_refused(tmp_path, given, says):
    watch = Watch(tmp_path / "run", SimSiam())
    with pytest.raises(ValueError, match="end_epoch") as error:
        watch.end_epoch(given)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("values", "warnings"), [([0.1, 0.5, 0.9, 0.9], 1), ([1, 1], 0), ([0.5, 50, 0.5, 0.5, 0.5], 0)]
)
def test_accuracies_that_are_fractions_are_said_once(tmp_path, caplog, values, warnings):
    with Watch(tmp_path / "run", SimSiam()) as watch, caplog.at_level("WARNING", "rdm_solo"):
        for value in values:
            watch.end_epoch(val_acc1=value)
    said = [r.message for r in caplog.records if "val/acc1 was at most 1" in r.message]
    assert len(said) == warnings


def test_a_long_epoch_is_thinned_out_evenly(tmp_path):
    """8 steps of 20 rows and room for 80: the first four of the first epoch, whose length is not
    known, then every second one; every second one at once where the length was given."""
    for name, given, want in (("free", None, [80, 80]), ("given", 8, [80, 80])):
        model = SimSiam()
        watch = Watch(tmp_path / name, model, max_rows=80, steps_per_epoch=given)
        taken = []
        for _ in range(2):
            for step, batch in enumerate(batches(8)):
                if watch.observer.recording:
                    taken.append(step)
                watch.step(siamese_step(model, batch))
            watch.end_epoch()
        first = [0, 2, 4, 6] if given else [0, 1, 2, 3]
        assert taken == [*first, 0, 2, 4, 6]
        assert spectra_files.read(tmp_path / name)[0]["rows"].tolist() == want


class TestGoingOn:
    def run(self, folder, epochs: int, resume=False, model=None, **options) -> Watch:
        model = model or SimSiam()
        with Watch(folder, model, resume=resume, **options) as watch:
            trained(watch, model, epochs)
        return watch

    def test_it_goes_on_behind_the_last_epoch_or_an_earlier_one(self, tmp_path):
        folder = tmp_path / "run"
        self.run(folder, 2, resume=True)  # nothing is there yet
        self.run(folder, 1, resume=True)
        before = table(folder)
        assert [row["epoch"] for row in before] == [1, 2, 3]
        self.run(folder, 1, resume=1)
        after = table(folder)
        assert [row["epoch"] for row in after] == [1, 2]
        assert after[0] == before[0]
        assert spectra_files.read(folder)[0]["epoch"].tolist() == [1, 2]

    def test_what_was_measured_before_counts_for_the_alarm(self, tmp_path):
        dead = SimSiam()
        nn.init.zeros_(dead.projection_head.weight)
        folder = tmp_path / "run"
        for epoch in range(1, 4):
            watch = self.run(folder, 1, resume=True, model=dead, bounds=Bounds(warmup=0))
            assert bool(watch.collapsed) is (epoch > 1)  # one epoch says nothing
        warnings = json.loads((folder / "summary.json").read_text())["warnings"]
        kinds = [(warning["kind"], warning["epoch"]) for warning in warnings]
        assert kinds == [("dimensional collapse", 2), ("complete collapse", 3)]

    def test_the_readings_are_those_of_the_run_that_measured_them(self, tmp_path):
        """Of outputs that are all zero, too, whose ranks have no logarithm."""
        dead = SimSiam()
        nn.init.zeros_(dead.projection_head.weight)
        nn.init.zeros_(dead.projection_head.bias)
        for name, model in (("alive", SimSiam()), ("dead", dead)):
            live = self.run(tmp_path / name, 2, model=model).alarm.measured
            assert len(live) == 2
            with Watch(tmp_path / name, model, resume=True) as watch:
                assert repr(watch.alarm.measured) == repr(live)  # NaN is no NaN's equal

    def test_a_folder_that_holds_a_run_is_refused(self, tmp_path):
        folder = tmp_path / "run"
        self.run(folder, 1)
        before = (folder / "metrics.csv").read_bytes()
        with pytest.raises(ValueError, match=r"holds a run: .*resume=True"):
            Watch(folder, SimSiam())
        assert (folder / "metrics.csv").read_bytes() == before
        (folder / ".hydra" / "config.yaml").write_text("method: {name: simsiam}\n")
        with pytest.raises(ValueError, match="a run that no watch has written"):
            Watch(folder, SimSiam(), resume=True)

    def test_a_folder_in_use_is_refused(self, tmp_path):
        folder = tmp_path / "run"
        with (
            Watch(folder, SimSiam()) as watch,
            pytest.raises(
                ValueError, match=r"this process itself is writing .* give another folder"
            ),
        ):
            Watch(folder, SimSiam())
        assert watch.folder.folder == folder
        with Watch(folder, SimSiam()):  # it was given back
            pass

    def test_a_loop_that_never_closed_its_watch_goes_on_or_broke_off(self, tmp_path):
        folder, model = tmp_path / "run", SimSiam()
        said = "still training or broken off"
        watch = Watch(folder, model, epochs=4)
        trained(watch, model, 2)
        assert any("goes on, or broke off" in line for line in runs.load(folder).missing)
        assert said in report.write([folder]).read_text()
        watch.close()
        assert runs.load(folder).missing == ("2 of 4 epochs",)
        assert said not in report.write([folder]).read_text()
        before = (folder / "summary.json").read_bytes()
        watch.close()  # a second time: the folder may be another's by now
        assert (folder / "summary.json").read_bytes() == before
        watch = Watch(folder, model, epochs=4, resume=True)
        trained(watch, model)
        watch.close(KeyboardInterrupt())
        assert any("goes on, or broke off" in line for line in runs.load(folder).missing)
        trained(Watch(folder, model, epochs=4, resume=True), model)
        assert runs.load(folder).missing == ()  # all epochs are there

    def test_an_error_in_the_loop_leaves_a_line_and_the_epochs_before(self, tmp_path):
        model = SimSiam()
        watch = Watch(tmp_path / "run", model)
        trained(watch, model)
        with pytest.raises(RuntimeError, match="power cut"), watch:
            raise RuntimeError("power cut")
        run = runs.load(tmp_path / "run")
        assert run.epochs == 1
        assert any("power cut" in said for said in run.missing)
        head = model.prediction_head
        assert not head._forward_hooks
        assert not head._forward_pre_hooks
        self.run(tmp_path / "run", 1, resume=True)
        assert runs.load(tmp_path / "run").missing == ()
