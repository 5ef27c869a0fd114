"""A run whose processes torchrun has started, and starts again when one of them fails."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest
from conftest import command, started
from support.small_runs import SMALL

EPOCHS = 5
OPTIONS = [*SMALL, f"max_epochs={EPOCHS}", "scheduler.warmup_epochs=1", "batch_size=8"]
OPTIONS += ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "filter=online_pow"]
TORCHRUN = ["torch.distributed.run", "--nproc-per-node=2", "--standalone"]


def kill_the_second_process(cwd: Path) -> None:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (path / "environ").read_bytes().split(b"\0")
            if b"RANK=1" in variables and os.readlink(path / "cwd") == str(cwd):
                os.kill(int(path.name), signal.SIGKILL)


@pytest.mark.long
@pytest.mark.process
def test_a_run_whose_process_was_killed_goes_on_in_its_folder(tmp_path):
    """Nobody typed the folder: the first process names it, and the others learn it."""
    process = started(
        *(*TORCHRUN, "--max-restarts=1", "-m", "rdm_solo.train", *OPTIONS), cwd=tmp_path
    )
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith(f"epoch 3/{EPOCHS}") and "goes on in" not in "".join(said):
            kill_the_second_process(tmp_path)
    status, text = process.wait(timeout=300), "".join(said)
    assert status == 0, text[-3000:]
    assert len(re.findall("torchrun has started this run again: its run goes on in", text)) == 1
    (table,) = tmp_path.glob("runs/*/metrics.csv")
    whole = command("rdm_solo.train", *OPTIONS, "hydra.run.dir=whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert table.read_bytes() == (tmp_path / "whole" / "metrics.csv").read_bytes()
    assert not (table.parent / "failed.txt").exists()


def test_a_sweep_is_refused(typed, tmp_path, monkeypatch):
    for name, value in {"TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "sweep" / ".jobs").mkdir(parents=True)
    for line in (["-m", *SMALL, "seed=0,1"], ["resume=sweep"]):
        out = typed("rdm_solo.train", *line, cwd=tmp_path)
        assert out.returncode == 2
        assert "error: a sweep starts the processes of its runs itself" in out.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["sweep"]
