"""TensorBoard's and W&B's files, read back after two starts of one run."""

import http.server
import json
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.read_loggers import WandbFile, accumulator, events, wandb_files
from support.small_runs import SMALL, CutInEpoch, all_rows, configure, run

from rdm_solo import loggers
from rdm_solo.loggers import charts, event_files
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
    written: list[str]
    starts: list[WandbFile]

    def column(self, name: str) -> list[float]:
        return [row[name] for row in all_rows(self.folder) if name in row]

    def logged(self, name: str) -> list[dict[str, float]]:
        return [row for start in self.starts for row in start.rows if name in row]


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    options = [*BOTH, "filter=target_pow", "pictures.every_n_epochs=1", "max_epochs=3"]
    with pytest.raises(RuntimeError, match="killed"):
        run(folder, *options, callbacks=[CutInEpoch(3)])
    run(folder, *options)
    written = loggers.append(folder, {"linear/top1": 62.5}, step=12, online=True)
    return Logged(folder, written, wandb_files(folder))


def test_both_loggers_take_scalars_after_the_run(logged):
    assert logged.written == ["tensorboard", "wandb"]
    assert events(logged.folder / "tensorboard")["linear/top1"] == [(12, 62.5)]
    assert [row["linear/top1"] for row in logged.logged("linear/top1")] == [62.5]


class TestTensorBoard:
    def test_it_holds_every_scalar_of_both_starts(self, logged):
        scalars = events(logged.folder / "tensorboard")
        assert set(scalars) >= NAMES
        assert not [name for name in scalars if name.endswith(("_step", "_epoch"))]
        for name in NAMES:
            values = [value for _, value in scalars[name]]
            assert values == pytest.approx(logged.column(name), rel=1e-6)
        # Four steps an epoch.
        assert [step for step, _ in scalars["erank/online"]] == [0, 3, 7, 11]
        assert {value for _, value in scalars["epoch"]} == {0, 1, 2, 3}

    def test_it_holds_pictures_and_histograms(self, logged):
        read = accumulator(logged.folder / "tensorboard")
        pictures = read.Images("pictures/spectra")
        assert [picture.step for picture in pictures] == [3, 7, 11]
        assert all(p.encoded_image_string.startswith(b"\x89PNG") for p in pictures)
        lam = spectra_files.read(logged.folder)[0]["lam_target"][-1]
        (*_, last) = read.Histograms("spectra/log10_target")
        assert last.histogram_value.num == (lam > 0).sum()
        assert last.histogram_value.max == pytest.approx(np.log10(lam.max()))

    def test_its_hparams_tab_has_the_settings(self, logged):
        from tensorboard.plugins.hparams import metadata

        read = accumulator(logged.folder / "tensorboard")
        content = read.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
        hparams = metadata.parse_session_start_info_plugin_data(content).hparams
        settings = {n: v.string_value or v.number_value for n, v in hparams.items()}
        assert settings.items() >= {"method": "simsiam", "filter": "target_pow", "p": -0.5}.items()

    def test_a_restart_hides_the_steps_that_it_repeats(self, tmp_path):
        for step, factor in ((0, 1), (3, 10)):
            info = loggers.RunInfo(tmp_path, "a", "b", {"p": None}, {}, step=step)
            logger = event_files.TensorBoard.open(info, {})
            for at in range(step, step + 5):
                logger.log_metrics({"erank/gap": factor * at}, at)
            logger.finalize("failed")
        gap = events(tmp_path / "tensorboard")["erank/gap"]
        assert gap == [(0, 0), (1, 1), (2, 2), (3, 30), (4, 40), (5, 50), (6, 60), (7, 70)]


