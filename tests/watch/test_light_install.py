"""A watch and its report with the base dependencies alone.

Packages are made to look absent here; `.ci/run` has an environment without them.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import ROOT

from rdm_solo import runs


@pytest.mark.long
@pytest.mark.process
def test_they_need_nothing_that_training_needs(tmp_path):
    script = ROOT / "tests" / "support" / "light_install.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run"), "--blocked"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert runs.load(tmp_path / "run").epochs == 3
