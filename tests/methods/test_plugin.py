"""solo-learn's own entry point with our methods."""

import functools
import inspect
import re
import shutil
from pathlib import Path

import pytest
import torch
from conftest import ROOT, command
from omegaconf import OmegaConf
from support.image_files import write_tree
from support.small_methods import batch, configure, loss_of

from rdm_solo import methods, register_methods
from rdm_solo.ground.devices import nonfinite_names
from rdm_solo.ground.errors import UserError
from rdm_solo.methods import registration, solo_learn

current = pytest.mark.skipif(not solo_learn.CURRENT, reason="1.0.2 has no YAML")


@pytest.mark.skipif(solo_learn.CURRENT, reason="the current version takes them")
def test_the_release_is_refused():
    with pytest.raises(UserError, match="needs its current main"):
        register_methods()


WITHOUT_PREDICTOR = [
    "~method_kwargs.filter",
    "~method_kwargs.p",
    "~method_kwargs.pred_hidden_dim",
]
long = functools.partial(pytest.param, marks=pytest.mark.long)


@current
@pytest.mark.process
@pytest.mark.parametrize(
    ("file", "method", "options", "processes"),
    [
        ("cifar/simsiam.yaml", "rdm_simsiam", [], 2),
        long("imagenet-100/simsiam.yaml", "rdm_simsiam", [], 1),
        long("cifar/byol.yaml", "rdm_byol", ["method_kwargs.filter=online_log1p"], 1),
        long("cifar/simsiam.yaml", "symsimsiam", WITHOUT_PREDICTOR, 1),
    ],
)
def test_solo_learns_own_script_trains_from_its_own_files(
    file, method, options, processes, tmp_path
):
    """Change a file as the docs say; the options passed here fit this machine and its images."""
    checkout = Path(inspect.getfile(solo_learn.TABLE["base"])).parents[2]
    original = checkout / "scripts" / "pretrain" / file
    shutil.copytree(original.parent, tmp_path / "configs")
    page = (ROOT / "docs" / "frameworks.md").read_text()
    changes = OmegaConf.create(re.search(r"```yaml\n(.*?)```", page, re.DOTALL).group(1))
    if method == "rdm_byol":
        changes.method_kwargs.p = None
    changed = OmegaConf.merge(OmegaConf.load(original), changes)
    OmegaConf.save(changed, tmp_path / "configs" / "rdm.yaml")
    # imagenet-100/simsiam.yaml has these paths.
    images = tmp_path / "datasets" / "imagenet100"
    write_tree(images, classes=("cat", "dog"), train=8, val=1)
    dataset = changed.data.dataset
    if dataset == "cifar10":  # torchvision checks the digest of its files
        dataset = "custom"
    process = command(
        "rdm_solo.plugin",
        str(checkout / "main_pretrain.py"),
        "--config-path",
        str(tmp_path / "configs"),
        "--config-name",
        "rdm.yaml",
        f"method={method}",
        *options,
        "method_kwargs.proj_hidden_dim=32",
        "method_kwargs.proj_output_dim=16",
        f"data.dataset={dataset}",
        f"data.train_path={images}/train",
        f"data.val_path={images}/val",
        "data.format=image_folder",
        "data.num_workers=0",
        "wandb.enabled=false",
        f"optimizer.batch_size={8 // processes}",
        "max_epochs=1",
        "accelerator=cpu",
        f"devices='{processes}'",
        "precision=32-true",
        f"strategy={'auto' if processes == 1 else 'ddp'}",
        "sync_batchnorm=false",
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    checkpoint = next((tmp_path / "trained_models").rglob("*.ckpt"))
    content = torch.load(checkpoint, weights_only=False, map_location="cpu")
    assert content["global_step"] == 2
    state = content["state_dict"]
    assert not nonfinite_names(state)
    assert not any(name.startswith("predictor") for name in state)


@current
def test_it_has_the_loss_of_our_own_method():
    cfg = configure("method=simsiam", "filter=target_pow", "p=-0.5")
    solo_cfg = solo_learn.current_config(cfg)
    solo_cfg.method_kwargs = {
        "proj_hidden_dim": 512,
        "proj_output_dim": 32,
        "filter": "target_pow",
        "p": -0.5,
    }
    model, plugged = methods.build(cfg), registration.RDMSimSiam(solo_cfg)
    plugged.load_state_dict(model.state_dict())
    assert torch.equal(loss_of(model, batch()), loss_of(plugged, batch()))


@current
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"filter": "target_pwo"}, "'target_pow'"),
        ({"fitler": "target_pow"}, "'fitler'"),
        ({"filter": "learnable", "p": -0.5}, "p=-0.5"),
    ],
)
def test_refusals(kwargs, message):
    cfg = solo_learn.current_config(configure("method=simsiam"))
    cfg.method_kwargs = {"proj_hidden_dim": 16, "proj_output_dim": 8, **kwargs}
    with pytest.raises(UserError, match=message):
        registration.RDMSimSiam(cfg)
