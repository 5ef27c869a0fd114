"""A watch finds each mistake in the loops of several libraries, and is silent in healthy ones."""

import os

import pytest
from conftest import ROOT, command
from support.loops import LEARNING_RATE, LOOPS, MOMENTUM, PREDICTOR, STOP_GRADIENT

from rdm_solo import runs

# Where .ci/run has put the other libraries, without their dependencies.
PACKAGES = os.environ.get("RDM_SOLO_OTHER_PACKAGES")
NEED_NOTHING = {"ddp", "dinov2", "fabric", "ijepa"}
CHECKS = {
    "healthy": set(),
    STOP_GRADIENT: {"stop-gradient"},
    PREDICTOR: {"asymmetry"},
    MOMENTUM: {"copied target"},
    LEARNING_RATE: {"learning rate"},
}


def loops():
    """Return all loops; those that need no other library run in the ordinary drills."""
    missing = pytest.mark.skipif(not PACKAGES, reason="its library is not here (see .ci/run)")
    for name in LOOPS:
        mark = pytest.mark.long if name in NEED_NOTHING else missing
        yield pytest.param(name, marks=mark)


@pytest.fixture(scope="module", params=loops())
def loop(request, tmp_path_factory):
    """Return the folder with the runs of a loop, and their names."""
    folder = tmp_path_factory.mktemp(request.param)
    arguments = ["support.loops", request.param]
    if request.param == "ddp":
        arguments = ["torch.distributed.run", "--nproc-per-node=2", "-m", *arguments]
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests"), PACKAGES]))
    done = command(*arguments, cwd=folder, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, ["healthy", *LOOPS[request.param]]


@pytest.mark.process
def test_each_mistake_is_found_and_a_healthy_loop_is_silent(loop):
    folder, names = loop
    kinds = {}
    for name in names:
        run = runs.load(folder / name)
        assert run.epochs == 2
        kinds[name] = {warning["kind"] for warning in run.summary["warnings"]}
    assert kinds == {name: CHECKS[name] for name in names}
    messages = (folder / "healthy.0.log").read_text()
    assert messages.count("\n") == 1  # the line that names the parts