class TestWandb:
    def test_all_starts_are_one_run(self, logged):
        record = json.loads((logged.folder / "loggers.json").read_text())["wandb"]
        assert [start.run["run_id"] for start in logged.starts] == [record["id"]] * 3
        assert [start.exit_code for start in logged.starts] == [1, 0, 0]
        run = logged.starts[0].run
        assert run["project"] == "rdm_solo"
        assert run["group"] == "synthetic-simsiam-target_pow-p=-0.5"
        assert run["display_name"] == "simsiam-target_pow-p=-0.5-seed=4"
        config = logged.starts[0].config
        assert (config["p"], config["method"]["name"]) == (-0.5, "simsiam")
        assert config["derived"]["lr"] == 0.5 * 16 / 256

    def test_it_holds_every_scalar_once_under_its_name(self, logged):
        for name in NAMES:
            values = [row[name] for row in logged.logged(name)]
            assert values == pytest.approx(logged.column(name), rel=1e-6)
        assert [row["epoch"] for row in logged.logged("erank/gap")] == [0, 1, 2, 3]
        assert [row["trainer/global_step"] for row in logged.logged("erank/gap")] == [0, 3, 7, 11]

    def test_its_summary_keeps_the_final_values(self, logged):
        summary = logged.starts[-1].summary
        assert summary["linear/top1"] == 62.5
        for name in NAMES:
            assert summary[name] == pytest.approx(logged.column(name)[-1], rel=1e-6)

    def test_it_holds_charts_over_all_epochs_pictures_and_histograms(self, logged):
        spectra = spectra_files.read(logged.folder)[0]
        for array, logarithmic in (("filter_curve", False), ("lam_target", True)):
            key = f"charts/{array}_table.path"
            (path,) = logged.folder.glob(f"wandb/*/files/{logged.logged(key)[-1][key]}")
            table = json.loads(path.read_text())
            assert table["columns"] == ["step", "lineKey", "lineVal"]
            for epoch, values in enumerate(spectra[array], 1):
                line = {i: y for i, name, y in table["data"] if name == f"epoch {epoch}"}
                assert list(line) == list(range(1, 17))
                expected = np.log10(values) if logarithmic else values
                assert list(line.values()) == pytest.approx(expected.tolist(), rel=1e-6)
        assert len(logged.logged("pictures/spectra.path")) == 3
        histograms = logged.logged("spectra/log10_online.values")
        assert [sum(row["spectra/log10_online.values"]) for row in histograms] == [16, 16, 16]

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
        info = loggers.RunInfo(tmp_path, "a", "b", {"p": 1.0}, {"seed": 0}, sweep="ps")
        (logger,) = loggers.open_all(configure("logger=wandb").logger, info)
        logger.log_metrics({"erank/gap": 4.5}, step=0)
        logger.finalize("success")
        wandb.teardown()
        server.shutdown()
        server.server_close()
        assert "the run is kept offline" in caplog.text
        file, _ = wandb_files(tmp_path)  # offline-run-*, and what the failed start left
        assert [row["erank/gap"] for row in file.rows if "erank/gap" in row] == [4.5]
        assert logger.record["tags"] == ["sweep:ps"]

    def test_what_wandb_raises_does_not_end_the_run(self, tmp_path, monkeypatch, caplog):
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


def test_charts_of_many_epochs_and_dimensions_stay_small():
    """W&B draws 10,000 rows of a table."""
    lam = np.linspace(1, 0, 2048)  # the last one has no logarithm
    curve = np.where(lam > 0.5, lam, np.nan)
    drawn = charts.draw({e: {"lam_online": lam, "filter_curve": curve} for e in range(1, 101)})
    rows = drawn["charts/lam_online"].table.data
    assert len(rows) <= charts.LINES * charts.POINTS
    names = list(dict.fromkeys(name for _, name, _ in rows))
    assert (names[0], names[-1], len(names)) == ("epoch 1", "epoch 100", 8)
    assert all(np.isfinite(value) for _, _, value in rows)
    rows = drawn["charts/filter_curve"].table.data
    assert rows
    assert all(lam[index - 1] == value > 0.5 for index, _, value in rows)
