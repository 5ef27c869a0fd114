"""Ctrl-C and SIGTERM while a command starts or ends, as real processes: one line, no crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from support.drills import MANY, record

WORDS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "sent", "after"),
    [
        (["train"], signal.SIGINT, (0.02, 1.5)),
        (["train"], signal.SIGTERM, (0.02, 1.5)),
        (["report", "run"], signal.SIGINT, (0.3,)),
        (["export", "run=run"], signal.SIGTERM, (1.0,)),
        (["bench", "filters"], signal.SIGINT, (0.8,)),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_signal_in_the_first_seconds_is_one_line(arguments, sent, after, tmp_path):
    """Sent to the group, as a terminal does, once this package begins to be imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'rdm_solo.' + sys.orig_argv[2].split('.')[1]:\n"
        "            sys.meta_path.remove(self)\n"
        "            print('begun', flush=True)\n"
        "sys.meta_path.insert(0, Watch())\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    for seconds in after:
        process = subprocess.Popen(
            [sys.executable, "-m", f"rdm_solo.{arguments[0]}", *arguments[1:]],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout.readline() == "begun\n"
        time.sleep(seconds)
        os.killpg(process.pid, sent)
        said, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (128 + sent, ""), (seconds, said, error[-2000:])
        assert said.splitlines()[-1] == f"{WORDS[sent]}: the command ends", seconds


def check_one_line(module: str, sent: signal.Signals, path: Path) -> None:
    """The module, which may lie in ``path``, gets the signal once it says that it has begun."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "begun\n"
    process.send_signal(sent)
    said, error = process.communicate(timeout=60)
    assert (process.returncode, said) == (128 + sent, f"{WORDS[sent]}: the command ends\n"), error
    assert error == ""


@pytest.mark.process
@pytest.mark.parametrize("sent", WORDS, ids=WORDS.get)
def test_a_library_that_aborts_on_an_exception_while_it_is_loaded_is_no_crash(sent, tmp_path):
    """Native code did, once in 120 commands: the status was SIGABRT's."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "class Library:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'rdm_solo.train':\n"
        "            print('begun', flush=True)\n"
        "            try: time.sleep(30)\n"
        "            except BaseException: os.abort()\n"
        "sys.meta_path.insert(0, Library())\n"
    )
    check_one_line("rdm_solo.train", sent, tmp_path)


@pytest.mark.process
@pytest.mark.parametrize("sent", WORDS, ids=WORDS.get)
def test_a_library_that_makes_an_error_of_the_exit_does_not_change_the_status(sent, tmp_path):
    ends = tmp_path / "rdm_solo_ends"
    ends.mkdir()
    (ends / "__init__.py").write_text("import rdm_solo\n")
    (ends / "__main__.py").write_text(
        "import time\n"
        "try:\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(30)\n"
        "except BaseException as error:\n"
        "    raise RuntimeError('unexpected pos') from error\n"
    )
    check_one_line("rdm_solo_ends", sent, tmp_path)


@pytest.mark.drill
@pytest.mark.process
@pytest.mark.parametrize("sent", WORDS, ids=WORDS.get)
def test_a_signal_once_all_is_written_is_no_crash(sent, tmp_path):
    """Python takes half a second to end with torch in it."""
    moments = (0.0, 0.2) if not MANY else (0.0, 0.0, 0.0, 0.02, 0.05, 0.2, 0.4)
    ends = tmp_path / "rdm_solo_ends"
    ends.mkdir()
    (ends / "__init__.py").write_text("import rdm_solo\n")
    (ends / "__main__.py").write_text(
        "from rdm_solo.train import signals\n"
        "with signals.handled(): import torch\n"
        "print('all is written', flush=True)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    for seconds in moments:
        process = subprocess.Popen(
            [sys.executable, "-m", "rdm_solo_ends"],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "all is written\n"
        time.sleep(seconds)
        process.send_signal(sent)
        said, error = process.communicate(timeout=60)
        assert process.returncode in (0, 128 + sent), (seconds, said, error[-2000:])
        assert process.returncode == 0 or said, seconds
        assert error == "", seconds
    record(f"{WORDS[sent]} to a command that has written everything", len(moments), len(moments))
