"""Backbones out of real files: of either solo-learn, torchvision's, wrapped, broken, hostile."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file
from support.backbones import load
from support.foreign_method import as_it_is

from rdm_solo.lightning import pl
from rdm_solo.methods import solo_learn, weight_files
from rdm_solo.methods.weight_files import Spec
from rdm_solo.runs import saved_config

SMALL = Spec("small_resnet", "small", {"in_channels": 1, "width": 4})


def weights(spec: Spec, seed: int = 0) -> dict[str, torch.Tensor]:
    """A backbone's state with every value drawn, running statistics included."""
    rng = torch.Generator().manual_seed(seed)
    state = weight_files.build(spec).state_dict()
    return {
        name: torch.rand(value.shape, generator=rng) + 0.5 if value.is_floating_point() else value
        for name, value in state.items()
    }


def same(backbone: torch.nn.Module, state: dict[str, torch.Tensor]) -> bool:
    loaded = backbone.state_dict()
    return set(loaded) == set(state) and all(torch.equal(loaded[n], state[n]) for n in state)


def plain_config(method: str) -> object:
    """What solo-learn's own class is built from, an 18-layer ResNet with the CIFAR stem."""
    kwargs = {"proj_hidden_dim": 8, "proj_output_dim": 8, "pred_hidden_dim": 8}
    momentum = {"base_tau": 0.99, "final_tau": 1.0, "classifier": False}
    return OmegaConf.create(
        {
            "method": {"name": method, "kwargs": kwargs}
            | ({"momentum": momentum} if method == "byol" else {}),
            "backbone": {"name": "resnet18", "stem": "small", "kwargs": {}},
            "dataset": {"num_classes": 3, "num_large_crops": 2, "num_small_crops": 0},
            "optimizer": {"lr": 0.1, "weight_decay": 0.0, "classifier_lr": 0.1},
            "max_epochs": 1,
            "batch_size": 2,
        }
    )


@pytest.mark.parametrize("method", ["simsiam", "byol"])
def test_a_checkpoint_of_solo_learns_own_class(method, tmp_path):
    model = as_it_is(method, plain_config(method))
    prefix = "backbone." if solo_learn.CURRENT else "encoder."
    state = model.state_dict()
    for value in state.values():
        if value.is_floating_point():
            value.uniform_(0.5, 1.5)
    assert any(name.startswith(prefix) for name in state)
    assert (method == "byol") == any(name.startswith("momentum_" + prefix) for name in state)
    # As Lightning writes it, and with what solo-learn's schedulers and entry points leave in it.
    trainer = pl.Trainer(logger=False, accelerator="cpu", barebones=True)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(tmp_path / "solo.ckpt", weights_only=True)
    saved = torch.load(tmp_path / "solo.ckpt", weights_only=True)
    saved["epoch"], saved["global_step"] = 7, 56
    saved["hyper_parameters"] = OmegaConf.create({"backbone": {"name": "resnet18"}})
    saved["datamodule_hyper_parameters"] = pl.utilities.parsing.AttributeDict(batch_size=2)
    saved["lr_schedulers"] = [{"lr_lambdas": functools.partial(print, 1)}]
    saved["args"] = argparse.Namespace(encoder="resnet18", tags={1, 2})
    torch.save(saved, tmp_path / "solo.ckpt")
    found = weight_files.read(tmp_path / "solo.ckpt")
    assert (found.epoch, found.step) == (8, 56)
    own = {n[len(prefix) :]: value for n, value in state.items() if n.startswith(prefix)}
    backbone = weight_files.load(found, weight_files.known(found))
    assert same(backbone, own)
    assert not backbone.training
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


@pytest.mark.parametrize(
    "prefix", ["", "backbone.", "encoder.", "module.encoder.", "model.backbone.", "_orig_mod."]
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_every_prefix_and_wrapper(prefix, wrapped, tmp_path):
    state = weights(SMALL)
    saved = OrderedDict((prefix + name, value) for name, value in state.items())
    if "backbone." in prefix or "encoder." in prefix:
        saved["momentum_" + prefix + "stem.0.weight"] = torch.zeros(1)
        saved["projector.0.weight"] = saved["classifier.weight"] = torch.zeros(2, 2)
    torch.save({"state_dict": saved} if wrapped else saved, tmp_path / "weights.pth")
    assert same(load(tmp_path / "weights.pth"), state)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_torchvisions_own_file_gives_torchvisions_features(name, suffix, tmp_path):
    import torchvision

    torch.manual_seed(0)
    theirs = getattr(torchvision.models, name)(num_classes=5).eval()
    path = tmp_path / f"weights.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(theirs.state_dict(), path)
    ours = load(path)
    theirs.fc = torch.nn.Identity()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize(
    "spec", [SMALL, Spec("resnet18", "small"), Spec("resnet18"), Spec("resnet50")], ids=str
)
def test_a_backbone_is_recognised_by_its_shapes(spec):
    assert weight_files.guess(weight_files.build(spec).state_dict()) == spec


@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "encoder."])
@pytest.mark.parametrize("stem", ["small", "imagenet"])
def test_a_stem_that_is_assumed_is_named(prefix, stem, tmp_path, caplog):
    state = weights(Spec("resnet18", stem))
    torch.save({prefix + name: value for name, value in state.items()}, tmp_path / "a.pt")
    found = weight_files.read(tmp_path / "a.pt")
    backbone = weight_files.load(found, weight_files.known(found))
    assumed = weight_files.assumed(found, weight_files.known(found))
    if stem == "imagenet" or prefix in ("backbone.", "encoder."):
        assert assumed is None
        assert not caplog.records
        return
    (warning,) = caplog.messages
    assert warning.startswith(f"warning: {tmp_path / 'a.pt'} shows a 3x3 conv1")
    assert assumed == f"conv1 with padding {backbone.conv1.padding[0]}, no max-pooling"
    assert assumed in warning
    assert isinstance(backbone.maxpool, torch.nn.Identity)
    assert "backbone.stem=small" in warning


