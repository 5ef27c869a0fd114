"""Importing is cheap and changes nothing in the process."""

import json
import os
import subprocess
import sys

from conftest import ROOT

# A module of ours, libraries that importing it must not load, and how many of our modules it may.
STEPS = [
    ("rdm_solo", ["torch", "omegaconf"], 5),
    ("rdm_solo.cli.option_help", ["torch", "matplotlib"], 20),
    # A mistyped option is refused in half a second. Importing torch would take several.
    ("rdm_solo.train.sweep", ["torch"], 24),
    ("rdm_solo.filters", ["torchmetrics", "pytorch_lightning"], 12),
    ("rdm_solo.theory", ["torchmetrics", "pytorch_lightning"], 16),
    # torch._dynamo alone takes longer than everything else.
    ("rdm_solo.watch", ["torch._dynamo", "torchmetrics", "torchvision", "lightning", "hydra"], 70),
    ("rdm_solo.callbacks.diagnostics", ["solo", "timm"], 24),
    ("rdm_solo.report", ["solo", "timm"], 100),
    ("rdm_solo.evaluate.figure5", ["solo", "timm"], 100),
]
LIBRARIES = {"rdm_solo.filters": ["torch"]}
LIBRARIES["rdm_solo.callbacks.diagnostics"] = ["torchmetrics", "pytorch_lightning"]
CODE = """
import importlib, json, os, signal, sys

steps, libraries = json.loads(sys.argv[1])
numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def state():
    return [str(signal.getsignal(n)) for n in numbers], str(sys.excepthook), dict(os.environ)


for module, absent, most in steps:
    for library in libraries.get(module, []):
        importlib.import_module(library)
    before = state()
    importlib.import_module(module)
    assert state() == before, module
    assert not {*absent} & {*sys.modules}, module
    loaded = [name for name in sys.modules if name.split(".")[0] == "rdm_solo"]
    assert len(loaded) <= most, (module, loaded)
    for name in loaded:
        del sys.modules[name]
"""


def test_an_import_loads_few_modules_and_has_no_side_effects():
    arguments = [sys.executable, "-c", CODE, json.dumps([STEPS, LIBRARIES])]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(arguments, env=env, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
