"""Exported backbones: torchvision takes them, and they give the run's own features to the bit."""

import json
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import load_file
from support.small_methods import load
from support.small_runs import SMALL, checkpoint, run

from rdm_solo.cli import arguments
from rdm_solo.evaluate import exporting
from rdm_solo.ground.errors import UserError

RESNET = [
    *(option for option in SMALL if not option.startswith("backbone.")),
    "backbone.name=resnet18",
    "backbone.kwargs.zero_init_residual=false",
    "dataset.num_train=16",
    "dataset.num_val=16",
    "knn.k=5",
    "max_epochs=1",
    "scheduler.warmup_epochs=0",
]


def export(*argv: str) -> Path:
    return exporting.export(arguments.compose("export", argv))


@pytest.fixture(scope="module")
def byol(tmp_path_factory):
    folder = tmp_path_factory.mktemp("byol")
    run(folder, *SMALL, "method=byol", "optimizer.name=sgd")
    return folder


def features(backbone: torch.nn.Module, size: int = 32) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(3, 3, size, size, generator=rng)
    with torch.no_grad():
        return backbone.eval()(x)


@pytest.mark.parametrize("stem", ["small", pytest.param("imagenet", marks=pytest.mark.long)])
def test_torchvision_takes_the_weights_and_gives_the_features(stem, tmp_path, monkeypatch):
    run(tmp_path, *RESNET, f"backbone.stem={stem}")
    out = export(f"run={tmp_path}")
    ours = features(load(tmp_path / "checkpoints" / "last.ckpt"))
    assert ours.std() > 0
    monkeypatch.chdir(out)
    metadata = json.loads(Path("backbone.json").read_text())
    names: dict = {"torch": torch, "torchvision": torchvision}
    exec("\n".join(metadata["torchvision"]), names)
    model = names["model"]
    state = load_file("backbone.safetensors")
    keys = model.load_state_dict(state, strict=False)
    assert keys.missing_keys == ["fc.weight", "fc.bias"]
    assert keys.unexpected_keys == []
    model.fc = torch.nn.Identity()
    assert torch.equal(features(model), ours)
    with safe_open("backbone.safetensors", "pt") as file:
        assert json.loads(file.metadata()["rdm_solo"]) == metadata
    assert metadata["backbone"]["stem"] == stem
    assert metadata["epoch"] == 1
    assert metadata["dataset"] == "synthetic"
    assert metadata["method"] == "simsiam"


def test_a_file_holds_the_online_network(typed, byol, tmp_path):
    process = typed("rdm_solo.export", f"run={byol}", "out=here", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    (out,) = tmp_path.iterdir()
    ours = load(byol / "checkpoints" / "last.ckpt")
    state = checkpoint(byol)["state_dict"]
    weight = state["backbone.stem.0.weight"]
    assert not torch.equal(weight, state["momentum_backbone.stem.0.weight"])
    for suffix in ("safetensors", "pth"):
        exported = load(out / f"backbone.{suffix}")
        assert torch.equal(features(ours, 8), features(exported, 8))
        assert torch.equal(exported.stem[0].weight, weight)


def test_the_option_that_is_missing_or_cannot_be_written_is_named(byol, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="out="):
        export(f"run={byol}", f"out={tmp_path / 'file' / 'x'}")
    with pytest.raises(UserError, match="run=RUN_FOLDER"):
        export()