def test_an_export_assumes_nothing(tmp_path, caplog):
    spec = Spec("resnet18", "small")
    about = {"rdm_solo": json.dumps({"backbone": dataclasses.asdict(spec)})}
    save_file(weights(spec), tmp_path / "a.safetensors", metadata=about)
    save_file(weights(SMALL), tmp_path / "b.safetensors")
    for name in ("a", "b"):
        found = weight_files.read(tmp_path / f"{name}.safetensors")
        assert weight_files.assumed(found, weight_files.known(found)) is None
    assert not caplog.records


class Hostile:
    """Runs a command when it is unpickled, as pickles may."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_in_a_file_is_executed(zipped, tmp_path, caplog):
    saved = {"state_dict": weights(SMALL), "epoch": 2, "extra": [Hostile(tmp_path / "mark")]}
    path = tmp_path / "hostile.ckpt"
    torch.save(saved, path, _use_new_zipfile_serialization=zipped)
    caplog.set_level("INFO")
    found = weight_files.read(path)
    assert not (tmp_path / "mark").exists()
    assert same(weight_files.load(found, SMALL), saved["state_dict"])
    assert found.epoch == 3
    assert "mkdir" in caplog.text
    torch.load(path, weights_only=False)  # it would have
    assert (tmp_path / "mark").exists()


class TestRefusals:
    def refused(self, path: Path, spec: Spec | None = None) -> str:
        with pytest.raises(ValueError, match=str(path)) as refusal:
            load(path, spec)
        return str(refusal.value)

    def test_names_of_what_is_missing_and_unexpected(self, tmp_path):
        state = weights(SMALL)
        del state["stem.0.weight"], state["stages.1.bn1.bias"]
        state["predictor.weight"] = torch.zeros(1)
        torch.save(state, tmp_path / "a.pt")
        says = self.refused(tmp_path / "a.pt", SMALL)
        assert "lacks stem.0.weight; stages.1.bn1.bias and" in says
        assert "has unexpected predictor.weight" in says

    def test_another_stem_or_depth_is_named(self, tmp_path):
        torch.save(weights(Spec("resnet18", "small")), tmp_path / "a.pt")
        says = self.refused(tmp_path / "a.pt", Spec("resnet18", "imagenet"))
        assert "conv1.weight is (64, 3, 3, 3) instead of (64, 3, 7, 7)" in says
        assert "backbone.name=resnet18 backbone.stem=small" in says
        says = self.refused(tmp_path / "a.pt", Spec("resnet50", "small"))
        assert "lacks layer1.0.conv3.weight" in says
        assert "it looks like resnet18 with the small stem" in says

    def test_what_does_not_show_its_backbone(self, tmp_path):
        torch.save({"blocks.0.weight": torch.zeros(2)}, tmp_path / "a.pt")
        assert "give backbone.name=..." in self.refused(tmp_path / "a.pt")

    def test_files_that_are_none(self, tmp_path):
        assert "there is no checkpoint" in self.refused(tmp_path / "nowhere.ckpt")
        for suffix in ("pt", "ckpt", "safetensors"):
            path = tmp_path / f"a.{suffix}"
            path.write_bytes(b"not a checkpoint, however long it may be")
            assert str(path) in self.refused(path)
            path.write_bytes(b"")
            assert str(path) in self.refused(path)
        (tmp_path / "a.ckpt").write_bytes(bytes(10240))  # an empty tar archive
        assert "it is a tar archive" in self.refused(tmp_path / "a.ckpt")
        torch.save(weights(SMALL), tmp_path / "cut.pt")
        whole = (tmp_path / "cut.pt").read_bytes()
        (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
        assert "cannot be read as a checkpoint" in self.refused(tmp_path / "cut.pt")

    def test_a_whole_model_is_not_unpickled(self, tmp_path):
        torch.save(weight_files.build(SMALL), tmp_path / "model.pt")
        assert "holds no state dict: save model.state_dict()" in self.refused(tmp_path / "model.pt")

    def test_a_folder_that_is_no_run(self, tmp_path):
        with pytest.raises(ValueError, match="is not a run folder"):
            saved_config.run_config(tmp_path)
