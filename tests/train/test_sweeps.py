"""A sweep starts each run as a command, under Hydra's launchers and ours."""

import itertools
import json
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
from rdm_solo.train import resume, standby, sweep

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


# Stands in for Python: writes a line when a process starts, and one when it receives its options.
STAND_IN = """#!/bin/sh
echo "start $$" >> log
shift 2
if [ "$1" = --standby ]; then
    read -r options < /dev/fd/$2
    [ "$options" ] || exit 0
else
    options="$*"
fi
echo "run $$ $options" >> log
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch) -> Callable[[str], None]:
    """Return a function that makes sweeps start a script, whose last lines it takes."""

    def write(lines: str) -> None:
        script = tmp_path / "python.sh"
        script.write_text(STAND_IN + lines)
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return write


def log(folder: Path) -> list[list[str]]:
    """Return what the processes of a sweep have written, as words."""
    lines = (folder / "log").read_text().splitlines()
    return [line.split(maxsplit=2) for line in lines]


def test_ctrl_c_on_a_sweep_prints_how_to_resume_it_and_leaves_no_process(tmp_path, train, stand_in):
    """A terminal sends Ctrl-C to the sweep and to its run, for which a script stands in here."""
    stand_in(f"{WAIT}\nwait_for 2\nkill -INT $PPID\nexit 130\n")
    out = train("-m", *RUN, "seed=0,1", "hydra.sweep.dir=sweep")
    assert out.returncode == 130
    assert "to resume the sweep: rdm-solo train resume=sweep\n" in out.stdout
    assert len(list((tmp_path / "sweep").glob("*_seed=*"))) == 1
    for word, number, *_ in log(tmp_path):
        if word == "start":
            with pytest.raises(ProcessLookupError):
                os.kill(int(number), 0)


# Waits, at most for a while, until as many processes have started as its argument says.
WAIT = """
wait_for() {
    for attempt in $(seq 100); do
        [ $(grep -c ^start log) -ge $1 ] && break
        sleep 0.1
    done
}
"""


@pytest.mark.parametrize("launcher", ["basic", pytest.param("local", marks=pytest.mark.long)])
def test_the_next_run_s_process_starts_while_a_run_trains(launcher, tmp_path, train, stand_in):
    stand_in(f"""{WAIT}
number=$(grep -c ^run log)
[ $number = 3 ] || wait_for $((number + 1))
echo "end $$" >> log
echo "error: run $number" >&2
exit 1
""")
    options = [f"launcher={launcher}", "seed=0,1,2", "hydra.sweep.dir=sweep"]
    if launcher == "local":
        options.append("hydra.launcher.jobs=1")
    out = train("-m", *RUN, *options)
    assert out.returncode == 1
    lines = log(tmp_path)
    numbers = [line[1] for line in lines if line[0] == "run"]
    assert len(set(numbers)) == 3
    for number, following in itertools.pairwise(numbers):
        assert lines.index(["start", following]) < lines.index(["end", number])
    received = [line[1:] for line in lines if line[0] == "run"]
    for seed, (_, options) in enumerate(received):
        assert f"seed={seed}" in options
        assert f"seed={seed}: run {seed + 1}\n" in out.stdout


def test_a_standby_that_has_died_is_replaced(tmp_path, stand_in):
    stand_in("")
    with standby.Starter(runs=2) as starter:
        starter.start(["first"], os.environ, str(tmp_path)).communicate()
        (waiting,) = starter.standbys
        waiting.process.kill()
        waiting.process.wait()
        second = starter.start(["second"], os.environ, str(tmp_path))
        second.communicate()
    assert ["run", str(second.pid), "second"] in log(tmp_path)


def test_a_standby_is_used_only_in_its_environment(tmp_path, stand_in):
    """The processes of ``launcher=local`` differ in their GPUs."""
    stand_in('echo "on $CUDA_VISIBLE_DEVICES $options" >> log')
    gpus = [{**os.environ, "CUDA_VISIBLE_DEVICES": str(number)} for number in range(2)]
    with standby.Starter(runs=4, at_once=2) as starter:
        for number in (0, 1, 1, 0):
            options = [f"for={number}"]
            starter.start(options, gpus[number], str(tmp_path)).communicate()
    lines = log(tmp_path)
    for word, number, *options in lines:
        if word == "on":
            assert f"for={number}" in options[0]
    words = [word for word, *_ in lines]
    assert words.count("start") == words.count("on") == 4


def test_a_standby_of_no_use_is_ended(tmp_path, stand_in):
    """Another share of the devices has started the last run."""
    stand_in("")
    with standby.Starter(runs=3, at_once=2) as starter:
        starter.start(["0"], {"SHARE": "0"}, str(tmp_path)).communicate()
        (waiting,) = starter.standbys
        starter.start(["1"], {"SHARE": "1"}, str(tmp_path)).communicate()
        starter.start(["2"], {"SHARE": "1"}, str(tmp_path)).communicate()
        assert not starter.standbys
        assert waiting.process.returncode is not None


def test_a_standby_takes_the_options_of_its_run_or_exits(monkeypatch):
    options = ["p=-1", "name=é\n'", "path=\udcff"]
    for sent in (json.dumps(options), ""):
        reading, writing = os.pipe()
        with open(writing, "w") as pipe:
            pipe.write(sent)
        monkeypatch.setattr(sys, "argv", ["train", standby.FLAG, str(reading)])
        if sent:
            standby.wait_for_options()
            assert sys.argv == ["train", *options]
        else:
            with pytest.raises(SystemExit) as stop:
                standby.wait_for_options()
            assert not stop.value.code


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
