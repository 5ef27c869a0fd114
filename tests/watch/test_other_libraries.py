"""docs/frameworks.md's loops that need another library or several processes."""

import os
import re

import pytest
from conftest import ROOT, command
from support.small_runs import read_summary

from rdm_solo import runs

# Where .ci/run has put the libraries, without their dependencies.
PACKAGES = os.environ.get("RDM_SOLO_OTHER_PACKAGES")
PAGE = (ROOT / "docs" / "frameworks.md").read_text()
LOOPS = re.findall(r"^```python (\w+)\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.process
@pytest.mark.skipif(not PACKAGES, reason="the libraries are not here (.ci/run brings them)")
@pytest.mark.parametrize(("library", "code"), LOOPS, ids=[library for library, _ in LOOPS])
def test_a_loop_of_the_page_runs_without_a_warning(tmp_path, library, code):
    (tmp_path / "code.py").write_text(code)
    launcher = ["support.other_libraries", PACKAGES]
    if library == "torchrun":
        launcher = ["torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    path = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    done = command(*launcher, "code.py", cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (tmp_path / "runs").iterdir()
    run = runs.load(folder)
    assert (run.epochs, run.missing) == (2, ())
    assert run.last("erank/online") > 1
    assert run.last("train/loss") is not None
    assert read_summary(folder)["warnings"] == []
