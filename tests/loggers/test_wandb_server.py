"""Runs at a W&B server: one that answers, goes away, keeps silent, or is not there at all."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import command
from support.fake_wandb import Server
from support.read_loggers import sync
from support.small_runs import QUICK, SMALL, configure, run

from rdm_solo import loggers, train
from rdm_solo.lightning import pl
from rdm_solo.loggers import charts, weights_biases
from rdm_solo.loggers import server as wandb_server

wandb = pytest.importorskip("wandb")


class TestOnline:
    def test_a_run_and_the_one_that_resumes_it_are_one_page(self, server, tmp_path, caplog):
        caplog.set_level("INFO")
        options = [*SMALL, "filter=target_pow", "logger=wandb", "pictures.every_n_epochs=0"]
        options += ["knn.every_n_epochs=0"]
        run(tmp_path / "first", *options, "max_epochs=1")
        run(tmp_path / "second", *options, f"resume={tmp_path / 'first'}")
        (name,) = server.runs
        assert f"Weights & Biases: {server.url}/me/rdm_solo/runs/{name}" in caplog.text
        assert "wandb sync" not in caplog.text
        rows = [row for row in server.rows(name) if "erank/gap" in row]
        assert [row["epoch"] for row in rows] == [1, 2]
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
        summary = train.run(cfg, tmp_path, [Cut()])
        assert summary["last"]["erank/gap"] > 0
        # Without these two limits W&B waits for minutes.
        assert "cannot be reached: " in caplog.text
        assert "Timed out finishing run" in caplog.text
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
        assert wandb_server.obstacle() is None
        monkeypatch.setenv("WANDB_API_KEY", "short")
        assert "API key must have 40+ characters" in fresh_obstacle()
        monkeypatch.delenv("WANDB_API_KEY")
        monkeypatch.setenv("NETRC", str(tmp_path / "none"))
        assert "no login (run `wandb login` once" in fresh_obstacle()
        monkeypatch.setenv("WANDB_MODE", "offline")
        assert fresh_obstacle() == "WANDB_MODE is offline"

    def test_a_server_that_keeps_silent_is_not_waited_for(self, server, monkeypatch):
        monkeypatch.setattr(wandb_server, "ANSWER_TIMEOUT", 1)
        with socket.create_server(("127.0.0.1", 0)) as silent:  # it would keep silent for ever
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            monkeypatch.setenv("WANDB_BASE_URL", url)
            assert f"{url} does not answer within 1 s" in fresh_obstacle()

    def test_nobody_is_asked_for_a_key_at_the_terminal(self, server, tmp_path):
        """A process that asks would wait for the answer."""
        terminal, end = pty.openpty()
        environment = {**os.environ, "NETRC": str(tmp_path / "none")}
        del environment["WANDB_API_KEY"]
        subprocess.run(
            [sys.executable, "-c", OPEN_A_RUN, str(tmp_path)],
            env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            **dict.fromkeys(("stdin", "stdout", "stderr"), end),
            check=True,
            timeout=60,
        )
        said = os.read(terminal, 10_000).decode()
        assert "no login (run `wandb login` once" in said
        assert "offline: True" in said
        assert not server.runs


OPEN_A_RUN = """
import sys
from rdm_solo.loggers import server
run = server.open_run({"dir": sys.argv[1]}, False, 1)
print("offline:", run.offline)
run.finish()
"""


def fresh_obstacle() -> str | None:
    wandb.teardown()  # W&B reads its environment once
    return wandb_server.obstacle()


def started(folder: Path) -> loggers.RunLogger:
    run = loggers.RunInfo(folder, "a", "b", {"p": 1.0}, {"seed": 0})
    (opened,) = loggers.open_all(configure("logger=wandb").logger, run)
    return opened


class TestModes:
    """WANDB_MODE wins over a server that would answer."""

    def test_who_has_switched_wandb_off_gets_nothing_of_it(self, server, disabled, tmp_path):
        log = started(tmp_path)
        log.log_metrics({"erank/gap": 1.0}, step=0)
        log.picture(charts.PICTURE, np.zeros((2, 2, 3), np.uint8), 0)
        log.spectra({1: {"lam_online": np.ones(4)}}, 0)
        log.close(failed=False)
        assert not server.runs
        assert [path.name for path in tmp_path.iterdir()] == ["loggers.json"]

    def test_who_is_offline_keeps_the_run(self, server, monkeypatch, tmp_path, caplog):
        caplog.set_level("INFO")
        monkeypatch.setenv("WANDB_MODE", "offline")
        wandb.teardown()
        log = started(tmp_path)
        log.log_metrics({"erank/gap": 1.0}, step=0)
        log.close(failed=False)
        wandb.teardown()  # W&B's own process has written everything when it ends
        assert not server.runs
        (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
        assert b"erank/gap" in kept.read_bytes()
        assert f"to send it: wandb sync {kept.parent}" in caplog.text
        assert "The run is kept offline" not in caplog.text


@pytest.fixture
def broken_off(server, monkeypatch, tmp_path) -> Path:
    """The mark of an offline part of run ``abc``: it began after one epoch, and was killed."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()
    part = tmp_path / "wandb" / "offline-run-20260101_000000-abc"
    part.mkdir(parents=True)
    (tmp_path / "format.json").write_text('{"format": 2}')
    (part / weights_biases.OPEN).write_text("1")
    return part


