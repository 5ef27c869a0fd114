"""What works with the base dependencies alone, and what the other commands say.

Packages are made to look absent here; `.ci/run` has an environment without them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, command

from rdm_solo import runs
from rdm_solo.messages import OF_TRAINING

SCRIPT = Path(__file__).parents[1] / "support" / "light_install.py"


@pytest.mark.long  # .ci/run does the same in an environment without these packages
@pytest.mark.process
def test_a_watch_and_its_report_need_nothing_of_trainings(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "run"), "--blocked"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("\nwatched, reported; effective rank 4.0\n")
    assert runs.load(tmp_path / "run").epochs == 3


@pytest.mark.process
@pytest.mark.parametrize(("name", "absent"), [("train", "hydra"), ("shards", "torchvision")])
def test_a_command_names_what_to_install_in_a_sentence(tmp_path, name, absent):
    block = f"import sys; sys.modules[{absent!r}] = None"
    (tmp_path / "sitecustomize.py").write_text(block)
    done = command(f"rdm_solo.{name}", cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {absent} is not installed, which this command needs: pip ")
    assert "pip install 'rdm-solo[train]'" in line
    assert "pip install --no-deps solo-learn==1.0.2" in line


def test_the_extra_has_what_the_sentence_is_said_of():
    """By the names under which they are imported."""
    text = (ROOT / "pyproject.toml").read_text()
    extra = text.partition("\ntrain = [")[2].partition("]")[0]
    imported = {"hydra-core": "hydra", "scikit-learn": "sklearn"}
    named = [line.strip().strip('",').partition(">")[0] for line in extra.split("\n")]
    found = {imported.get(name, name) for name in named if name}
    own = {"pytorch_lightning", "lightning_fabric"}  # which come with others
    assert found == set(OF_TRAINING) - own
