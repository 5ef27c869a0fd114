"""Progress on the screen: one line an epoch, and a bar in a terminal."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import pty
import re
import struct
import termios

import pytest
from support.small_runs import DRAWN, run

from rdm_solo.callbacks.epoch_reports import epoch_line

VALUES = {"train/loss": -0.812, "erank/online": 1204.3, "erank/target": 1530.1}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (VALUES, "epoch 7/9: loss -0.812, erank 1204.3 < 1530.1, 1.0 s"),
        ({"val/acc1": 71.2, "val/knn_acc1": 68.9}, "epoch 7/9: kNN 68.9, acc 71.2, 1.0 s"),
        ({"train/loss": math.nan, "train_neg_cos_sim": 1.0}, "epoch 7/9: 1.0 s"),
    ],
)
def test_a_line_of_the_log_holds_what_was_measured(values, line):
    assert epoch_line(7, 9, values, 1) == line


def test_each_epoch_is_one_line_of_the_log(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "rdm_solo"):
        run(tmp_path, *DRAWN, "trainer.enable_progress_bar=true")
    messages = (record.message.partition(": ")[0] for record in caplog.records)
    assert [text for text in messages if re.match(r"epoch \d/", text)] == ["epoch 1/2", "epoch 2/2"]


def test_a_bar_fits_into_the_terminal(tmp_path, monkeypatch):
    columns = 50
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.set_blocking(leader, False)
    with open(follower, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        run(tmp_path, *DRAWN, "trainer.enable_progress_bar=true")
        seen = os.read(leader, 2**20).decode()
    os.close(leader)
    bars = [line.rstrip() for line in re.findall(r"\r(epoch \d/[^\r\n]*)", seen)]
    assert bars[0].startswith("epoch 1/2 [............]")
    assert max(map(len, bars)) <= columns
    assert any(re.match(r"epoch 2/2 \[#+\.*\]  \d", bar) for bar in bars)
