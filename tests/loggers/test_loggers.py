"""TensorBoard's and W&B's files, read back after two starts of one run."""

import http.server
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.read_loggers import WandbFile, accumulator, events, wandb_files
from support.small_runs import SMALL, CutInEpoch, all_rows, configure, run

from rdm_solo import loggers
from rdm_solo.loggers import event_files
from rdm_solo.runs import spectra_files
from rdm_solo.runs.columns import COLUMNS

wandb = pytest.importorskip("wandb")
pytest.importorskip("tensorboard")

BOTH = [*SMALL, "logger=[tensorboard,wandb]", "logger.wandb.offline=true", "seed=4"]

# The names that every logger uses.
NAMES = COLUMNS.keys() - {"epoch", "erank/logits", "train/loss_share", "rate/slope"}


@dataclass
class Logged:
    """A run that was killed after two epochs and resumed, and a probe's scalars added later."""

    folder: Path
    loggers: list[str]  # those that took the probe's scalars
    starts: list[WandbFile]
    table: list[dict[str, float]]  # metrics.csv

    def expected(self, name: str) -> list[float]:
        """Return the values of a column of metrics.csv."""
        return [row[name] for row in self.table if name in row]

    def history(self, name: str, column: str = "") -> list[Any]:
        """Return the values of a name in W&B's history, or what a column has beside them."""
        values = []
        for start in self.starts:
            values += [row[column or name] for row in start.rows if name in row]
        return values


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    options = [*BOTH, "filter=target_pow", "pictures.every_n_epochs=1", "max_epochs=3"]
    with pytest.raises(RuntimeError, match="killed"):
        run(folder, *options, callbacks=[CutInEpoch(3)])
    run(folder, *options)
    names = loggers.append(folder, {"linear/top1": 62.5}, step=12, online=True)
    return Logged(folder, names, wandb_files(folder), all_rows(folder))


def test_both_loggers_take_scalars_after_the_run(logged):
    assert logged.loggers == ["tensorboard", "wandb"]
    assert events(logged.folder / "tensorboard")["linear/top1"] == [(12, 62.5)]
    assert logged.history("linear/top1") == [62.5]


class TestTensorBoard:
    def test_it_holds_every_scalar_of_both_starts(self, logged):
        scalars = events(logged.folder / "tensorboard")
        assert set(scalars) >= NAMES
        assert not any(name.endswith(("_step", "_epoch")) for name in scalars)
        for name in NAMES:
            values = [value for _, value in scalars[name]]
            assert values == pytest.approx(logged.expected(name), rel=1e-6)
        # Four steps an epoch.
        assert [step for step, _ in scalars["erank/online"]] == [0, 3, 7, 11]
        assert {value for _, value in scalars["epoch"]} == {0, 1, 2, 3}

    def test_it_holds_pictures_and_histograms(self, logged):
        reader = accumulator(logged.folder / "tensorboard")
        pictures = reader.Images("pictures/spectra")
        assert [picture.step for picture in pictures] == [3, 7, 11]
        assert all(p.encoded_image_string.startswith(b"\x89PNG") for p in pictures)
        lam = spectra_files.read(logged.folder)[0]["lam_target"][-1]
        last = reader.Histograms("spectra/log10_target")[-1].histogram_value
        assert last.num == (lam > 0).sum()
        assert last.max == pytest.approx(np.log10(lam.max()))

    def test_its_hparams_tab_has_the_settings(self, logged):
        from tensorboard.plugins.hparams import metadata

        reader = accumulator(logged.folder / "tensorboard")
        content = reader.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
        hparams = metadata.parse_session_start_info_plugin_data(content).hparams
        assert hparams["method"].string_value == "simsiam"
        assert hparams["filter"].string_value == "target_pow"
        assert hparams["p"].number_value == -0.5

    def test_a_restart_hides_the_steps_that_it_repeats(self, tmp_path):
        for start, value in ((0, 1.0), (3, 10.0)):
            info = loggers.RunInfo(tmp_path, "a", "b", {"p": None}, {}, step=start)
            logger = event_files.TensorBoard.open(info, {})
            for step in range(start, start + 5):
                logger.log_metrics({"erank/gap": value}, step)
            logger.finalize("failed")
        steps, values = zip(*events(tmp_path / "tensorboard")["erank/gap"])
        assert steps == tuple(range(8))
        assert values == (*[1.0] * 3, *[10.0] * 5)


