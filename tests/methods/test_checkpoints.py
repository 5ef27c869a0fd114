"""Backbones from real files: solo-learn's, torchvision's, wrapped, damaged, hostile."""

import argparse
import functools
import os

import pytest
import torch
import torchvision
from omegaconf import OmegaConf
from safetensors.torch import save_file
from support.small_methods import foreign, load

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import solo_learn, weight_files
from rdm_solo.methods.weight_files import Spec

SMALL = Spec("small_resnet", "small", {"in_channels": 1, "width": 4})


def randomise(module):
    """Draw every value of a module's state, running statistics included."""
    torch.manual_seed(0)
    state = module.state_dict()
    for value in state.values():
        if value.is_floating_point():
            value.uniform_(0.5, 1.5)
    return state


def weights(spec):
    return randomise(weight_files.build(spec))


RENAMED = {name.replace("stem.0", "predictor"): x for name, x in weights(SMALL).items()}


def assert_same(backbone, state):
    torch.testing.assert_close(dict(backbone.state_dict()), dict(state), rtol=0, atol=0)


def test_solo_learns_own_checkpoint(tmp_path):
    model = foreign("byol")
    randomise(model)
    path = tmp_path / "solo.ckpt"
    trainer = pl.Trainer(logger=False, accelerator="cpu", barebones=True)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(path, weights_only=True)
    # What solo-learn's schedulers and entry points add to it.
    content = torch.load(path, weights_only=True)
    torch.save(
        {
            **content,
            "epoch": 7,
            "global_step": 56,
            "hyper_parameters": OmegaConf.create({"backbone": {"name": "resnet18"}}),
            "datamodule_hyper_parameters": pl.utilities.parsing.AttributeDict(batch_size=2),
            "lr_schedulers": [{"lr_lambdas": functools.partial(print, 1)}],
            "args": argparse.Namespace(encoder="resnet18", tags={1, 2}),
        },
        path,
    )

    file = weight_files.read(path)
    assert (file.epoch, file.step) == (8, 56)
    backbone = load(path)
    module = model.backbone if solo_learn.CURRENT else model.encoder
    assert_same(backbone, module.state_dict())
    assert not backbone.training
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


@pytest.mark.parametrize("prefix", ["", "module.encoder.", "model.backbone.", "_orig_mod."])
@pytest.mark.parametrize("key", ["model", "state_dict", None])
def test_prefixes_and_wrappers(prefix, key, tmp_path):
    state = weights(SMALL)
    content = {prefix + name: value for name, value in state.items()}
    if prefix.endswith(("backbone.", "encoder.")):
        others = [f"momentum_{prefix}stem.0", "projector.0", "classifier"]
        for name in others:
            content[f"{name}.weight"] = torch.zeros(2, 2)
    if key:
        content = {key: content}
    path = tmp_path / "weights.pth"
    torch.save(content, path)
    assert_same(load(path), state)


def test_torchvisions_file_gives_torchvisions_features(tmp_path):
    network = torchvision.models.resnet50(num_classes=5).eval()
    path = tmp_path / "weights.safetensors"
    save_file(network.state_dict(), path)
    network.fc = torch.nn.Identity()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(load(path)(x), network(x))


@pytest.mark.parametrize(
    ("prefix", "stem", "certain"),
    [("", "small", False), ("backbone.", "small", True), ("", "imagenet", True)],
)
def test_a_warning_names_what_is_assumed_about_the_stem(prefix, stem, certain, tmp_path, caplog):
    spec = Spec("resnet18", stem)
    state = {prefix + name: value for name, value in weights(spec).items()}
    path = tmp_path / "a.pt"
    torch.save(state, path)
    file = weight_files.read(path)
    assumption = weight_files.assumed_stem(file, weight_files.spec_of(file))
    if certain:
        assert assumption is None
        assert not caplog.messages
    else:
        padding, _ = load(path).conv1.padding
        assert f"padding {padding}" in assumption
        assert assumption in caplog.text


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_in_a_file_is_executed(zipped, tmp_path):
    state = weights(SMALL)
    mark = tmp_path / "mark"
    content = {"state_dict": state, "extra": [Hostile(mark)]}
    path = tmp_path / "hostile.ckpt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    if zipped:
        assert_same(load(path, SMALL), state)
    else:
        with pytest.raises(UserError, match="cannot be read"):
            load(path)
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists()


@pytest.mark.parametrize(
    ("content", "spec", "message"),
    [
        ({"blocks.0.weight": torch.zeros(2)}, None, r"backbone\.name="),
        (RENAMED, SMALL, r"stem\.0\.weight.*predictor\.weight"),
        ({"a.weight": torch.tensor([1.0, torch.nan])}, None, r"NaN or infinity \(a\.weight\)"),
        (torch.nn.Linear(2, 2), None, r"model\.state_dict\(\)"),
    ],
)
def test_a_file_without_a_usable_backbone(content, spec, message, tmp_path):
    path = tmp_path / "a.pt"
    torch.save(content, path)
    with pytest.raises(UserError, match=message):
        load(path, spec)


@pytest.mark.parametrize("damage", ["missing", "changed", "text.pt", "text.safetensors"])
def test_a_file_that_cannot_be_read(damage, tmp_path):
    path = tmp_path / damage
    if damage == "changed":
        torch.save(weights(SMALL), path)
        content = bytearray(path.read_bytes())
        middle = len(content) // 2
        content[middle] ^= 0xFF
        path.write_bytes(content)
    elif damage != "missing":
        path.write_bytes(b"not a checkpoint, however long it may be")
    with pytest.raises(UserError, match=f"{damage} cannot be read"):
        load(path)
