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

RESNET = [o for o in SMALL if not o.startswith("backbone.")]
RESNET += ["backbone.name=resnet18", "dataset.num_train=16", "dataset.num_val=16", "knn.k=5"]
RESNET += ["max_epochs=1", "scheduler.warmup_epochs=0"]
RESNET += ["backbone.kwargs.zero_init_residual=false"]


def exported(folder: Path, *argv: str) -> Path:
    return exporting.export(arguments.compose("export", [f"run={folder}", *argv]))


@pytest.fixture(scope="module")
def byol(tmp_path_factory):
    folder = tmp_path_factory.mktemp("byol")
    run(folder, *SMALL, "method=byol", "optimizer.name=sgd")
    return folder


def features(backbone: torch.nn.Module, size: int = 32) -> torch.Tensor:
    x = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return backbone.eval()(x)


@pytest.mark.parametrize("stem", ["small", pytest.param("imagenet", marks=pytest.mark.long)])
def test_torchvision_takes_the_weights_and_gives_the_features(stem, tmp_path, monkeypatch):
    run(tmp_path, *RESNET, f"backbone.stem={stem}")
    out = exported(tmp_path)
    ours = features(load(tmp_path / "checkpoints" / "last.ckpt"))
    assert ours.std() > 0
    about = json.loads((out / "backbone.json").read_text())
    names: dict = {"torch": torch, "torchvision": torchvision}
    monkeypatch.chdir(out)
    exec("\n".join(about["torchvision"]), names)
    theirs = names["model"]
    keys = theirs.load_state_dict(load_file("backbone.safetensors"), strict=False)
    assert (keys.missing_keys, keys.unexpected_keys) == (["fc.weight", "fc.bias"], [])
    theirs.fc = torch.nn.Identity()
    assert torch.equal(features(theirs), ours)
    with safe_open(out / "backbone.safetensors", "pt") as file:
        assert json.loads(file.metadata()["rdm_solo"]) == about
    assert (about["backbone"]["name"], about["backbone"]["stem"]) == ("resnet18", stem)
    assert (about["epoch"], about["dataset"], about["method"]) == (1, "synthetic", "simsiam")


def test_a_file_holds_the_online_network(typed, byol, tmp_path):
    done = typed("rdm_solo.export", f"run={byol}", "out=here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in tmp_path.rglob("*")}
    assert names == {"here", "backbone.json", "backbone.pth", "backbone.safetensors"}
    ours = load(byol / "checkpoints" / "last.ckpt")
    state = checkpoint(byol)["state_dict"]
    name = "stem.0.weight"
    assert not torch.equal(state[f"backbone.{name}"], state[f"momentum_backbone.{name}"])
    for suffix in ("safetensors", "pth"):
        again = load(tmp_path / "here" / f"backbone.{suffix}")
        assert torch.equal(features(ours, 8), features(again, 8))
        assert torch.equal(again.state_dict()[name], state[f"backbone.{name}"])


def test_refusals(byol, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not writable"):
        exported(byol, f"out={tmp_path / 'file' / 'x'}")
    with pytest.raises(UserError, match="run=RUN_FOLDER"):
        exporting.export(arguments.compose("export", []))
