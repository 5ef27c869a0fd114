"""TensorBoard's files read by TensorBoard's own code, W&B's by ``wandb sync`` into a server."""

from __future__ import annotations

import csv
import json
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from support.fake_wandb import Server
from support.read_loggers import accumulator, events, hparams_tab, shown_steps, sync
from support.slurm import set_job
from support.small_runs import SMALL, CutInEpoch, configure, run

from rdm_solo import cli, loggers, train
from rdm_solo.lightning import pl
from rdm_solo.loggers import event_files
from rdm_solo.loggers.run_logger import RunInfo
from rdm_solo.loggers.weights_biases import WeightsAndBiases
from rdm_solo.runs import spectra_files
from rdm_solo.runs.columns import COLUMNS, compared
from rdm_solo.runs.saved_config import of_today

BARE = ["pictures.every_n_epochs=0", "knn.every_n_epochs=0"]

# What a logger must hold under its own name; DESIGN's list.
NAMES = {
    "erank/online",
    "erank/target",
    "erank/gap",
    "erank/projection",
    "alignment/online_target",
    "alignment/online_target_weighted",
    "alignment/target_positive",
    "filter/monotonicity",
    "filter/monotonicity_directional",
    "feature/variance",
    "train/loss",
    "val/acc1",
    "val/knn_acc1",
}


