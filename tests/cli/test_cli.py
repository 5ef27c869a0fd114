"""Command lines: which are refused, with which sentence; paths with signs."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig

from rdm_solo import cli


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["optimizer.learning_rate=1"], "did you mean 'optimizer.lr'?"),
        (["lr=0.1"], "did you mean 'optimizer.lr'?"),
        (["learning_rate=0.1"], "did you mean 'optimizer.lr'?"),
        (["wd=0.1"], "did you mean 'optimizer.weight_decay'?"),
        (["epochs=3"], "did you mean 'max_epochs'?"),
        (["scheduler.warmup=3"], "did you mean 'scheduler.warmup_epochs'?"),
        (["method.proj_output_dim=3"], "did you mean 'method.kwargs.proj_output_dim'?"),
        (["model=resnet18"], "did you mean 'backbone.name'?"),
        (["method=byol", "optimizer.eta=3"], "there is no option 'optimizer.eta'"),
        (["+nonsense=1"], "there is no option 'nonsense'; --help lists them"),
        (["++optimizer.lrr=1"], "did you mean 'optimizer.lr'?"),
        (["++trainr.limit_train_batches=2"], "did you mean 'trainer'?"),
        (["trainer.limit_train_batches=2"], "given as ++trainer.limit_train_batches=..."),
        (["backbone.kwargs.depth=8"], "to add one, write ++backbone.kwargs.depth=..."),
        (["hydra.run.dirr=a"], "did you mean 'hydra.run.dir'?"),
        (["filters/x=a"], "there is no option 'filters/x'"),
        (["filter=target"], "did you mean 'target_pow'?"),
        (["experiment=cifar10/simsiam"], "cifar10/simsiam_target_pow"),
        (["filter.name=target_pow"], "write filter=... instead"),
        (["p=["], "cannot read the argument"),
        (["p=1,2"], "p=1,2 gives several values: add -m to sweep over them"),
        (["~seed"], "~seed: the command needs seed"),
        (["dataset@x=cifar10"], "dataset@x=cifar10: write dataset=... without @."),
        (["+dataset@x=cifar10"], "+dataset@x=cifar10: write dataset=... without @."),
        (["logger=null"], "logger=null is no choice; leave logger out, or give a name"),
        (["method=[simsiam]"], "method=[simsiam] is no choice; leave method out"),
    ],
)
def test_an_unknown_name_gets_one_sentence_with_the_nearest_known_one(overrides, says):
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        cli.compose("config", overrides)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("sign", ["+", "++"])
def test_any_argument_of_the_trainer_can_be_added(sign):
    cfg = cli.compose("config", [f"{sign}trainer.limit_train_batches=2", "++seed=5"])
    assert (cfg.trainer.limit_train_batches, cfg.seed) == (2, 5)
    assert cli.compose("config", [f"{sign}backbone.kwargs.depth=8"]).backbone.kwargs.depth == 8


class Typed:
    """A command with the config of the training, whose job keeps what it is called with."""

    def __init__(self, monkeypatch):
        self.monkeypatch, self.jobs = monkeypatch, []

    def __call__(self, *argv: str) -> list:
        self.monkeypatch.setattr(sys, "argv", ["train", *argv])
        self.jobs.clear()
        cli.command(self.job, "config")
        return self.jobs

    def job(self, cfg) -> None:
        self.jobs.append(cfg)
        self.folder = Path(HydraConfig.get().runtime.output_dir)


@pytest.fixture
def typed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return Typed(monkeypatch)


class TestCommand:
    @pytest.mark.parametrize(
        ("argv", "says"),
        [
            (["optimizer.learning_rate=1"], "did you mean 'optimizer.lr'?"),
            (["-m", "method=simsiam,byl"], "did you mean 'byol'?"),
            (["-m", "filter=target_pow,identity", "lrr=1,2"], "did you mean 'optimizer.lr'?"),
            (["-m", "p=[,1"], "cannot read the argument"),
            (["--cfg", "job", "lr=1"], "did you mean 'optimizer.lr'?"),
            (["--help", "method=byl"], "did you mean 'byol'?"),
            (["--config-name", "none"], "Cannot find primary config 'none'"),
            (["--config-dir", "none"], "--config-dir none: there is no such folder"),
            (["-m", "hydra.sweep.dir=file/a"], "give another hydra.sweep.dir"),
            (["hydra.run.dir=${nothing}"], "'nothing' not found"),
        ],
    )
    def test_refused_in_one_sentence_and_nothing_is_written(
        self, typed, argv, says, tmp_path, capsys
    ):
        (tmp_path / "file").write_text("")
        with pytest.raises(SystemExit) as left:
            typed(*argv)
        assert left.value.code == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("error: ")
        assert says in line
        assert not typed.jobs
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_a_folder_of_ones_own_adds_choices(self, typed, tmp_path, capsys):
        (tmp_path / "own" / "filter").mkdir(parents=True)
        option = "# @package _global_\nfilter: {name: soft, sharpness: 1}\n"
        (tmp_path / "own" / "filter" / "soft.yaml").write_text(option)
        own = ["--config-dir", "own"]
        (cfg,) = typed(*own, "filter=soft", "filter.sharpness=3")
        assert cfg.filter == {"name": "soft", "sharpness": 3}
        assert len(typed(*own, "-m", "filter=soft,identity", "seed=0,1")) == 4
        for argv, says in (
            (["filter=soft"], "filter must be one of"),
            ([*own, "filter=sof"], "did you mean 'soft'?"),
            ([*own, "-m", "filter=soft,sof"], "did you mean 'soft'?"),
            ([*own, "filter=soft", "filter.sharp=3"], "did you mean 'filter.sharpness'?"),
        ):
            with pytest.raises(SystemExit):
                typed(*argv)
            assert says in capsys.readouterr().err

    def test_an_error_of_the_job_is_no_answer(self, monkeypatch, tmp_path):
        def job(cfg):
            raise OSError("a disk is full")

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train"])
        with pytest.raises(OSError, match="a disk is full"):
            cli.command(job, "config")


@pytest.mark.parametrize(
    "path", ["a=b", "a,b", "it's", 'a "b"', "p=-0.5,q='1'", "a\\", "a\\'b", "a b", "[a]", "{a: b}"]
)
def test_paths_with_signs_arrive_as_they_were_typed(path, typed, tmp_path):
    names = ("dataset.root", "resume", "hydra.run.dir")
    (cfg,) = typed(*(f"{name}={path}" for name in names), "dataset=cifar10")
    assert (cfg.dataset.root, cfg.resume, typed.folder) == (path, path, tmp_path / path)


def test_a_sweep_over_paths_is_parted_by_commas(typed, tmp_path):
    jobs = typed("-m", "resume=a=1,'b,c',it's", "hydra.sweep.dir=a,b=c")
    assert [cfg.resume for cfg in jobs] == ["a=1", "b,c", "it's"]
    assert (tmp_path / "a,b=c" / "multirun.yaml").is_file()


def test_a_terminal_without_sigma_is_no_reason_to_fail(monkeypatch):
    """A console of Windows: what it cannot show becomes a question mark."""
    console = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, "stdout", console)
    with pytest.raises(UnicodeEncodeError):
        print("\N{GREEK SMALL LETTER SIGMA}", flush=True)
    cli.say_anything()
    print("\N{GREEK SMALL LETTER SIGMA}^-0.5", flush=True)
    assert console.buffer.getvalue().splitlines()[-1] == b"?^-0.5"
