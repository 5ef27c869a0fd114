"""Command lines: which are refused, with which sentence; values with signs."""

from __future__ import annotations

import io
import re
import sys

import pytest

from rdm_solo import cli
from rdm_solo.messages import UserError


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["lr=0.1"], "did you mean 'optimizer.lr'?"),
        (["optimizer.weigth_decay=1"], "did you mean 'optimizer.weight_decay'?"),
        (["wd=0.1"], "did you mean 'optimizer.weight_decay'?"),
        (["epochs=3"], "did you mean 'max_epochs'?"),
        (["method.proj_output_dim=3"], "did you mean 'method.kwargs.proj_output_dim'?"),
        (["model=resnet18"], "did you mean 'backbone.name'?"),
        (["trainer.limit_train_batches=2"], "given as ++trainer.limit_train_batches=..."),
        (["filter=target"], "did you mean 'target_pow'?"),
        (["experiment=cifar10/simsiam"], "did you mean 'cifar10/simsiam_"),
        (["filter.name=target_pow"], "write filter=..."),
        (["p=["], "cannot read the argument"),
        (["p=1,2"], "'p=1,2' gives several values: add -m"),
        (["--config-name", "none"], "Cannot find primary config 'none'"),
        (["--config-dir", "none", "filter=mine"], "filter=mine"),
    ],
)
def test_what_hydra_refuses_gets_one_sentence_with_the_nearest_name(overrides, says):
    with pytest.raises(UserError, match=re.escape(says)) as refused:
        cli.compose("config", overrides)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("sign", ["+", "++"])
def test_any_argument_of_the_trainer_can_be_added(sign):
    cfg = cli.compose("config", [f"{sign}trainer.limit_train_batches=2", "++seed=5"])
    assert (cfg.trainer.limit_train_batches, cfg.seed) == (2, 5)


@pytest.mark.parametrize(("epochs", "warm_up"), [(30, 6), (3, 0.6), (100, 6)])
def test_a_warm_up_is_at_most_a_fifth_of_the_run(epochs, warm_up):
    cfg = cli.compose("config", [f"max_epochs={epochs}"])
    assert cfg.scheduler.warmup_epochs == warm_up
    assert cli.compose("config", ["scheduler.warmup_epochs=2"]).scheduler.warmup_epochs == 2


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """``jobs(*argv)``: the configs that a command calls its job with."""
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> list:
        configs: list = []
        monkeypatch.setattr(sys, "argv", ["train", *argv])
        cli.command(configs.append, "config")
        return configs

    return run


def test_a_folder_of_ones_own_adds_choices(jobs, tmp_path, capsys):
    (tmp_path / "own" / "filter").mkdir(parents=True)
    option = "# @package _global_\nfilter: {name: soft, sharpness: 1}\n"
    (tmp_path / "own" / "filter" / "soft.yaml").write_text(option)
    (cfg,) = jobs("--config-dir", "own", "filter=soft", "filter.sharpness=3")
    assert cfg.filter == {"name": "soft", "sharpness": 3}
    swept = jobs("--config-dir=own", "-m", "filter=soft,identity", "seed=0,1", "hydra.sweep.dir=s")
    assert len(swept) == 4
    with pytest.raises(SystemExit):
        jobs("--config-dir=own", "filter=sof")
    assert "did you mean 'soft'?" in capsys.readouterr().err


def test_an_error_of_the_job_is_not_an_answer_to_the_user(monkeypatch):
    def job(cfg):
        raise OSError("a disk is full")

    monkeypatch.setattr(sys, "argv", ["train"])
    with pytest.raises(OSError, match="a disk is full"):
        cli.command(job, "config")


@pytest.mark.parametrize("path", ["a=b", "p=-0.5/x=1", "'a,b'", "a b", "sweep/0_simsiam_p=-0.5"])
def test_paths_with_signs_arrive_as_they_were_passed(path, jobs):
    (cfg,) = jobs(f"dataset.root={path}", "dataset=cifar10")
    assert cfg.dataset.root == path.strip("'")


def test_a_terminal_without_sigma_shows_a_question_mark(monkeypatch):
    console = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, "stdout", console)
    cli.log_to_terminal()
    print("\N{GREEK SMALL LETTER SIGMA}^-0.5", flush=True)
    assert console.buffer.getvalue().splitlines()[-1] == b"?^-0.5"
