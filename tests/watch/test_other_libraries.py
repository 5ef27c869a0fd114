"""docs/frameworks.md's code with lightly and stable-pretraining."""

import os
import re

import pytest
from conftest import ROOT, command

from rdm_solo import runs

# Where .ci/run has put the libraries, without their dependencies.
PACKAGES = os.environ.get("RDM_SOLO_OTHER_PACKAGES")


@pytest.mark.process
@pytest.mark.skipif(not PACKAGES, reason="the libraries are not here (.ci/run brings them)")
@pytest.mark.parametrize(
    ("library", "name"), [("lightly", "byol"), ("stable_pretraining", "stable")]
)
def test_the_pages_code_runs(tmp_path, library, name):
    page = (ROOT / "docs" / "frameworks.md").read_text()
    (code,) = re.findall(rf"^```python {library}\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "code.py").write_text(code)
    path = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    done = command("support.other_libraries", PACKAGES, "code.py", cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr[-3000:]
    run = runs.load(tmp_path / "runs" / name)
    assert (run.method, run.epochs, run.missing) == ("BYOL", 2, ())
    assert run.description.momentum
    assert run.last("erank/online") != run.last("erank/target")
    assert run.last("positive_distance/target") > 0
    assert run.spectra["rows"].tolist() == [8 * 2 * 32] * 2
