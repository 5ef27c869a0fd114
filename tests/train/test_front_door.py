"""What a newcomer meets first: threads, short runs, Ctrl-C, going on, sweeps that fail."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, command
from omegaconf import OmegaConf
from support.small_runs import DRAWN, SMALL, configure, rows, run

from rdm_solo import train
from rdm_solo.data import Pipeline, Views
from rdm_solo.methods import solo_learn
from rdm_solo.methods.backbones import SmallResNet
from rdm_solo.train import checks, resuming, threads
from rdm_solo.train.warm_ups import shorten_warm_ups

TINY = ["backbone.kwargs.width=4", "trainer=cpu"]
FIRST = ["method=simsiam", "filter=target_pow", "p=-0.5"]


class TestThreads:
    def test_operations_are_those_of_all_views_and_batch_norm_is_left_alone(self):
        backbone = SmallResNet(in_channels=1, width=4)
        before = {name: value.clone() for name, value in backbone.state_dict().items()}
        views = Views([Pipeline(size=8, num_crops=2), Pipeline(size=4, num_crops=3)])
        # Multiply-adds of the 3x3 convolutions and 1x1 shortcuts at 8, 8, 4 and 2 pixels, doubled.
        layers = [(8, 9 * 1 * 4), (8, 2 * 9 * 4 * 4)]
        layers += [(4, 9 * 4 * 8 + 9 * 8 * 8 + 4 * 8), (2, 9 * 8 * 16 + 9 * 16 * 16 + 8 * 16)]
        large = 2 * sum(side**2 * weights for side, weights in layers)
        small = 2 * sum((side // 2) ** 2 * weights for side, weights in layers)
        assert threads.forward_flops(backbone, 1, views) == 2 * large + 3 * small
        assert backbone.training
        assert all(torch.equal(before[name], now) for name, now in backbone.state_dict().items())

    @pytest.mark.parametrize(
        ("flops", "available", "processes", "chosen"),
        [(0, 8, 1, 1), (39e9, 8, 1, 1), (41e9, 8, 1, 2), (1e15, 8, 1, 8), (1e15, 8, 3, 2)],
    )
    def test_a_step_gets_what_it_can_feed_and_no_more_than_there_are(
        self, flops, available, processes, chosen
    ):
        assert threads.threads_for(flops, available, processes) == chosen

    def test_the_run_uses_them_and_gives_them_back(self, tmp_path, monkeypatch):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        seen = []

        class See(solo_learn.pl.Callback):
            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                seen.append((torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]))

        before = torch.get_num_threads()
        torch.set_num_threads(3)
        try:
            train.run(configure(*SMALL, "max_epochs=1"), tmp_path, [See()])
            assert torch.get_num_threads() == 3
            train.run(configure(*SMALL, "max_epochs=1", "threads=2"), tmp_path / "two", [See()])
        finally:
            torch.set_num_threads(before)
        assert set(seen) == {(1, "1"), (2, "2")}
        assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.long
def test_the_debug_preset_on_a_machine_with_slurm_and_the_threads_move_no_figure(
    tmp_path, monkeypatch
):
    """It writes every file; Lightning would advise to use srun; what a user adds runs behind what
    it reads; and the same seed gives the same figures whatever OMP_NUM_THREADS says."""
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "mine.py").write_text(
        "from rdm_solo.lightning import pl\n"
        "class Mine(pl.Callback):\n"
        "    after = ('EpochTable',)\n"
        "    def __init__(self, word, folder): self.word, self.folder = word, folder\n"
        "    def on_train_epoch_end(self, trainer, pl_module):\n"
        "        print(self.word, (self.folder / 'metrics.csv').exists(), flush=True)\n"
    )
    (tmp_path / "callbacks").mkdir()
    (tmp_path / "callbacks" / "mine.yaml").write_text(
        "# My own.\nmine:\n  _target_: mine.Mine\n  word: hello\n"
    )
    out = command(
        *("rdm_solo.train", "--config-dir", ".", "callbacks=[mine,default]"),
        *("experiment=debug", "trainer=cpu", "hydra.run.dir=one"),
        cwd=tmp_path,
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        PYTHONWARNINGS="",
        OMP_NUM_THREADS="1",
    )
    assert (out.returncode, out.stderr) == (0, ""), out.stdout[-2000:]
    assert out.stdout.count("\nhello True\n") == 2
    assert ", 1 CPU thread\n" in out.stdout
    one, three = tmp_path / "one", tmp_path / "three"
    files = {str(path.relative_to(one)) for path in one.rglob("*") if path.is_file()}
    assert files >= {
        *("metrics.csv", "summary.json", "train.log", "figures/erank.png"),
        *("checkpoints/last.ckpt", ".hydra/config.yaml"),
    }
    assert any("spectra" in name for name in files)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        run(three, "experiment=debug", "trainer=cpu")
    finally:
        torch.set_num_threads(before)
    assert (one / "metrics.csv").read_bytes() == (three / "metrics.csv").read_bytes()
    a, b = (
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for folder in (one, three)
    )
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_fast_dev_run_writes_no_checkpoint_and_promises_none(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "rdm_solo"):
        run(tmp_path, *SMALL, "++trainer.fast_dev_run=true")
    assert "checkpoints" not in caplog.text
    assert not (tmp_path / "checkpoints").exists()


def test_a_short_run_shortens_the_recipes_warm_up(typed, tmp_path):
    sweep = ["-m", "max_epochs=1,2", *TINY, "++trainer.limit_train_batches=2"]
    out = typed("rdm_solo.train", *sweep, "hydra.sweep.dir=s", cwd=tmp_path)
    assert out.returncode == 0, (out.stdout + out.stderr)[-3000:]
    for epochs, warm_up in ((1, 0.2), (2, 0.4)):
        line = f"max_epochs={epochs} in place of the recipe's 30: scheduler.warmup_epochs becomes"
        assert f"{line} {warm_up} (was 6)" in out.stdout
    summaries = [json.loads(path.read_text()) for path in sorted(tmp_path.rglob("summary.json"))]
    assert [s["config"]["scheduler"]["warmup_epochs"] for s in summaries] == [0.2, 0.4]
    for path in sorted(tmp_path.rglob("config.yaml")):
        assert re.search(r"warmup_epochs: 0\.[24]\n", path.read_text())


def test_a_typed_warm_up_is_kept():
    cfg = configure("max_epochs=2", "scheduler.warmup_epochs=3")
    recipe = configure("max_epochs=30", "scheduler.warmup_epochs=3")
    assert shorten_warm_ups(cfg, recipe, ["max_epochs", "scheduler.warmup_epochs"]) == []
    assert cfg.scheduler.warmup_epochs == 3
    with pytest.raises(ValueError, match="warmup_epochs=3 is longer than max_epochs=2"):
        checks.check(cfg)


def test_the_ranks_are_drawn_while_it_trains(tmp_path):
    drawn = []

    class See(solo_learn.pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            drawn.append((tmp_path / "figures" / "erank.png").exists())

    train.run(configure(*DRAWN), tmp_path, [See()])
    assert drawn == [False, True]


def stopped(arguments, cwd, line: str, number: int) -> tuple[int, list[str], str]:
    """Status, lines and errors of a training that gets a signal when it says that line."""
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    process = subprocess.Popen(
        [sys.executable, "-m", "rdm_solo.train", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = []
    for printed in process.stdout:
        said.append(printed)
        if printed.startswith(line):
            process.send_signal(number)
            break
    rest, error = process.communicate(timeout=300)
    return process.returncode, [*said, *rest.splitlines(keepends=True)], error


@pytest.mark.long
def test_a_signal_keeps_what_there_is_and_the_command_it_names_goes_on(typed, tmp_path):
    """Ctrl-C in a new run, then SIGTERM in the same one that goes on."""
    options = [*FIRST, *TINY, "max_epochs=400", "scheduler.warmup_epochs=0", "hydra.run.dir=run"]
    for arguments, line, number, status, word in (
        (options, "epoch 3/400", signal.SIGINT, 130, "Ctrl-C"),
        (["resume=run"], "epoch ", signal.SIGTERM, 143, "SIGTERM"),
    ):
        returned, said, error = stopped(arguments, tmp_path, line, number)
        assert (returned, error) == (status, "")
        assert any(line.startswith(f"{word}: the run stops in epoch ") for line in said)
        assert said[-1] == f"to go on: python -m rdm_solo.train resume={tmp_path / 'run'}\n"
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"] == word
        if number == signal.SIGINT:
            assert said[0].startswith("simsiam, target_pow, p=-0.5, digits: 400 epochs")
    last = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    before = rows(tmp_path / "run")[: last["epoch"] + 1]  # Ctrl-C may come before it is written
    assert (tmp_path / "run" / "figures" / "erank.png").exists()

    more = f"max_epochs={len(before) + 1}"
    arguments = ["rdm_solo.train", f"resume={tmp_path / 'run'}"]
    for refused, says in (
        (["method=byol"], "leave method=... out"),
        (["optimizer.lr=3"], "optimizer.lr=3 must stay the run's own 0.5; leave it out"),
        (["trainer.precision=bf16-mixed"], "trainer.precision=bf16-mixed must stay"),
        (["batch_size=32"], "and batch_size=32 on 1 process(es) makes 32: give batch_size=64"),
        (["trainer.devices=2"], "and batch_size=64 on 2 process(es) makes 128: give batch_size=32"),
        (["~callbacks.knn"], "write callbacks.knn=null"),
        (["overwrite=true"], "overwrite=True must stay the run's own False"),
        ([f"max_epochs={len(before) - 1}"], "raise max_epochs to go on"),
        (["batch_size=1", "max_epochs=400"], "batch_size must be"),
    ):
        kept = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
        out = typed(*arguments, *refused, cwd=tmp_path)
        assert out.returncode == 2
        assert says in out.stderr
        assert kept == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    out = typed(*arguments, more, cwd=tmp_path)
    assert (out.returncode, out.stderr) == (0, ""), out.stdout[-2000:]
    assert rows(tmp_path / "run")[:-1] == before
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_sweep_whose_every_run_fails_gives_each_reason_once_and_promises_no_page(typed, tmp_path):
    out = typed(
        "rdm_solo.train", "-m", "filter=target_pow", "p=soft,hard", "seed=0,1", cwd=tmp_path
    )
    assert out.returncode == 1
    for word in ("soft", "hard"):
        assert (out.stdout + out.stderr).count(f"got {word!r}") == 1
    assert "no run has finished an epoch" in out.stdout
    assert "rdm_solo.report" not in out.stdout


def test_a_config_from_before_callbacks_were_a_group_still_resumes(tmp_path):
    """Such a config lists a user's own callbacks alone."""
    cfg = configure(*SMALL)
    cfg.callbacks = {"mine": {"_target_": "rdm_solo.callbacks.WeightedKNN"}}
    for name, kept in (("old", {}), ("new", cfg.callbacks)):
        cfg.callbacks, folder = kept, tmp_path / name
        (folder / ".hydra").mkdir(parents=True)
        (folder / "checkpoints").mkdir()
        OmegaConf.save(cfg, folder / ".hydra" / "config.yaml")
        torch.save({"epoch": 0, "state_dict": {}}, folder / "checkpoints" / "last.ckpt")
        found, _ = resuming.own_config([f"resume={folder}"])
        assert list(found.callbacks) == (list(configure().callbacks) if name == "old" else ["mine"])


