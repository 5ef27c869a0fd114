"""TensorBoard's files read by TensorBoard's own code, W&B's by ``wandb sync`` into a server."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import command
from support.fake_wandb import Server
from support.read_loggers import accumulator, events
from support.small_runs import QUICK, SMALL, configure, run

from rdm_solo import cli, loggers, train
from rdm_solo.data import DataError
from rdm_solo.lightning import pl
from rdm_solo.loggers import events as event_files
from rdm_solo.loggers import server as wandb_server
from rdm_solo.runs import spectra_files
from rdm_solo.runs.columns import COLUMNS

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


def hparams_tab(folder: Path) -> list[Any]:
    """What TensorBoard's HPARAMS tab is answered for the runs below a folder."""
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    runs = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(folder))
    runs.Reload()
    provider = data_provider.MultiplexerDataProvider(runs, str(folder))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    asked = api_pb2.ListSessionGroupsRequest(
        slice_size=9, allowed_statuses=api_pb2.Status.values(), experiment_name=""
    )
    handler = list_session_groups.Handler(RequestContext(), context, "", asked)
    return list(handler.run().session_groups)


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


def sync(server: Server, parts: list[Any]) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("wandb"), "sync", *map(str, parts)],
        cwd=Path(parts[-1]).parent,  # it leaves its own log there
        env={**os.environ, **server.environment()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    server.close()
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    first, folder = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("resumed")
    options = [*SMALL, "filter=target_pow", "logger=[tensorboard,wandb]", "seed=4"]
    options += ["logger.wandb.offline=true", "pictures.every_n_epochs=1"]
    run(first, *options)
    run(folder, *options, "max_epochs=3", f"resume={first}")
    took = loggers.append(folder, {"linear/top1": 62.5}, step=12)
    with open(folder / "metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    server = Server()
    sync(server, [p for at in (first, folder) for p in sorted(at.glob("wandb/offline-*"))])
    (name,) = server.runs
    return Logged(first, folder, table, took, server.run(name), server.rows(name))


class TestTensorBoard:
    def test_it_holds_every_scalar_of_a_resumed_run_under_its_name(self, logged):
        scalars = events(logged.folder / "tensorboard")
        assert set(scalars) >= NAMES | (set(COLUMNS) - {"epoch"})
        for name in NAMES:
            assert [value for _, value in scalars[name]] == pytest.approx(
                logged.column(name), rel=1e-6
            )
        # Four steps an epoch; a value stands at the last of its epoch.
        assert [step for step, _ in scalars["erank/online"]] == [3, 7, 11]
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
        assert set(final) == set(event_files.METRICS) - {"linear/top1"}
        for name, value in final.items():
            assert value == pytest.approx(logged.column(name)[-1], rel=1e-6)
        (session,) = group.sessions
        assert session.status == 1  # success


@pytest.mark.parametrize("method", ["swav", "dino", "symsimsiam"])
def test_every_methods_loss_has_one_name_and_one_value_an_epoch(method, tmp_path):
    options = [option for option in SMALL if "pred_hidden" not in option]
    more = [] if method == "symsimsiam" else ["method.kwargs.num_prototypes=8"]
    run(tmp_path, *options, f"method={method}", *more, "logger=tensorboard")
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
        assert [row["epoch"] for row in logged.rows if "erank/gap" in row] == [0, 1, 2]
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
            key = {"filter_curve": "filter_curve", "lam_target": "eigenvalues_target"}[array]
            panel = charts[f"charts/{key}"]["panel_config"]
            assert panel["panelDefId"] == "wandb/lineseries/v0"
            asked = json.dumps(panel["userQuery"])
            assert f"charts/{key}_table" in asked
            *_, row = (row for row in logged.rows if f"charts/{key}_table" in row)
            table = json.loads(logged.page["files"][row[f"charts/{key}_table"]["path"]])
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


class TestOnline:
    def test_a_run_and_the_one_that_resumes_it_are_one_page(self, server, tmp_path, caplog):
        caplog.set_level("INFO")
        options = [*SMALL, "filter=target_pow", "logger=wandb", "pictures.every_n_epochs=0"]
        run(tmp_path / "first", *options, "max_epochs=1")
        run(tmp_path / "second", *options, f"resume={tmp_path / 'first'}")
        (name,) = server.runs
        assert f"Weights & Biases: {server.url}/me/rdm_solo/runs/{name}" in caplog.text
        assert "wandb sync" not in caplog.text
        rows = [row for row in server.rows(name) if "erank/gap" in row]
        assert [row["epoch"] for row in rows] == [0, 1]
        assert server.run(name)["states"] == [0, 0]

    def test_a_network_that_goes_costs_seconds_and_no_data(self, server, tmp_path, caplog):
        caplog.set_level("INFO")
        closed = []

        class Cut(pl.Callback):
            def on_train_epoch_end(self, trainer, module):
                if not closed:
                    closed.append(server.close())

        cfg = configure(*SMALL, "filter=target_pow", "logger=wandb")
        cfg.logger.wandb.finish_timeout = 2
        started = time.perf_counter()
        summary = train.run(cfg, tmp_path, [Cut()])
        assert time.perf_counter() - started < 60  # of W&B's 2 at the end; a busy machine is slow
        assert summary["last"]["erank/gap"] > 0
        assert "Timed out" in caplog.text
        (part,) = re.findall(r"to send it: wandb sync --include-online (\S+)", caplog.text)
        (kept,) = Path(part).glob("run-*.wandb")
        assert b"erank/gap" in kept.read_bytes()
        again = Server()
        sync(again, ["--include-online", part])
        (name,) = again.runs
        rows = [row["erank/gap"] for row in again.rows(name) if "erank/gap" in row]
        assert len(rows) == 2
        assert rows[-1] == pytest.approx(summary["last"]["erank/gap"], rel=1e-6)


class TestObstacles:
    def test_what_is_in_the_way_is_said(self, server, monkeypatch, tmp_path):
        import wandb

        assert wandb_server.obstacle() is None
        monkeypatch.delenv("WANDB_API_KEY")
        monkeypatch.setenv("NETRC", str(tmp_path / "none"))
        wandb.teardown()
        assert "no login (run `wandb login` once" in wandb_server.obstacle()

    def test_who_has_switched_wandb_off_gets_nothing_of_it(self, server, monkeypatch, tmp_path):
        from rdm_solo.loggers import weights_biases

        monkeypatch.setenv("WANDB_MODE", "disabled")
        made, _ = weights_biases.logger(tmp_path, {}, "title", "family")
        weights_biases.introduce(made, {"p": 1.0}, {"seed": 0})
        made.log_metrics({"erank/gap": 1.0}, step=0)
        weights_biases.picture(made, "pictures/spectra", np.zeros((2, 2, 3), np.uint8), 0)
        weights_biases.spectra(made, {0: {"lam_online": np.ones(4)}}, 0)
        weights_biases.close(made, failed=False)
        assert not server.runs
        assert not list(tmp_path.iterdir())

    def test_a_server_that_keeps_silent_is_not_waited_for(self, monkeypatch):
        import socket

        monkeypatch.setattr(wandb_server, "PATIENCE", 0.5)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            started = time.perf_counter()
            assert "does not answer within 0.5 s" in wandb_server._silent(url)
            assert time.perf_counter() - started < 20  # it would keep silent for ever

    def test_whichever_of_its_two_clocks_is_first(self, monkeypatch):
        """The socket's own timeout says the same as ours."""
        import socket

        monkeypatch.setattr(wandb_server, "PATIENCE", 0.1)
        monkeypatch.setattr(threading.Thread, "join", lambda self, wait: time.sleep(wait + 1))
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            assert "does not answer within 0.1 s" in wandb_server._silent(url)


def test_a_run_that_crashes_failed_in_both_too(logged, tmp_path):
    class Crash(pl.Callback):
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def on_train_epoch_end(self, trainer, module):
            raise self.error

    assert logged.page["states"] == [0, 0, 0]  # two parts of a run, and the scalars appended
    errors = [(RuntimeError("a crash"), RuntimeError), (DataError("an image"), DataError)]
    for i, (error, seen) in enumerate(errors):
        folder = tmp_path / str(i)
        folder.mkdir()
        options = ["logger=[tensorboard,wandb]", "logger.wandb.offline=true"]
        with pytest.raises(seen):
            train.run(configure(*SMALL, *options), folder, [Crash(error)])
        (group,) = hparams_tab(folder)
        assert group.sessions[0].status == 2  # failure
    server = Server()
    sync(server, sorted(tmp_path.glob("*/wandb/offline-*")))
    assert [page["states"] for page in server.runs.values()] == [[1], [1]]


@pytest.mark.process
def test_a_sweep_without_a_server_goes_on_offline(tmp_path):
    """Each run's data stay on disk, apart from the other's, and a line says how to send them."""
    pytest.importorskip("wandb")
    out = command(
        *("rdm_solo.train", "-m", *QUICK, *SMALL, "filter=target_pow", "p=-0.5,-1"),
        *("logger=wandb", "max_epochs=1", "hydra.sweep.dir=ps"),
        cwd=tmp_path,
        WANDB_BASE_URL="http://127.0.0.1:9",
        WANDB_API_KEY="0" * 40,
    )
    text = out.stdout + out.stderr
    assert out.returncode == 0, text[-3000:]
    assert text.count("127.0.0.1:9 cannot be reached: ") == 2
    assert "wandb: " not in text  # its own lines
    folders = sorted(tmp_path.glob("ps/*_simsiam_*"))
    assert len(folders) == 2
    for folder in folders:
        assert len((folder / "metrics.csv").read_text().splitlines()) == 2
        record = json.loads((folder / "loggers.json").read_text())["wandb"]
        assert record["tags"] == ["sweep:ps"]
        (kept,) = folder.glob("wandb/offline-run-*/*.wandb")
        content = kept.read_bytes()
        assert b"erank/gap" in content
        assert b"sweep_folder" in content
        assert record["group"].encode() in content
        assert f"to send it: wandb sync {kept.parent}\n" in text


def test_a_logger_that_fails_is_named_and_the_others_are_served(logged, tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    record = {"tensorboard": {"folder": "tensorboard"}, "unheard_of": {}}
    (tmp_path / "loggers.json").write_text(json.dumps(record))
    assert loggers.append(tmp_path, {"linear/top1": 1.0}, step=0) == []
    assert "linear/top1 did not reach tensorboard" in caplog.text
    assert loggers.append(tmp_path / "elsewhere", {"linear/top1": 1.0}, step=0) == []


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


def test_a_missing_package_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="logger=wandb needs the package wandb"):
        loggers.weights_and_biases(folder=tmp_path, before={}, title="a", family="b")
