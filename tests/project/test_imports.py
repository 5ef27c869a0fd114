"""Importing is cheap and changes nothing in the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

CODE = """
import atexit, json, os, signal, sys

registered = []
register = atexit.register
atexit.register = lambda function, *rest, **named: (
    registered.append(function.__module__ or ""), register(function, *rest, **named))[1]
numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def state():
    ours = [name for name in registered if name.startswith("rdm_solo")]
    return [str(signal.getsignal(n)) for n in numbers], str(sys.excepthook), dict(os.environ), ours


for library in LIBRARIES:
    __import__(library)
before = state()
__import__(MODULE)
assert state() == before
print(json.dumps([name for name in sys.modules if name.split(".")[0] == "rdm_solo"]))
"""


@pytest.mark.parametrize(
    ("module", "most"),
    [("rdm_solo", 5), ("rdm_solo.filters", 12), ("rdm_solo.callbacks.diagnostics", 24)],
)
def test_an_import_loads_few_modules_and_has_no_side_effects(module, most):
    libraries = ["torch", "torchmetrics", "pytorch_lightning"] if "." in module else []
    code = CODE.replace("LIBRARIES", repr(libraries)).replace("MODULE", repr(module))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) <= most
