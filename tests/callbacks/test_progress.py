"""Progress on the screen: one line an epoch, and a bar in a terminal."""

import fcntl
import logging
import math
import os
import pty
import re
import struct
import termios

from support.small_runs import SMALL, run

from rdm_solo.callbacks.epoch_reports import epoch_line


def test_a_line_of_the_log_leaves_out_what_was_not_measured():
    values = {"train/loss": math.nan, "train_neg_cos_sim": 1.0, "val/acc1": 71.2}
    assert epoch_line(7, 9, values, 1) == "epoch 7/9: acc 71.2, 1.0 s"


def test_each_epoch_is_one_line_of_the_log(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "rdm_solo"):
        run(tmp_path, *SMALL, "trainer.enable_progress_bar=true")
    values = r"loss -?\d\.\d+, erank \d+\.\d < \d+\.\d, kNN \d+\.\d, acc \d+\.\d, \d+\.\d s"
    epochs = re.findall(rf"epoch (\d)/2: {values}\n", caplog.text)
    assert epochs == ["1", "2"]


def test_a_bar_fits_into_the_terminal(tmp_path, monkeypatch):
    columns = 50
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.set_blocking(leader, False)
    with open(follower, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        run(tmp_path, *SMALL, "trainer.enable_progress_bar=true")
        output = os.read(leader, 2**20).decode()
    os.close(leader)
    bars = [line.rstrip() for line in re.findall(r"\r(epoch \d/[^\r\n]*)", output)]
    assert bars[0].startswith("epoch 1/2 [............]")
    assert max(map(len, bars)) <= columns
    assert any(re.match(r"epoch 2/2 \[#+\.*\]  \d", bar) for bar in bars)
