"""TensorBoard's and W&B's files, read back after two starts of one run."""

import http.server
import json
import threading

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.read_loggers import accumulator, events, wandb_files
from support.small_runs import SMALL, WATCHED, CutInEpoch, all_rows, configure, run

from rdm_solo import loggers, plots
from rdm_solo.loggers import event_files
from rdm_solo.loggers.run_logger import FIRST_CHARTS, VERDICT, VERDICTS
from rdm_solo.report import figures
from rdm_solo.runs import spectra_files
from rdm_solo.runs.columns import COLUMNS

wandb = pytest.importorskip("wandb")
metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")

BOTH = [*SMALL, "logger=[tensorboard,wandb]", "logger.wandb.offline=true"]

# The names that every logger uses.
NAMES = COLUMNS.keys() - WATCHED - {"epoch", "erank/logits", "train/loss_share", "rate/slope"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Train two epochs of a run, resume it after a kill, and add a probe's scalar."""
    folder = tmp_path_factory.mktemp("run")
    options = [*BOTH, "filter=target_pow", "pictures.every_n_epochs=1", "max_epochs=3", "seed=4"]
    options += ["steps.every_n_steps=1", "watch.features=100"]  # a note in epoch 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "epoch_picture", lambda arrays, title: Figure((1, 1)))
        patch.setattr(figures, "PLOTS", ())  # of the page
        with pytest.raises(RuntimeError, match="killed"):
            run(folder, *options, callbacks=[CutInEpoch(3)])
        run(folder, *options)
    names = loggers.append(folder, {"linear/top1": 62.5}, step=12, online=True)
    assert names == ["tensorboard", "wandb"]
    return folder


@pytest.fixture(scope="module")
def columns(folder):
    """Return the values of each column of metrics.csv, some also under their first charts' name."""
    columns = {name: [] for name in NAMES}
    for row in all_rows(folder):
        for name in NAMES & row.keys():
            columns[name].append(row[name])
    aliases = {alias: columns[name] for name, alias in FIRST_CHARTS.items()}
    return columns | aliases


def test_tensorboard_holds_the_settings_and_every_scalar_of_all_starts(folder, columns):
    scalars = events(folder / "tensorboard")
    forked = [name for name in scalars if name.endswith(("_step", "_epoch"))]  # by Lightning
    assert forked == ["train/loss_step"]
    assert scalars["linear/top1"] == [(12, 62.5)]
    for name, expected in columns.items():
        steps, values = zip(*scalars[name])
        assert values == pytest.approx(expected, rel=1e-6)
    steps, _ = zip(*scalars["erank/online"])
    assert steps == (0, 3, 7, 11)  # four steps an epoch
    _, epochs = zip(*scalars["epoch"])
    assert set(epochs) == {0, 1, 2, 3}
    reader = accumulator(folder / "tensorboard")
    summary = reader.SummaryMetadata(metadata.SESSION_START_INFO_TAG)  # of the HPARAMS tab
    start = metadata.parse_session_start_info_plugin_data(summary.plugin_data.content)
    assert start.hparams["method"].string_value == "simsiam"
    assert start.hparams["p"].number_value == -0.5


def test_every_logger_holds_the_loss_and_the_rate_of_steps(folder, columns, starts):
    scalars = events(folder / "tensorboard")
    steps, losses = zip(*scalars["train/loss_step"])
    assert steps == tuple(range(12))
    means = np.reshape(losses, (3, 4)).mean(axis=1)
    assert means == pytest.approx(columns["train/loss"], rel=1e-5)
    assert history(starts, "train/loss_step") == pytest.approx(losses)
    _, rates = zip(*scalars["train/lr"])
    warm_up = np.linspace(0, 0.5 * 16 / 256, 4)  # the first epoch
    assert rates[:4] == pytest.approx(warm_up)
    assert history(starts, "train/lr") == pytest.approx(rates)


def test_every_logger_holds_pictures_and_histograms(folder, starts):
    reader = accumulator(folder / "tensorboard")
    pictures = reader.Images("pictures/spectra")
    assert [picture.step for picture in pictures] == [3, 7, 11]
    assert pictures[0].encoded_image_string.startswith(b"\x89PNG")
    arrays, _ = spectra_files.read(folder)
    lam = arrays["lam_target"][-1]
    histograms = reader.Histograms("spectra/log10_target")
    last = histograms[-1].histogram_value
    assert last.num == (lam > 0).sum()
    assert last.max == pytest.approx(np.log10(lam.max()))
    assert len(history(starts, "pictures/spectra.path")) == 3
    counts = history(starts, "spectra/log10_online.values")
    assert np.sum(counts, axis=1).tolist() == [16, 16, 16]


def run_info(folder, step=0):
    return loggers.RunInfo(folder, "a", "b", {"p": None}, {"sweep_folder": "ps"}, step)


def test_a_restart_hides_the_steps_that_it_repeats(tmp_path):
    for start in (0, 3):
        info = run_info(tmp_path, start)
        logger = event_files.TensorBoard.open(info, {})
        for step in range(start, start + 5):
            logger.log_metrics({"start": start}, step)
        logger.finalize("failed")
    points = events(tmp_path / "tensorboard")["start"]
    assert points == list(enumerate([0, 0, 0, 3, 3, 3, 3, 3]))


def history(starts, name, column=""):
    """Return the values of a name in W&B's history, or what a column has beside them."""
    values = []
    for start in starts:
        for row in start.rows:
            if name in row:
                values.append(row[column or name])
    return values


@pytest.fixture(scope="module")
def starts(folder):
    return wandb_files(folder)


def test_all_starts_are_one_run_of_wandb(folder, starts):
    records = json.loads((folder / "loggers.json").read_text())
    assert [start.exit_code for start in starts] == [1, 0, 0]
    run_id = records["wandb"]["id"]
    assert {start.run["run_id"] for start in starts} == {run_id}
    assert starts[0].run == {
        "run_id": run_id,
        "project": "rdm_solo",
        "group": "synthetic-simsiam-target_pow-p=-0.5",
        "display_name": "simsiam-target_pow-p=-0.5-seed=4",
        "job_type": "train",
    }
    config = starts[0].config
    assert config["method"]["name"] == "simsiam"
    assert config["derived"]["lr"] == 0.5 * 16 / 256


def test_wandb_holds_every_scalar_once_and_the_final_values(starts, columns):
    summary = starts[-1].summary
    for name, expected in {**columns, "linear/top1": [62.5]}.items():
        assert history(starts, name) == pytest.approx(expected, rel=1e-6)
    for name in NAMES:
        assert summary[name] == pytest.approx(columns[name][-1], rel=1e-6)
    assert history(starts, "erank/gap", "epoch") == [0, 1, 2, 3]
    assert history(starts, "erank/gap", "trainer/global_step") == [0, 3, 7, 11]


def test_every_logger_shows_the_health_first(folder, starts):
    scalars = events(folder / "tensorboard")
    names = [name for name in sorted(scalars) if name.startswith("a_health/")]
    assert sorted(scalars)[: len(names)] == names
    assert set(names) == {*FIRST_CHARTS.values(), VERDICT}
    assert len(names) <= 8
    verdicts = [VERDICTS[""], VERDICTS[""], VERDICTS["good"]]  # one epoch of warm-up
    assert [value for _, value in scalars[VERDICT]] == verdicts
    assert history(starts, VERDICT) == verdicts


def test_the_outcome_the_best_knn_the_page_and_each_warning_are_shown(folder, columns, starts):
    axes = starts[0].x_axes
    assert {axes[name] for name in (*NAMES, *FIRST_CHARTS.values(), VERDICT)} == {"epoch"}
    assert "train/loss_step" not in axes
    knn = columns["val/knn_acc1"]
    outcome = json.loads((folder / "summary.json").read_text())["outcome"]
    for start in starts[1:]:  # the linear evaluation repeats the summary
        best = start.summary["a_health/knn"]
        assert best == pytest.approx({"max": max(knn), "last": knn[-1]})
        assert start.summary["a_health/outcome"] == outcome
        assert start.summary["a_health/warnings"] == "collapsed features in epoch 3"
    page = f"report-{starts[0].run['run_id']}"
    assert [start.artifacts for start in starts] == [[], [page], []]
    assert (folder / "report" / "report.html").is_file()
    # A warning is an alert and a text once.
    note = ("INFO", "collapsed features")
    assert [start.alerts for start in starts] == [[], [note], []]
    texts = accumulator(folder / "tensorboard").Tensors("a_health/warnings/text_summary")
    assert [text.step for text in texts] == [11]


def test_a_server_that_cannot_be_used_leaves_the_run_offline(tmp_path, monkeypatch, caplog):
    class Refusal(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_error(404)

    server = http.server.HTTPServer(("127.0.0.1", 0), Refusal)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    wandb.teardown()
    config = configure("logger=wandb")
    (logger,) = loggers.open_all(config.logger, run_info(tmp_path))
    logger.log_metrics({"erank/gap": 4.5}, step=0)
    logger.close()
    files = wandb_files(tmp_path)  # offline-run-*, and what the failed start left
    server.shutdown()
    assert "the run is kept offline" in caplog.text
    assert history(files[:1], "erank/gap") == [4.5]
    assert logger.record["tags"] == ["sweep:ps"]


def test_an_error_of_wandb_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    config = configure("logger=wandb", "logger.wandb.offline=true")
    (logger,) = loggers.open_all(config.logger, run_info(tmp_path))
    monkeypatch.setattr(logger.experiment, "log", lambda *_: 1 / 0)
    for step in range(2):
        logger.log_metrics({"erank/gap": 4.5}, step)
    logger.close()
    assert caplog.text.count("Weights & Biases failed") == 1


def test_a_logger_that_fails_to_append_is_a_warning(tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    (tmp_path / "loggers.json").write_text('{"tensorboard": {}, "unknown": {}}')
    assert loggers.append(tmp_path, {"linear/top1": 1.0}, step=0) == []
    assert "linear/top1 could not be logged to tensorboard" in caplog.text
