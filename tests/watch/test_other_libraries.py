"""docs/frameworks.md's loops are silent as they stand there, and mistakes in them are found."""

import os
import re

import pytest
from conftest import ROOT, command
from support.small_runs import read_summary

from rdm_solo import runs

# Where .ci/run has put the libraries, without their dependencies.
PACKAGES = os.environ.get("RDM_SOLO_OTHER_PACKAGES", "")
PAGE = (ROOT / "docs" / "frameworks.md").read_text()
# The library and the code by the name of the run's folder.
LOOPS = {}
for library, code in re.findall(r"^```python ?(\w*)\n(.*?)^```", PAGE, re.M | re.S):
    name = re.search(r'"runs/(\w+)"', code)[1]
    LOOPS[name] = library, code
del LOOPS["lightning"]  # with stop=True, it ends at the first warning
PREDICTOR = "nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))"
NO_MOMENTUM = {"momentum_start": 0.0, "momentum_end": 0.0}
# By loop: the code that is replaced, by what, and the check that finds it.
MISTAKES = [
    ("ddp", ".detach()", "", "stop-gradient"),
    ("ddp", "lr=0.1", "lr=10", "learning rate"),
    ("simsiam", "z.detach()", "z", "stop-gradient"),
    ("simsiam", "SimSiamPredictionHead(16, 8, 16)", "nn.Identity()", "asymmetry"),
    ("dino", ".requires_grad_(False)", "", "stop-gradient"),
    ("dino", "m=0.99", "m=0.0", "copied target"),
    ("dino", "lr=1e-3", "lr=0.1", "learning rate"),
    ("ijepa", "m=0.99", "m=0.0", "copied target"),
    ("ijepa", "m=0.99", "m=1.0", "frozen target"),
    ("lightly_train", "epochs=2,", f"epochs=2, method_args={NO_MOMENTUM},", "copied target"),
    ("stable", ", TeacherStudentCallback()", "", "frozen target"),
    ("stable", '"lr": 0.1', '"lr": 10', "learning rate"),
    ("trainer", ".detach()", "", "stop-gradient"),
    ("trainer", PREDICTOR, "nn.Identity()", "asymmetry"),
    ("fabric", PREDICTOR, "nn.Identity()", "asymmetry"),
]


# Loops that need no other library run in the ordinary drills.
MISSING = pytest.mark.skipif(not PACKAGES, reason="its library is not here (see .ci/run)")
CASES = []
for name, *change in [*((name, "", "", None) for name in LOOPS), *MISTAKES]:
    mark = pytest.mark.long if LOOPS[name][0] in ("", "torchrun") else MISSING
    CASES.append(pytest.param(name, *change, marks=mark, id=f"{name}-{change[-1] or 'healthy'}"))


@pytest.mark.process
@pytest.mark.parametrize(("name", "old", "new", "check"), CASES)
def test_a_loop_of_the_page_is_silent_and_each_mistake_is_found(tmp_path, name, old, new, check):
    library, code = LOOPS[name]
    assert old in code
    (tmp_path / "code.py").write_text(code.replace(old, new))
    launcher = ["support.other_libraries", PACKAGES]
    if library == "torchrun":
        launcher = ["torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    path = f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    done = command(*launcher, "code.py", cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (tmp_path / "runs").iterdir()
    run = runs.load(folder)
    assert (run.epochs, run.missing) == (2, ())
    assert run.last("erank/online") > 1 or check
    assert run.last("train/loss") is not None
    kinds = {warning["kind"] for warning in read_summary(folder)["warnings"]}
    assert kinds == {check} - {None}
