"""Ctrl-C while a command starts: one line and status 130, as real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        (["train"], (0.02, 1.5)),
        (["report", "run"], (0.3,)),
        (["export", "run=run"], (1.0,)),
        (["bench", "filters"], (0.8,)),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_ctrl_c_in_the_first_seconds_is_one_line(arguments, after, tmp_path):
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
        os.killpg(process.pid, signal.SIGINT)
        said, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (130, ""), (seconds, said, error[-2000:])
        assert said.splitlines()[-1] == "Ctrl-C: the command ends", seconds
