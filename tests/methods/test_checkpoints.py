"""Backbones from real files: solo-learn's, torchvision's, wrapped, damaged, hostile."""

import argparse
import functools
import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file
from support.small_methods import foreign, load

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import solo_learn, weight_files
from rdm_solo.methods.weight_files import Spec

SMALL = Spec("small_resnet", "small", {"in_channels": 1, "width": 4})


def weights(spec: Spec) -> dict[str, torch.Tensor]:
    """Draw every value of a backbone's state, running statistics included."""
    rng = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(value.shape, generator=rng) + 0.5 if value.is_floating_point() else value
        for name, value in weight_files.build(spec).state_dict().items()
    }


def same(backbone: torch.nn.Module, state: dict[str, torch.Tensor]) -> bool:
    loaded = backbone.state_dict()
    return set(loaded) == set(state) and all(torch.equal(loaded[n], state[n]) for n in state)


def test_solo_learns_own_checkpoint(tmp_path):
    model = foreign("byol")
    state = {
        name: torch.rand_like(value) + 0.5 if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(state)
    path = tmp_path / "solo.ckpt"
    trainer = pl.Trainer(logger=False, accelerator="cpu", barebones=True)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(path, weights_only=True)
    # What solo-learn's schedulers and entry points add to it.
    content = torch.load(path, weights_only=True)
    content["epoch"], content["global_step"] = 7, 56
    content["hyper_parameters"] = OmegaConf.create({"backbone": {"name": "resnet18"}})
    content["datamodule_hyper_parameters"] = pl.utilities.parsing.AttributeDict(batch_size=2)
    content["lr_schedulers"] = [{"lr_lambdas": functools.partial(print, 1)}]
    content["args"] = argparse.Namespace(encoder="resnet18", tags={1, 2})
    torch.save(content, path)

    read = weight_files.read(path)
    assert (read.epoch, read.step) == (8, 56)
    backbone = weight_files.load(read, weight_files.spec_of(read))
    prefix = "backbone." if solo_learn.CURRENT else "encoder."
    assert same(backbone, {n.removeprefix(prefix): state[n] for n in state if n.startswith(prefix)})
    assert not backbone.training
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


@pytest.mark.parametrize(
    ("prefix", "wrapper"),
    [
        ("", "model"),
        ("module.encoder.", None),
        ("model.backbone.", "state_dict"),
        ("_orig_mod.", None),
    ],
)
def test_prefixes_and_wrappers(prefix, wrapper, tmp_path):
    state = weights(SMALL)
    saved = OrderedDict((prefix + name, value) for name, value in state.items())
    if "backbone." in prefix or "encoder." in prefix:
        saved["momentum_" + prefix + "stem.0.weight"] = torch.zeros(1)
        saved["projector.0.weight"] = saved["classifier.weight"] = torch.zeros(2, 2)
    torch.save({wrapper: saved} if wrapper else saved, tmp_path / "weights.pth")
    assert same(load(tmp_path / "weights.pth"), state)


@pytest.mark.parametrize(("name", "suffix"), [("resnet18", "safetensors"), ("resnet50", "pt")])
def test_torchvisions_file_gives_torchvisions_features(name, suffix, tmp_path):
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
    ("prefix", "stem", "certain"),
    [("", "small", False), ("backbone.", "small", True), ("", "imagenet", True)],
)
def test_a_warning_names_what_is_assumed_about_the_stem(prefix, stem, certain, tmp_path, caplog):
    state = weights(Spec("resnet18", stem))
    torch.save({prefix + name: value for name, value in state.items()}, tmp_path / "a.pt")
    read = weight_files.read(tmp_path / "a.pt")
    assumed = weight_files.assumed_stem(read, weight_files.spec_of(read))
    if certain:
        assert (assumed, caplog.messages) == (None, [])
        return
    padding = load(tmp_path / "a.pt").conv1.padding[0]
    assert assumed == f"conv1 with padding {padding}, no max-pooling"
    assert assumed in caplog.text


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_in_a_file_is_executed(zipped, tmp_path):
    content = {"state_dict": weights(SMALL), "epoch": 2, "extra": [Hostile(tmp_path / "mark")]}
    path = tmp_path / "hostile.ckpt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    if zipped:
        assert same(load(path, SMALL), content["state_dict"])
    else:
        with pytest.raises(UserError, match="cannot be read"):
            load(path)
    assert not (tmp_path / "mark").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "mark").exists()


def test_what_does_not_match_is_named(tmp_path):
    state = weights(SMALL)
    del state["stem.0.weight"]
    state["predictor.weight"] = torch.zeros(1)
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(UserError, match=r"stem\.0\.weight.*predictor\.weight"):
        load(tmp_path / "a.pt", SMALL)
    torch.save(weights(Spec("resnet18", "small")), tmp_path / "b.pt")
    with pytest.raises(UserError, match=r"conv1\.weight.*those of resnet18 with the small"):
        load(tmp_path / "b.pt", Spec("resnet18", "imagenet"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"blocks.0.weight": torch.zeros(2)}, r"pass backbone\.name="),
        ({"a.weight": torch.tensor([1.0, torch.nan])}, r"NaN or infinity \(a\.weight\)"),
        (torch.nn.Linear(2, 2), r"save model\.state_dict\(\)"),
    ],
)
def test_a_file_without_a_usable_backbone(content, message, tmp_path):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(UserError, match=message):
        load(tmp_path / "a.pt")


def test_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "a.pt"
    with pytest.raises(UserError, match=r"a\.pt cannot be read.*No such file"):
        load(path)
    torch.save(weights(SMALL), path)
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + b"\xff\x00" + content[middle + 2 :])
    with pytest.raises(UserError, match="bytes have changed"):
        load(path)
    for other in (path, tmp_path / "a.safetensors"):
        other.write_bytes(b"not a checkpoint, however long it may be")
        with pytest.raises(UserError, match="cannot be read"):
            load(other)
