"""Exported backbones: torchvision takes them, and they give the run's own features to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torchvision
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import load_file
from support.backbones import load
from support.small_runs import SMALL, run

from rdm_solo import cli
from rdm_solo.evaluate import export, linear
from rdm_solo.methods import weight_files
from rdm_solo.methods.weight_files import Spec

RESNET = [o for o in SMALL if not o.startswith("backbone.")] + ["backbone.name=resnet18"]
RESNET += ["dataset.num_train=16", "dataset.num_val=16", "max_epochs=1"]
RESNET += ["knn.k=5"]
RESNET += ["scheduler.warmup_epochs=0", "backbone.kwargs.zero_init_residual=false"]


def configure(config: str, *argv: str):
    return cli.compose(config, argv, ["dataset"] if config == "linear" else [])


def exported(folder: Path) -> Path:
    return export.export(configure("export", f"run={folder}"))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    run(folder, *SMALL, "method=byol", "optimizer.name=sgd")
    return folder, exported(folder)


@pytest.fixture(scope="module", params=["small", "imagenet"])
def resnet(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("resnet")
    run(folder, *RESNET, f"backbone.stem={request.param}")
    return request.param, folder, exported(folder)


def features(backbone: torch.nn.Module, size: int = 32) -> torch.Tensor:
    x = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return backbone.eval()(x)


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
class TestTorchvision:
    def load(self, folder: Path, suffix: str) -> dict[str, torch.Tensor]:
        path = folder / f"backbone.{suffix}"
        return load_file(path) if suffix == "safetensors" else torch.load(path, weights_only=True)

    def test_its_own_class_takes_the_weights_and_gives_the_features(self, resnet, suffix):
        stem, folder, out = resnet
        theirs = torchvision.models.resnet18(num_classes=7)
        if stem == "small":
            theirs.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 2, bias=False)
            theirs.maxpool = torch.nn.Identity()
        keys = theirs.load_state_dict(self.load(out, suffix), strict=False)
        assert (keys.missing_keys, keys.unexpected_keys) == (["fc.weight", "fc.bias"], [])
        theirs.fc = torch.nn.Identity()
        ours = load(folder / "checkpoints" / "last.ckpt")
        assert torch.equal(features(theirs), features(ours))
        assert features(ours).std() > 0

    def test_the_lines_that_it_shows_run(self, resnet, suffix, monkeypatch):
        _, _, out = resnet
        monkeypatch.chdir(out)
        lines = json.loads((out / "backbone.json").read_text())["torchvision"]
        names: dict = {"torch": torch, "torchvision": torchvision}
        exec("\n".join(lines), names)
        names["model"].fc = torch.nn.Identity()
        # The lines load the .pth; here against what the other file holds.
        ours = load(out / f"backbone.{suffix}")
        assert torch.equal(features(names["model"]), features(ours))


def test_metadata_say_what_it_is(resnet):
    stem, _, out = resnet
    about = json.loads((out / "backbone.json").read_text())
    with safe_open(out / "backbone.safetensors", "pt") as file:
        assert json.loads(file.metadata()["rdm_solo"]) == about
    assert about["backbone"]["name"] == "resnet18"
    assert about["backbone"]["stem"] == stem
    assert (about["epoch"], about["dataset"], about["method"]) == (1, "synthetic", "simsiam")
    changed = [line for line in about["torchvision"] if "conv1" in line or "maxpool" in line]
    assert len(changed) == (2 if stem == "small" else 0)


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_a_file_alone_gives_the_runs_own_features(small, suffix):
    folder, out = small
    ours = load(folder / "checkpoints" / "last.ckpt")
    again = load(out / f"backbone.{suffix}")
    assert torch.equal(features(ours, 8), features(again, 8))
    momentum = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    name = "stem.0.weight"  # the online network's, not its momentum copy's
    assert torch.equal(again.state_dict()[name], momentum[f"backbone.{name}"])
    assert not torch.equal(again.state_dict()[name], momentum[f"momentum_backbone.{name}"])


def test_linear_evaluates_it_as_it_does_the_run(small, tmp_path):
    folder, out = small
    common = ["features=cached", "epochs=3", "device=cpu"]
    of_run = linear.evaluate(configure("linear", f"run={folder}", f"out={tmp_path}", *common))
    data = [o for o in SMALL if o.startswith("dataset")]
    path = out / "backbone.safetensors"
    of_file = linear.evaluate(
        configure("linear", f"checkpoint={path}", f"out={tmp_path}", *data, *common)
    )
    assert (of_file["top1"], of_file["top5"]) == (of_run["top1"], of_run["top5"])
    assert of_file["backbone"] == of_run["backbone"]
    assert of_file["checkpoint_epoch"] == of_run["checkpoint_epoch"] == 2


def test_refusals_are_sentences(small, tmp_path, capsys):
    folder, _ = small
    (tmp_path / "file").write_text("")
    for argv, says in (
        ([], "give run=RUN_FOLDER"),
        ([f"run={tmp_path}"], "is not a run folder"),
        ([f"run={folder}", f"out={tmp_path / 'file' / 'x'}"], "cannot be made"),
    ):
        with pytest.raises(SystemExit), cli.sentences():
            export.export(configure("export", *argv))
        assert says in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"did you mean 'run'\?"):
        configure("export", "runs=x")


def test_a_word_that_the_network_knows_is_taken_from_a_folder(tmp_path):
    """A plain word, which is looked up in the network's own table; from a file as well."""
    (tmp_path / ".hydra").mkdir()
    options = ["backbone.name=vit_tiny", "dataset=synthetic", "dataset.image_size=32"]
    cfg = configure("config", *options, "backbone.kwargs.zero_init_residual=null")
    OmegaConf.update(cfg, "backbone.kwargs.global_pool", "avg", force_add=True)
    OmegaConf.save(cfg, tmp_path / ".hydra" / "config.yaml")
    network = weight_files.build(Spec("vit_tiny", "small", {"global_pool": "avg"}), 32)
    state = {f"backbone.{name}": value for name, value in network.state_dict().items()}
    (tmp_path / "checkpoints").mkdir()
    saved = {"epoch": 0, "global_step": 1, "state_dict": state}
    torch.save(saved, tmp_path / "checkpoints" / "last.ckpt")
    out = export.export(configure("export", f"run={tmp_path}"))
    assert weight_files.read(out / "backbone.safetensors").spec.kwargs == {"global_pool": "avg"}
    for word, says in (
        (
            "bogus",
            r"backbone\.name=vit_tiny cannot be built: (Only avg, .*|AssertionError); look at",
        ),
        ("os.system", r"backbone\.kwargs\.global_pool=os\.system, a word where"),
    ):
        cfg.backbone.kwargs.global_pool = word
        OmegaConf.save(cfg, tmp_path / ".hydra" / "config.yaml")
        with pytest.raises(ValueError, match=says):
            export.export(configure("export", f"run={tmp_path}"))
    again = "++backbone.kwargs.global_pool=os.system"
    with pytest.raises(ValueError, match=r"vit_tiny cannot be built: (Only avg|AssertionError)"):
        export.export(configure("export", f"run={tmp_path}", again))


def test_the_command_as_typed(typed, small, tmp_path):
    folder, _ = small
    done = typed("rdm_solo.export", f"run={folder}", "out=here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "backbone.json",
        "backbone.pth",
        "backbone.safetensors",
        "here",
    ]
    assert "small_resnet with the small stem, epoch 2" in done.stdout
