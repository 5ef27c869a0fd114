"""A sweep starts each run as a command, under Hydra's launchers and ours."""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, command
from omegaconf import OmegaConf
from support.small_runs import SMALL, read_summary, rows, run

from rdm_solo.runs.folder import load
from rdm_solo.train import resume, sweep

RUN = [*SMALL, "filter=target_pow", "max_epochs=1", "scheduler.warmup_epochs=0"]
RUN += ["trainer.enable_progress_bar=false"]
FIRST = "0_simsiam_target_pow_p=-1_seed=0"
REFUSED = "1_simsiam_target_pow_p=9_seed=0"
THIRD = "2_simsiam_target_pow_p=-0.5_seed=0"


def loss(folder: Path) -> float:
    return rows(folder)[-1]["train/loss"]


@pytest.mark.process
@pytest.mark.parametrize(
    "launcher",
    [
        "launcher=basic",
        pytest.param("launcher=local", marks=pytest.mark.long),
        pytest.param("hydra/launcher=joblib", marks=pytest.mark.long),
        pytest.param("hydra/launcher=submitit_local", marks=pytest.mark.long),
    ],
)
def test_a_sweep_trains_the_missing_runs_returns_their_metrics_and_names_those_that_fail(
    launcher, tmp_path, train, monkeypatch
):
    """The first run of this sweep has finished, the second is refused, and the third is missing."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    metrics = {}
    start_run = sweep.start

    def start(hydra, *arguments):
        metrics[hydra.job.num] = start_run(hydra, *arguments)
        return metrics[hydra.job.num]

    monkeypatch.setattr(sweep, "start", start)
    folder = tmp_path / "sweep"
    run(folder / FIRST, *RUN, "p=-1")
    table = folder / FIRST / "metrics.csv"
    written = table.stat().st_mtime_ns
    # With a flag such as --config-dir, no run is checked before the first one starts.
    options = [*RUN, "p=-1,9,-0.5", launcher, "hydra.sweep.dir=sweep"]
    options += ["hydra/job_logging=default", "optimized_metric=train/loss"]
    out = train("-m", "--config-dir", str(tmp_path), *options)
    assert out.returncode == 1
    assert "σ^-0.5" in out.stdout
    assert f"failed: {REFUSED}: p must be a number" in out.stdout
    assert table.stat().st_mtime_ns == written
    run(tmp_path / "alone", *RUN, "p=-0.5")
    assert loss(folder / THIRD) == loss(tmp_path / "alone")
    if launcher in ("launcher=basic", "launcher=local"):  # the others call start in other processes
        expected = {0: loss(folder / FIRST), 1: math.nan, 2: loss(folder / THIRD)}
        assert metrics == pytest.approx(expected, nan_ok=True)
    assert "Starting simsiam" in (folder / THIRD / "rdm_solo.log").read_text()

    recorded = resume.expand(["resume=sweep", "p=-1"])
    assert recorded[0] == "-m"
    assert {*RUN, "p=-1", f"hydra.sweep.dir='{folder}'"} <= {*recorded}


@pytest.mark.long
@pytest.mark.process
def test_a_run_of_a_sweep_prints_one_line_and_the_table_comes_last(tmp_path):
    options = [*RUN, "seed=0,1", "hydra.sweep.dir=sweep"]
    out = command("rdm_solo.train", "-m", *options, cwd=tmp_path)
    assert out.returncode == 0
    lines = []
    for line in out.stdout.splitlines():
        if line and not line.startswith(("[", "warning: ")):  # Hydra's begin with the time
            lines.append(line)
    *runs, head, row, last = lines
    names = [line.partition(":")[0] for line in runs]
    folders = sorted((tmp_path / "sweep").glob("*_seed=*"))
    assert names == [folder.name for folder in folders]
    for line, folder in zip(runs, folders):
        assert read_summary(folder)["outcome"] in line
    assert head.split()[-1] == "health"
    answer, _, _ = load(folders[0]).health.answer.partition(":")
    assert answer in row
    assert last.endswith("rdm-solo report sweep")


def test_ctrl_c_on_a_sweep_prints_how_to_resume_it_and_leaves_no_process(
    tmp_path, train, monkeypatch
):
    """A terminal sends Ctrl-C to the sweep and to its run, for which a script stands in here."""
    script = tmp_path / "python.sh"
    # The sweep reads the run's output before Ctrl-C comes.
    script.write_text("#!/bin/sh\necho $$ >> log\nsleep 2\nkill -INT $PPID\nexit 130\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    out = train("-m", *RUN, "seed=0,1", "hydra.sweep.dir=sweep")
    assert out.returncode == 130
    assert "to resume the sweep: rdm-solo train resume=sweep\n" in out.stdout
    assert len(list((tmp_path / "sweep").glob("*_seed=*"))) == 1
    (process,) = (tmp_path / "log").read_text().split()
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)


@pytest.fixture
def refused(tmp_path, train) -> Callable[[str], str]:
    """Resume a stranger's folder whose sweep has another option, and return the error."""

    def resume_with(option: str) -> str:
        values = {"hydra": {"overrides": {"task": [*RUN, option]}}}
        (tmp_path / "sweep").mkdir(exist_ok=True)
        OmegaConf.save(OmegaConf.create(values), tmp_path / "sweep" / "multirun.yaml")
        out = train("resume=sweep")
        assert out.returncode == 2
        assert out.stderr.startswith("error: ")
        return out.stderr

    return resume_with


@pytest.mark.parametrize(
    "option", ["+callbacks.mine._target_=os.system", "filter.function=os.system,pow"]
)
def test_a_stranger_s_sweep_cannot_name_what_is_run(option, refused, tmp_path):
    refused(option)
    assert [path.name for path in tmp_path.rglob("*")] == ["sweep", "multirun.yaml"]


def test_a_stranger_s_sweep_writes_nothing_through_a_link(refused, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / FIRST).symlink_to(tmp_path / "outside")
    assert "leads out" in refused("p=-1")
    assert not list((tmp_path / "outside").iterdir())
