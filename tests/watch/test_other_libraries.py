"""Models of lightly and stable-pretraining, and the page's code with them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from rdm_solo import runs

# Where .ci/run has put them, without what they depend on.
PACKAGES = os.environ.get("RDM_SOLO_OTHER_PACKAGES")
SCRIPT = Path(__file__).parents[1] / "support" / "other_libraries.py"
PAGE = ROOT / "docs" / "your-own-method.md"

# lightly's own heads in models with the part names of its examples; a step calls each branch for
# each view. Which of the parts are branches, and whether the target lags.
LIGHTLY = """
import torch
from lightly.models.modules import (
    DINOProjectionHead, MoCoProjectionHead, SimCLRProjectionHead, SimSiamPredictionHead,
    SimSiamProjectionHead,
)
from torch import nn
from rdm_solo.watch import Watch

torch.manual_seed(0)
encoder = lambda: nn.Sequential(nn.Linear(12, 32), nn.ReLU())
dino = lambda: DINOProjectionHead(32, 32, 16, 48)
MODELS = {
    "SimSiam": (
        {"backbone": encoder(), "projection_head": SimSiamProjectionHead(32, 32, 16),
         "prediction_head": SimSiamPredictionHead(16, 8, 16)},
        ["backbone", "projection_head", "prediction_head"], [],
        ("prediction_head", None, True),
    ),
    "SimCLR": (
        {"backbone": encoder(), "projection_head": SimCLRProjectionHead(32, 32, 16)},
        ["backbone", "projection_head"], [],
        ("projection_head", None, False),
    ),
    "MoCo": (
        {"backbone": encoder(), "projection_head": MoCoProjectionHead(32, 32, 16),
         "backbone_momentum": encoder(),
         "projection_head_momentum": MoCoProjectionHead(32, 32, 16)},
        ["backbone", "projection_head"], ["backbone_momentum", "projection_head_momentum"],
        ("projection_head", "projection_head_momentum", False),
    ),
    "DINO": (
        {"student_backbone": encoder(), "student_head": dino(), "teacher_backbone": encoder(),
         "teacher_head": dino()},
        ["student_backbone", "student_head"], ["teacher_backbone", "teacher_head"],
        ("student_head", "teacher_head", False),
    ),
}
for name, (parts, online, target, branches) in MODELS.items():
    with Watch(name, parts, name=name, views=2) as watch:
        assert watch.observer.branches == branches, name
        for _ in range(2):
            for views in torch.randn(4, 2, 16, 12):
                for view in views:
                    for path in (online, target):
                        x = view
                        for part in path:
                            x = parts[part](x)
                watch.step(1.0)
            watch.end_epoch()
dino, *_ = MODELS["DINO"]
names = {"online": "student_head.layers", "target": "teacher_head.layers"}
with Watch("layers", dino, **names) as watch:
    for who in ("student", "teacher"):
        dino[f"{who}_head"](dino[f"{who}_backbone"](torch.randn(16, 12)))
    watch.step()
    watch.end_epoch()
"""


def block(library: str) -> str:
    (code,) = re.findall(rf"^```python {library}\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    return code


def ran(folder: Path, code: str) -> None:
    (folder / "code.py").write_text(code)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(PACKAGES), "code.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


present = pytest.mark.skipif(
    not PACKAGES, reason="the libraries are not here (.ci/run brings them)"
)


@pytest.mark.process
@present
@pytest.mark.parametrize(
    ("library", "name"), [("lightly", "byol"), ("stable_pretraining", "stable")]
)
def test_the_pages_code_runs(tmp_path, library, name):
    ran(tmp_path, block(library))
    run = runs.load(tmp_path / "runs" / name)
    assert (run.method, run.epochs, run.missing) == ("BYOL", 2, ())
    assert run.described.momentum
    assert run.last("erank/online") != run.last("erank/target")
    assert run.last("positive_distance/target") > 0
    assert run.spectra["rows"].tolist() == [8 * 2 * 32] * 2


@pytest.mark.process
@present
def test_lightlys_models_are_known_by_their_part_names(tmp_path):
    ran(tmp_path, LIGHTLY)
    found = {name: runs.load(tmp_path / name) for name in ("SimSiam", "SimCLR", "MoCo", "DINO")}
    for run in found.values():
        assert run.spectra["rows"].tolist() == [128, 128]
        assert run.last("erank/positive") > 1
    assert found["SimCLR"].last("erank/gap") == 0
    assert found["DINO"].spectra["dimensions"].tolist() == [48, 48]
    assert runs.load(tmp_path / "layers").spectra["dimensions"].tolist() == [16]


def test_each_library_has_its_block():
    assert all(f"import {name}" in block(name) or f"from {name}" in block(name) for name in NAMES)


NAMES = ("lightly", "stable_pretraining")