@dataclass
class Logged:
    """A run of two epochs, one that resumes it for a third, and a probe's scalars appended."""

    first: Path
    folder: Path
    table: list[dict[str, str]]
    took: list[str]
    page: dict[str, Any]  # what a server has after `wandb sync`
    rows: list[dict[str, Any]]

    def column(self, name: str) -> list[float]:
        return [float(row[name]) for row in self.table]


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    first, folder = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("resumed")
    options = [*SMALL, "filter=target_pow", "logger=[tensorboard,wandb]", "seed=4"]
    options += ["logger.wandb.offline=true", "pictures.every_n_epochs=1"]
    run(first, *options)
    run(folder, *options, "max_epochs=3", f"resume={first}")
    took = loggers.append(folder, {"linear/top1": 62.5}, step=12, online=True)
    with open(folder / "metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    server = Server()
    sync(server, [p for at in (first, folder) for p in sorted(at.glob("wandb/offline-*"))])
    (name,) = server.runs
    return Logged(first, folder, table, took, server.run(name), server.rows(name))


class TestTensorBoard:
    def test_it_holds_every_scalar_of_a_resumed_run_under_its_name(self, logged):
        scalars = events(logged.folder / "tensorboard")
        assert set(scalars) >= NAMES | COLUMNS.keys() - {"epoch", "erank/logits"}
        for name in NAMES:
            assert [value for _, value in scalars[name]] == pytest.approx(
                logged.column(name), rel=1e-6
            )
        # Four steps an epoch; a value stands at the last of its epoch.
        assert [step for step, _ in scalars["erank/online"]] == [3, 7, 11]
        assert {value for _, value in scalars["epoch"]} == {1, 2, 3}
        assert [step for step, _ in events(logged.first / "tensorboard")["erank/gap"]] == [3, 7]

    def test_it_holds_pictures_and_histograms(self, logged):
        read = accumulator(logged.folder / "tensorboard")
        pictures = read.Images("pictures/spectra")
        assert [picture.step for picture in pictures] == [3, 7, 11]
        assert all(p.encoded_image_string.startswith(b"\x89PNG") for p in pictures)
        assert all(p.width > 400 < 2 * p.height for p in pictures)
        lam = spectra_files.read(logged.folder)[0]["lam_target"][-1]
        (*_, last) = read.Histograms("spectra/log10_target")
        assert last.histogram_value.num == (lam > 0).sum()
        assert last.histogram_value.max == pytest.approx(np.log10(lam.max()))

    def test_its_hparams_tab_shows_settings_against_final_values(self, logged):
        (group,) = hparams_tab(logged.folder)
        settings = {
            name: value.string_value or value.number_value for name, value in group.hparams.items()
        }
        assert settings == {
            "method": "simsiam",
            "filter": "target_pow",
            "p": -0.5,
            "dataset": "synthetic",
            "backbone": "small_resnet",
            "batch": 16,
            "lr": 0.5 * 16 / 256,
            "weight_decay": 1e-5,
            "epochs": 3,
            "seed": 4,
        }
        final = {metric.name.tag: metric.value for metric in group.metric_values}
        assert final.pop("linear/top1") == 62.5
        assert final.keys() >= {column.name for column in compared()} - {"linear/top1"}
        for name in final.keys() & COLUMNS.keys():
            assert final[name] == pytest.approx(logged.column(name)[-1], rel=1e-6)
        (session,) = group.sessions
        assert session.status == 1  # success


class TestGoingOn:
    """A run goes on in another folder (resume=) or in its own (requeued by SLURM)."""

    @pytest.mark.parametrize("there", ["run", "another"])
    def test_tensorboard_shows_one_run_without_the_steps_done_twice(self, there, tmp_path):
        pytest.importorskip("tensorboard")

        def info(folder: Path, epochs: int, **more: Any) -> loggers.RunInfo:
            settings = {"p": None, "epochs": epochs}
            return loggers.RunInfo(tmp_path / folder, "a", "b", settings, {}, **more)

        first = event_files.TensorBoard.open(info("run", 6), {})
        for step in range(6):
            first.log_metrics({"erank/gap": step}, step)
        first.close(failed=True)
        time.sleep(
            1.1
        )  # TensorBoard reads files in the order of their names, which hold the second
        on = info(there, 8, goes_on_from=tmp_path / "run", step=3)
        second = event_files.TensorBoard.open(on, first.record)
        for step in range(3, 8):
            second.log_metrics({"erank/gap": 10 * step}, step)
        second.close(failed=False)
        folder = tmp_path / there / "tensorboard"
        expected = [(0, 0), (1, 1), (2, 2), (3, 30), (4, 40), (5, 50), (6, 60), (7, 70)]
        assert events(folder)["erank/gap"] == expected
        assert shown_steps(folder, "erank/gap") == list(range(8))
        (group,) = hparams_tab(folder)
        assert group.hparams["epochs"].number_value == 8
        assert group.sessions[0].status == 1  # success, though the first part failed

    def test_a_requeued_run_keeps_its_id_and_its_event_files(self, tmp_path, disabled, monkeypatch):
        """SLURM starts the same command again, which finds its checkpoint in the folder."""
        pytest.importorskip("tensorboard")
        options = [*SMALL, *BARE, "logger=[tensorboard,wandb]", "scheduler.warmup_epochs=0"]
        cfg = configure(*options, "max_epochs=3")
        (tmp_path / ".hydra").mkdir()
        OmegaConf.save(cfg, tmp_path / ".hydra" / "config.yaml")
        set_job(monkeypatch)
        with pytest.raises(RuntimeError, match="killed"):
            train.run(cfg, tmp_path, [CutInEpoch(3)])
        record = json.loads((tmp_path / "loggers.json").read_text())
        set_job(monkeypatch, restarts=1)
        run(tmp_path, *options, "max_epochs=3")
        assert json.loads((tmp_path / "loggers.json").read_text()) == record
        shown = events(tmp_path / "tensorboard")["erank/gap"]
        assert [step for step, _ in shown] == [3, 7, 11]


@pytest.mark.parametrize("method", ["swav", "dino", "symsimsiam"])
def test_every_methods_loss_has_one_name_and_one_value_an_epoch(method, tmp_path):
    options = [option for option in SMALL if "pred_hidden" not in option]
    more = [] if method == "symsimsiam" else ["method.kwargs.num_prototypes=8"]
    run(tmp_path, *options, f"method={method}", *more, *BARE, "logger=tensorboard")
    found = events(tmp_path / "tensorboard")
    assert len(found["train/loss"]) == 2
    assert not [name for name in found if name.endswith(("_step", "_epoch"))]


class TestWandb:
    def test_a_resumed_run_and_its_evaluation_are_one_page(self, logged):
        steps = [row["_step"] for row in logged.rows]
        assert steps == list(range(len(steps)))
        for name in NAMES:
            values = [row[name] for row in logged.rows if name in row]
            assert values == pytest.approx(logged.column(name), rel=1e-6)
        assert [row["epoch"] for row in logged.rows if "erank/gap" in row] == [1, 2, 3]
        assert [row["linear/top1"] for row in logged.rows if "linear/top1" in row] == [62.5]

    def test_its_summary_has_the_final_values_after_the_evaluation_too(self, logged):
        summary = json.loads(logged.page["summary"])
        assert summary["linear/top1"] == 62.5
        for name in NAMES:
            assert summary[name] == pytest.approx(logged.column(name)[-1], rel=1e-6)

    def test_it_can_be_found_again(self, logged):
        kept, first = (
            json.loads((folder / "loggers.json").read_text())["wandb"]
            for folder in (logged.folder, logged.first)
        )
        told = logged.page["told"]
        assert told["name"] == kept["id"] == first["id"]
        assert told["project"] == "rdm_solo"
        assert told["groupName"] == "synthetic-simsiam-target_pow-p=-0.5"
        assert told["displayName"] == "simsiam-target_pow-p=-0.5-seed=4"
        assert logged.took == ["tensorboard", "wandb"]
        config = json.loads(told["config"])
        assert config["p"]["value"] == -0.5
        assert config["method"]["value"]["name"] == "simsiam"
        assert config["derived"]["value"]["lr"] == 0.5 * 16 / 256

    def test_it_has_charts_over_epochs(self, logged):
        spectra = spectra_files.read(logged.folder)[0]
        charts = json.loads(logged.page["told"]["config"])["_wandb"]["value"]["visualize"]
        assert len(charts) == 5
        for array, powers in (("filter_curve", False), ("lam_target", True)):
            panel = charts[f"charts/{array}"]["panel_config"]
            assert panel["panelDefId"] == "wandb/lineseries/v0"
            asked = json.dumps(panel["userQuery"])
            assert f"charts/{array}_table" in asked
            *_, row = (row for row in logged.rows if f"charts/{array}_table" in row)
            table = json.loads(logged.page["files"][row[f"charts/{array}_table"]["path"]])
            assert table["columns"] == ["step", "lineKey", "lineVal"]
            for epoch in range(3):  # a resumed run's charts begin with the epochs before
                line = {i: y for i, name, y in table["data"] if name == f"epoch {epoch + 1}"}
                values = spectra[array][epoch]
                values = np.log10(values) if powers else values
                assert sorted(line) == list(range(1, 17))
                assert list(line.values()) == pytest.approx(values.tolist(), rel=1e-6)

    def test_it_has_pictures_and_histograms(self, logged):
        pictures = [row["pictures/spectra"] for row in logged.rows if "pictures/spectra" in row]
        assert len(pictures) == 3
        for picture in pictures:
            assert logged.page["files"][picture["path"]].startswith(b"\x89PNG")
        counted = [row["spectra/log10_online"] for row in logged.rows if _has_histogram(row)]
        assert [sum(histogram["values"]) for histogram in counted] == [16, 16, 16]


def _has_histogram(row: dict[str, Any]) -> bool:
    return row.get("spectra/log10_online", {}).get("_type") == "histogram"


def test_a_run_that_crashes_failed_in_both_too(logged, tmp_path):
    class Crash(pl.Callback):
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def on_train_epoch_end(self, trainer, module):
            raise self.error

    assert logged.page["states"] == [0, 0, 0]  # two parts of a run, and the scalars appended
    errors = {RuntimeError: "optimizer.lr=0.1", FloatingPointError: "optimizer.lr=1e30"}
    for i, (error, option) in enumerate(errors.items()):
        folder = tmp_path / str(i)
        folder.mkdir()
        options = ["logger=[tensorboard,wandb]", "logger.wandb.offline=true", *BARE, option]
        with pytest.raises(error):
            train.run(configure(*SMALL, *options), folder, [Crash(RuntimeError("a crash"))])
        (group,) = hparams_tab(folder)
        assert group.sessions[0].status == 2  # failure
    server = Server()
    sync(server, sorted(tmp_path.glob("*/wandb/offline-*")))
    assert [page["states"] for page in server.runs.values()] == [[1], [1]]


def test_a_logger_that_fails_is_named_and_the_others_are_served(logged, tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    record = {"tensorboard": {"folder": "tensorboard"}, "unheard_of": {}}
    (tmp_path / "loggers.json").write_text(json.dumps(record))
    assert loggers.append(tmp_path, {"linear/top1": 1.0}, step=0) == []
    assert "linear/top1 did not reach tensorboard" in caplog.text
    assert loggers.append(tmp_path / "elsewhere", {"linear/top1": 1.0}, step=0) == []


class WithoutAFolder(WeightsAndBiases):
    """A part of a run whose folder is not there."""

    online = False
    experiment = SimpleNamespace(disabled=False, dir="gone/files")

    def __init__(self, folder: Path, record: dict[str, object]) -> None:
        pass

    def log_hyperparams(self, values: dict[str, object]) -> None:
        pass


def test_a_part_that_cannot_note_its_beginning_is_written_all_the_same(tmp_path, caplog):
    run = RunInfo(tmp_path, "run", "group", {}, {})
    opened = WithoutAFolder.open(run, {}, name=None, group=None, tags=[])
    assert isinstance(opened, WithoutAFolder)
    assert "epochs before may be missing" in caplog.text


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ([], []),
        (["logger=csv"], []),
        (["logger=tensorboard"], ["tensorboard"]),
        (["logger=[csv,wandb]"], ["wandb"]),
        (["logger=[tensorboard,wandb]"], ["tensorboard", "wandb"]),
    ],
)
def test_one_logger_or_several_can_be_chosen(choice, names):
    assert list(cli.compose("config", choice).logger) == names


def test_a_mistyped_logger_is_answered():
    with pytest.raises(ValueError, match=r"got 'wandbb'; did you mean 'wandb'\?"):
        cli.compose("config", ["logger=[tensorboard,wandbb]"])


def test_a_missing_package_is_a_sentence(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="logger=wandb needs the package wandb"):
        loggers.check_packages(["wandb"])


@pytest.mark.parametrize(
    ("name", "former"), [("tensorboard", "tensorboard"), ("wandb", "weights_and_biases")]
)
def test_a_config_saved_before_the_loggers_moved_names_todays(name, former):
    saved = of_today({"_target_": f"rdm_solo.loggers.{former}"})
    today = cli.compose("config", [f"logger={name}"]).logger[name]
    assert saved["_target_"] == today._target_ == f"{loggers.KINDS[name]}.open"


def test_a_trial_run_of_lightning_opens_no_logger(tmp_path):
    parts = train.build(
        configure(*SMALL, "logger=tensorboard", "++trainer.fast_dev_run=true"), tmp_path
    )
    assert parts.trainer.loggers == []
    assert not (tmp_path / "loggers.json").exists()
