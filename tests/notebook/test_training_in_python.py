"""rdm_solo.fit: the command's numbers and sentences, from a Python that stays as it was."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT, command
from hydra.core.global_hydra import GlobalHydra
from support import small_runs

import rdm_solo
from rdm_solo import cli
from rdm_solo.messages import shown
from rdm_solo.notebook.options import words

TYPED = [*small_runs.QUICK[:2], *small_runs.SMALL, "method=simsiam", "filter=target_pow", "p=-0.5"]
OPTIONS: dict[str, Any] = {
    name: yaml.safe_load(value) if equals else None
    for name, equals, value in (line.partition("=") for line in TYPED)
}


def here() -> dict[str, object]:
    """What a library might change of the process that uses it."""
    return {
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "handlers": [list(logging.getLogger(name).handlers) for name in (None, "rdm_solo")],
        "levels": [logging.getLogger(name).level for name in (None, "rdm_solo")],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "arguments": list(sys.argv),
        "streams": (sys.stdout, sys.stderr, sys.excepthook),
        "threads": (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()),
        "random": (random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()),
        "hydra": GlobalHydra().is_initialized(),
        "matplotlib": dict(matplotlib.rcParams),
        "running": threading.active_count(),
    }


@pytest.mark.process
def test_it_trains_as_the_command_does_and_leaves_this_process_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = here()
    run = rdm_solo.fit(OPTIONS, folder="from python")
    assert here() == before
    said = capsys.readouterr()
    assert "epoch 2/2: loss" in said.out
    assert said.err == ""
    assert run.folder == tmp_path / "from python"
    done = command("rdm_solo.train", *TYPED, "hydra.run.dir=typed", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("metrics.csv", ".hydra/config.yaml"):
        assert (run.folder / name).read_bytes() == (tmp_path / "typed" / name).read_bytes()
    for name, values in rdm_solo.Run("typed").spectra.items():
        np.testing.assert_array_equal(values, run.spectra[name])

    # Once more: in a thread, while an event loop runs, as in Jupyter.
    async def again() -> rdm_solo.Run:
        more = {"resume": run.folder, "max_epochs": 3, "quiet": True}
        return await asyncio.to_thread(rdm_solo.fit, **more)

    assert asyncio.run(again()).epochs == 3
    assert capsys.readouterr().out == ""
    assert run.reload().epochs == 3


@pytest.mark.process
def test_what_cannot_be_run_is_the_command_s_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"did you mean 'optimizer\.lr'") as refused:
        rdm_solo.fit(optimizer={"lrr": 0.1})
    with pytest.raises(ValueError, match="there is no option") as typed:
        cli.compose("config", ["optimizer.lrr=0.1"])
    assert str(refused.value) == str(typed.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_a_quiet_run_that_breaks_says_what_it_said_last(tmp_path, monkeypatch):
    body = "return sigma / (len(sigma) < 9)"  # infinite for any batch in training
    (tmp_path / "broken.py").write_text(f"def soft(sigma, p):\n    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    options = {**OPTIONS, "filter": "online_pow", "filter.function": "broken.soft", "p": 2}
    with pytest.raises(RuntimeError, match="said last") as failed:
        rdm_solo.fit(options, folder="run", quiet=True)
    assert "returned NaN or infinity" in str(failed.value)


@pytest.mark.process
def test_a_run_that_fails_names_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="diverged") as failed:
        rdm_solo.fit({**OPTIONS, "optimizer.lr": 1e30}, folder="run", quiet=True)
    assert rdm_solo.Run(failed.value.folder).diverged == 1


def test_names_and_values_that_no_command_line_has_are_refused(tmp_path):
    for name in ("--help", "-m", "a b", "p=1", 3):
        with pytest.raises(ValueError, match="is not an option's name"):
            rdm_solo.fit({name: 1})
    for value in (torch.zeros(2), {1, 2}, object(), b"a", "two\nlines"):
        with pytest.raises(ValueError, match=r"seed must be .* got"):
            rdm_solo.fit(seed=value)
    (tmp_path / ".jobs").mkdir()
    with pytest.raises(ValueError, match=r"is the folder of a sweep; .* -m rdm_solo.train resume="):
        rdm_solo.fit(resume=tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        *(1, -0.5, 1e-7, np.float64(0.25), np.int64(3), True, False, None, "word", "a/b.c", "a b"),
        *("1", "null", "True", "it's", 'say "no"', "back\\", "a,b", "k=v", "$x", "", "[1]", "é"),
        *([1, "two", None], [], [[1], ["a,b"]], "~/here", "a: b", "# no", " ", "\\'", "{a: 1}"),
        {"schedule": "linear", "start": -0.1, "end": -0.5},
    ],
    ids=shown,
)
def test_a_value_reaches_the_config_as_it_is(value):
    """Through Hydra's own grammar, as the command reads it."""
    (line,) = words({"++trainer.mine": value})
    found = cli.compose("config", [line]).trainer.mine
    assert found == value
    assert isinstance(found, type(value)) or isinstance(value, (np.number, list, dict))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_numpy_float_is_the_number_that_it_shows(kind):
    assert words({"p": kind(-0.3), "views": [kind(1e-3), {"x": kind(2)}]}) == [
        "p=-0.3",
        "views=[0.001,{x:2.0}]",
    ]
    assert words({"p": kind("inf")}) == ["p=inf"]


@pytest.mark.parametrize("path", ["runs/p=-0.5,b", "it's", "a b", "$x{y}"])
def test_a_path_reaches_the_config_as_it_is(path):
    (line,) = words({"dataset.root": Path(path)})
    assert cli.compose("config", ["dataset=folder", line]).dataset.root == path


@contextlib.contextmanager
def going_on(folder: Path, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A Python that trains by fit, once two epochs have ended."""
    code = f"""
import rdm_solo
try:
    rdm_solo.fit({ {**OPTIONS, "max_epochs": 10_000, **options}!r}, folder="run")
except KeyboardInterrupt:
    print("KeyboardInterrupt")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        **{"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True},
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("epoch 2/"):
                break
        assert process.poll() is None, "".join(lines)
        yield process
    finally:
        process.kill()
        process.communicate()


def processes_of(folder: Path) -> list[str]:
    """The command lines of processes that work in that folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").resolve() == folder.resolve():
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended
            pass
    return found


@pytest.mark.process
def test_ctrl_c_ends_the_run_in_order(tmp_path):
    with going_on(tmp_path) as python:
        python.send_signal(signal.SIGINT)
        said, _ = python.communicate(timeout=60)
    assert said.endswith("KeyboardInterrupt\n")
    assert "to go on: python -m rdm_solo.train" in said
    assert rdm_solo.Run(tmp_path / "run").summary["stopped"] == "Ctrl-C"


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="lists processes as Linux does")
@pytest.mark.long
def test_all_processes_of_a_run_end_in_order_when_python_is_killed(tmp_path):
    ddp = {"trainer": "ddp", "trainer.accelerator": "cpu", "trainer.devices": 2}
    with going_on(tmp_path, **ddp) as python:
        assert len(processes_of(tmp_path)) >= 3
        python.kill()
        python.wait()
        until = time.monotonic() + 60
        while processes_of(tmp_path) and time.monotonic() < until:
            time.sleep(0.2)
        assert not processes_of(tmp_path)
    assert rdm_solo.Run(tmp_path / "run").summary["stopped"] == "SIGTERM"
