"""Progress on the screen: one line an epoch, and a bar in a terminal."""

import fcntl
import io
import logging
import math
import os
import pty
import re
import struct
import termios

import pytest
from support.small_runs import SMALL, run, run_until

from rdm_solo.callbacks import epoch_reports
from rdm_solo.callbacks.epoch_reports import EpochBar
from rdm_solo.runs.epoch_line import epoch_line


def test_a_line_of_the_log_leaves_out_what_was_not_measured():
    values = {"train/loss": math.nan, "train_neg_cos_sim": 1.0, "val/acc1": 71.2}
    assert epoch_line(7, 9, values, 1) == "epoch 7/9: acc 71.2, 1.0 s"


def test_each_epoch_is_one_line_of_the_log_after_the_untrained_network(tmp_path, caplog):
    """Steps of a long epoch have lines, too."""
    options = [*SMALL, "trainer.enable_progress_bar=true"]
    with caplog.at_level(logging.INFO, "rdm_solo"):
        run_until(2, tmp_path, *options)
        announced, explained, untrained, *_ = caplog.messages[-4:]
        assert "measuring" in announced
        assert explained == epoch_reports.LEGEND
        assert untrained.startswith("before training: erank")
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(epoch_reports, "LINE_EVERY", 0.0)
            run(tmp_path, *options)
    assert not any("measuring" in line for line in caplog.messages)
    assert caplog.messages.count(epoch_reports.LEGEND) == 1
    line = r"epoch 2/2, step (\d)/4, \d+ images/s, loss -?\d\.\d+\n"
    assert re.findall(line, caplog.text) == ["1", "2", "3", "4"]
    ranks = r"erank \d+\.\d < \d+\.\d, features \d+\.\d"
    values = rf"loss -?\d\.\d+, {ranks}, kNN \d+\.\d, acc \d+\.\d, \d+\.\d s"
    assert re.findall(rf"epoch (\d)/2: {values}\n", caplog.text) == ["2"]


class Loss:
    """Count how often its value is read, which would wait for a device."""

    reads = 0

    def __float__(self) -> float:
        self.reads += 1
        return 0.5


def test_the_loss_is_read_only_when_the_bar_is_drawn():
    loss = Loss()
    file = io.StringIO()
    options = {"bar_format": epoch_reports.BAR, "ncols": 100, "file": file}
    with EpochBar(total=1000, mininterval=3600, **options) as bar:
        for _ in range(999):
            bar.add(8, loss)
        assert loss.reads == 0
        bar.refresh()
        assert loss.reads == 1
    assert re.search(r"999/1000, \S+ left, \d+ images/s, loss 0.500", file.getvalue())


def test_a_bar_of_each_epoch_fits_into_the_terminal(tmp_path, monkeypatch):
    columns = 50
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.set_blocking(leader, False)
    monkeypatch.setattr(epoch_reports, "BAR_EVERY", 0.0)
    with open(follower, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        run(tmp_path, *SMALL, "trainer.enable_progress_bar=true")
        output = os.read(leader, 2**20).decode()
    os.close(leader)
    bars = [line.rstrip() for line in re.findall(r"\r(epoch \d/[^\r\n]*)", output)]
    assert bars[0].startswith("epoch 1/2 [............] 0/4")
    assert max(map(len, bars)) <= columns
    assert any(re.match(r"epoch 2/2 \[######\.{6}\] 2/4, \d", bar) for bar in bars)