def test_a_run_goes_on_sending_only_where_the_logger_is_typed_again(tmp_path):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "checkpoints").mkdir()
    OmegaConf.save(configure(*SMALL, "logger=wandb"), tmp_path / ".hydra" / "config.yaml")
    torch.save({"epoch": 0, "state_dict": {}}, tmp_path / "checkpoints" / "last.ckpt")
    for typed, offline in ([], True), (["logger=wandb"], False):
        found, _ = resuming.own_config([f"resume={tmp_path}", *typed])
        assert found.logger.wandb.offline is offline


def test_a_folder_that_names_code_of_its_own_is_not_resumed(tmp_path, capsys):
    """A folder may come from a stranger; going on in it must not run what its config names."""
    for number, (key, value) in enumerate(
        [
            ("dataset.source._target_", "os.system"),
            ("callbacks", {"mine": {"_target_": "os.getcwd"}}),
            ("dataset.root", "${oc.env:HOME}"),
            ("filter.function", "os.system"),
        ]
    ):
        folder = tmp_path / str(number)
        (folder / ".hydra").mkdir(parents=True)
        cfg = configure(*SMALL)
        OmegaConf.update(cfg, key, value, force_add=True)
        OmegaConf.save(cfg, folder / ".hydra" / "config.yaml")
        before = (folder / ".hydra" / "config.yaml").read_bytes()
        with pytest.raises(SystemExit):
            resuming.own_config([f"resume={folder}"])
        said = capsys.readouterr().err
        assert str(folder / ".hydra" / "config.yaml") in said
        assert "is not taken from a folder" in said
        assert [p.name for p in folder.rglob("*") if p.is_file()] == ["config.yaml"]
        assert (folder / ".hydra" / "config.yaml").read_bytes() == before


@pytest.mark.parametrize("value", [[], "word", {"_target_": 1}])
def test_callbacks_that_are_none_are_an_error_with_the_folders_name(value, tmp_path, capsys):
    (tmp_path / ".hydra").mkdir()
    cfg = configure(*SMALL)
    cfg.callbacks = {"ranks": value}
    OmegaConf.save(cfg, tmp_path / ".hydra" / "config.yaml")
    with pytest.raises(SystemExit):
        resuming.own_config([f"resume={tmp_path}"])
    assert f"error: {tmp_path}" in capsys.readouterr().err


def test_a_run_whose_data_folder_is_the_environments_is_its_own(tmp_path, monkeypatch):
    """The shipped configs of real data sets name ${oc.env:RDM_DATA,data}."""
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(configure("dataset=cifar10"), tmp_path / ".hydra" / "config.yaml")
    monkeypatch.setenv("RDM_DATA", "here")
    cfg, folder = resuming.own_config([f"resume={tmp_path}"])
    assert cfg.dataset.root == "here"
    with pytest.raises(ValueError, match=r"holds no checkpoints/last\.ckpt"):
        resuming.check_resume(cfg, folder)