def gone_on(folder: Path) -> Path:
    """The part of that run that comes next, after its third epoch; it has been written."""
    run = loggers.RunInfo(
        folder, "a", "b", {"p": 1.0}, {"seed": 0}, goes_on_from=folder, step=12, epochs=3
    )
    (folder / "loggers.json").write_text(json.dumps({"wandb": {"id": "abc"}}))
    (opened,) = loggers.open_all(configure("logger=wandb").logger, run)
    opened.log_metrics({"erank/gap": 4.5}, step=15)
    opened.close(failed=False)
    wandb.teardown()
    return opened.part


class TestAPartThatWasBrokenOff:
    def test_the_next_begins_with_its_epochs(self, broken_off, server, tmp_path, monkeypatch):
        (tmp_path / "metrics.csv").write_text("epoch,erank/gap\n1,1.5\n2,2.5\n3,\n4,9.5\n")
        part = gone_on(tmp_path)
        assert not (part / weights_biases.OPEN).exists()
        assert [path.name for path in broken_off.iterdir()] == [weights_biases.REPLACED]
        monkeypatch.delenv("WANDB_MODE")
        sync(server, [part])
        rows = server.rows("abc")
        found = [
            (row["trainer/global_step"], row["erank/gap"]) for row in rows if "erank/gap" in row
        ]
        assert found == [(7, 2.5), (15, 4.5)]
        assert [row["epoch"] for row in rows if "epoch" in row] == [2, 3]

    def test_where_they_cannot_be_read_the_run_goes_on(self, broken_off, tmp_path, caplog):
        (tmp_path / "metrics.csv").write_bytes(b"\xff\n")
        part = gone_on(tmp_path)
        assert "Weights & Biases: epochs before may be missing" in caplog.text
        assert broken_off / weights_biases.OPEN in broken_off.iterdir()
        (kept,) = part.glob("*.wandb")
        assert b"erank/gap" in kept.read_bytes()


@pytest.mark.long
@pytest.mark.process
def test_a_sweep_without_a_server_goes_on_offline(tmp_path):
    """Each run's data stay on disk, apart from the other's, and a line says how to send them."""
    out = command(
        *("rdm_solo.train", "-m", *QUICK, *SMALL, "filter=target_pow", "p=-0.5,-1"),
        *("logger=wandb", "max_epochs=1", "hydra.sweep.dir=ps", "knn.every_n_epochs=0"),
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


def test_charts_of_many_epochs_and_dimensions_stay_small():
    """W&B draws 10,000 rows of a table; one more epoch must not push the first out."""
    lam = torch.linspace(1, 0, 2048, dtype=torch.float64).numpy()  # the last is 0: no logarithm
    curve = np.where(lam > 0.5, lam, np.nan)
    drawn = charts.draw(
        {epoch: {"lam_online": lam, "filter_curve": curve} for epoch in range(1, 101)}
    )
    table = drawn["charts/lam_online"].table
    assert len(table.data) <= charts.LINES * charts.POINTS
    names = list(dict.fromkeys(name for _, name, _ in table.data))
    assert (names[0], names[-1], len(names)) == ("epoch 1", "epoch 100", 8)
    assert all(np.isfinite(value) for _, _, value in table.data)
    rows = drawn["charts/filter_curve"].table.data
    assert rows
    assert all(lam[index - 1] == value > 0.5 for index, _, value in rows)