class TestWandb:
    def test_all_starts_are_one_run(self, logged):
        records = json.loads((logged.folder / "loggers.json").read_text())
        assert {start.run["run_id"] for start in logged.starts} == {records["wandb"]["id"]}
        assert [start.exit_code for start in logged.starts] == [1, 0, 0]
        first = logged.starts[0]
        assert first.run["project"] == "rdm_solo"
        assert first.run["group"] == "synthetic-simsiam-target_pow-p=-0.5"
        assert first.run["display_name"] == "simsiam-target_pow-p=-0.5-seed=4"
        assert first.config["p"] == -0.5
        assert first.config["method"]["name"] == "simsiam"
        assert first.config["derived"]["lr"] == 0.5 * 16 / 256

    def test_it_holds_every_scalar_once_and_the_final_values(self, logged):
        summary = logged.starts[-1].summary
        assert summary["linear/top1"] == 62.5
        for name in NAMES:
            values = logged.history(name)
            assert values == pytest.approx(logged.expected(name), rel=1e-6)
            assert summary[name] == pytest.approx(values[-1], rel=1e-6)
        assert logged.history("erank/gap", "epoch") == [0, 1, 2, 3]
        assert logged.history("erank/gap", "trainer/global_step") == [0, 3, 7, 11]

    def test_it_holds_pictures_and_histograms(self, logged):
        assert len(logged.history("pictures/spectra.path")) == 3
        counts = logged.history("spectra/log10_online.values")
        assert np.sum(counts, axis=1).tolist() == [16, 16, 16]

    def test_a_server_that_cannot_be_used_leaves_the_run_offline(
        self, tmp_path, monkeypatch, caplog
    ):
        class Refusal(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.send_error(404)

        server = http.server.HTTPServer(("127.0.0.1", 0), Refusal)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        wandb.teardown()
        info = loggers.RunInfo(tmp_path, "a", "b", {"p": 1.0}, {"sweep_folder": "ps"})
        (logger,) = loggers.open_all(configure("logger=wandb").logger, info)
        logger.log_metrics({"erank/gap": 4.5}, step=0)
        logger.finalize("success")
        file, _ = wandb_files(tmp_path)  # offline-run-*, and what the failed start left
        server.shutdown()
        server.server_close()
        assert "the run is kept offline" in caplog.text
        assert [row["erank/gap"] for row in file.rows if "erank/gap" in row] == [4.5]
        assert logger.record["tags"] == ["sweep:ps"]

    def test_an_error_of_wandb_does_not_end_the_run(self, tmp_path, monkeypatch, caplog):
        info = loggers.RunInfo(tmp_path, "a", "b", {}, {})
        (logger,) = loggers.open_all(configure(*BOTH, "logger=wandb").logger, info)
        monkeypatch.setattr(logger.experiment, "log", lambda *_: 1 / 0)
        for step in range(2):
            logger.log_metrics({"erank/gap": 4.5}, step)
        logger.finalize("success")
        assert caplog.text.count("Weights & Biases failed") == 1


def test_a_logger_that_fails_to_append_is_a_warning(tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    (tmp_path / "loggers.json").write_text(json.dumps({"tensorboard": {}, "unknown": {}}))
    assert loggers.append(tmp_path, {"linear/top1": 1.0}, step=0) == []
    assert "linear/top1 could not be logged to tensorboard" in caplog.text
