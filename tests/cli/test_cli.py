"""Command lines: what is refused with which suggestion, and values with special characters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.small_runs import SMALL

from rdm_solo import __version__
from rdm_solo.cli import arguments, terminal
from rdm_solo.ground.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def refusal(*overrides: str) -> str:
    """Return the error for a config that cannot be composed, which is one line."""
    with pytest.raises(UserError) as refused:
        arguments.compose("config", overrides)
    message = str(refused.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("overrides", "suggestion"),
    [
        (["lr=0.1"], "did you mean 'optimizer.lr'?"),
        (["optimizer.learning_rate=0.1"], "did you mean 'optimizer.lr'?"),
        (["method=byol", "method.tau=1"], "did you mean 'method.momentum.base_tau'?"),
        (["backbone.width=8"], "did you mean 'backbone.kwargs.width'?"),
        (["dataset=cifar10", "backbone.kwargs.width=8"], "passed as ++backbone.kwargs.width=8"),
        (["trainer.limit_train_batches=2"], "passed as ++trainer.limit_train_batches=2"),
        (["optimizer.kwargs={fused: true}"], "did you mean 'optimizer.fused'?"),
        (["method.kwargs={proj_hiden_dim: 8}"], "did you mean 'method.kwargs.proj_hidden_dim'?"),
        (["logger=none"], "there are csv, tensorboard, wandb"),
        (["filter=target"], "did you mean 'target_pow'?"),
        (["experiment=cifar10/simsiam"], "did you mean 'cifar10/s"),
        (["p=["], "cannot read the argument"),
        (["p=1,2"], "p=1,2 has several values: add -m"),
        (["hydra/launcher=job_lib"], "no hydra/launcher=job_lib; did you mean 'joblib'?"),
        (["--config-name", "none"], "Cannot find primary config 'none'"),
        (["--config-dir", "none", "filter=mine"], "filter=mine"),
    ],
)
def test_what_hydra_refuses_gets_one_line_with_a_suggestion(overrides, suggestion):
    assert suggestion in refusal(*overrides)


def write_filter(folder: Path, text: str) -> None:
    """Write a config folder with the filter ``soft``."""
    (folder / "filter").mkdir(parents=True)
    (folder / "filter" / "soft.yaml").write_text(text)


@pytest.mark.parametrize(
    ("text", "overrides", "suggestion"),
    [
        ("name: soft", ["filter=sof"], "did you mean 'soft'?"),
        ("defaults: [override /nothing: here]", ["filter=soft"], "Could not override"),
    ],
)
def test_choices_of_ones_own_are_suggested_and_refused_in_one_line(
    text, overrides, suggestion, tmp_path
):
    write_filter(tmp_path, text)
    assert suggestion in refusal("--config-dir", str(tmp_path), *overrides)


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """Return ``jobs(*argv)``, which lists the configs with which a command calls its job."""
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> list:
        configs: list = []
        arguments.command(configs.append, "config", argv)
        return configs

    return run


def test_a_config_folder_of_the_user_adds_choices(jobs, tmp_path):
    write_filter(tmp_path / "own", "# @package _global_\nfilter: {name: soft, sharpness: 1}\n")
    (cfg,) = jobs("--config-dir", "own", "filter=soft", "filter.sharpness=3")
    assert cfg.filter == {"momentum": 0, "solver": "auto", "name": "soft", "sharpness": 3}
    sweep = ["-m", "filter=soft,identity", "hydra.sweep.dir=s", "hydra/launcher=basic"]
    first, second = jobs("--config-dir=own", *sweep)
    assert first.filter.name == "soft"
    assert second.filter.name == "identity"


@pytest.mark.process
def test_the_script_finds_modules_in_the_current_folder(tmp_path):
    (tmp_path / "mine.py").write_text("def double(sigma):\n    return 2 * sigma\n")
    script = Path(sys.executable).with_name("rdm-solo")
    options = ["preview", "filter=online_log1p", "filter.function=mine.double", "out=drawn"]
    process = subprocess.run([script, *options], cwd=tmp_path)
    assert process.returncode == 0
    assert list(tmp_path.glob("drawn/*"))


@pytest.mark.parametrize("path", ["a=b", "p=-0.5/x=1", "'a,b'", "a b"])
def test_paths_with_special_characters_are_read_as_passed(path, jobs):
    (cfg,) = jobs(f"dataset.root={path}", "dataset=cifar10")
    assert cfg.dataset.root == path.strip("'")


def test_ctrl_c_exits_with_the_status_that_shells_report():
    with pytest.raises(SystemExit, match="130"), terminal.errors_without_traceback():
        raise KeyboardInterrupt


@pytest.fixture
def closed_pipe():
    """Return the end to write to of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    [
        ["rdm_solo"],
        ["rdm_solo.paper"],
        ["rdm_solo.train", "--help", "all"],
        ["rdm_solo.train", *SMALL],
    ],
)
def test_a_command_ends_quietly_if_nobody_reads_its_output(arguments, tmp_path, closed_pipe):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=tmp_path,
        env=environment,
        stdout=closed_pipe,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert not process.stderr
    assert process.returncode == 141  # as shells report SIGPIPE


def test_other_closed_connections_are_errors(closed_pipe):
    with pytest.raises(BrokenPipeError), terminal.errors_without_traceback():
        os.write(closed_pipe, b"to nobody")


def test_the_version_is_printed(tmp_path, typed):
    out = typed("rdm_solo", "--version", cwd=tmp_path)
    assert out.returncode == 0
    assert out.stdout == f"rdm-solo {__version__}\n"


def test_hydras_pages_are_printed_once(tmp_path, typed):
    out = typed("rdm_solo", "linear", "--info", "defaults-tree", cwd=tmp_path)
    assert out.stdout.count("Defaults Tree") == 1
