"""solo-learn's own entry point with our methods."""

import inspect
import re
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


@current
@pytest.mark.process
@pytest.mark.parametrize(
    ("method", "kwargs", "processes"),
    [
        ("rdm_simsiam", ["method_kwargs.filter=target_pow", "method_kwargs.p=-0.5"], 2),
        ("rdm_byol", ["method_kwargs.filter=online_log1p", "method_kwargs.p=null"], 1),
        ("symsimsiam", ["~method_kwargs.filter", "~method_kwargs.p"], 1),
    ],
)
def test_solo_learns_own_script_trains_from_the_yaml_in_the_docs(
    method, kwargs, processes, tmp_path
):
    images = write_tree(tmp_path / "images", classes=("cat", "dog"), train=8, val=0) / "train"
    page = (ROOT / "docs" / "frameworks.md").read_text()
    changes = OmegaConf.create(re.search(r"```yaml\n(.*?)```", page, re.DOTALL).group(1))
    original = OmegaConf.load(Path(__file__).with_name("solo_learn_simsiam.yaml"))
    OmegaConf.save(OmegaConf.merge(original, changes), tmp_path / "rdm.yaml")
    checkout = Path(inspect.getfile(solo_learn.TABLE["base"])).parents[2]
    process = command(
        "rdm_solo.plugin",
        str(checkout / "main_pretrain.py"),
        "--config-path",
        str(tmp_path),
        "--config-name",
        "rdm.yaml",
        f"method={method}",
        *kwargs,
        "method_kwargs.proj_hidden_dim=32",
        "method_kwargs.proj_output_dim=16",
        "data.dataset=custom",
        f"data.train_path={images}",
        f"data.val_path={images}",
        "data.num_workers=0",
        f"optimizer.batch_size={8 // processes}",
        "max_epochs=1",
        "+limit_val_batches=0",
        "accelerator=cpu",
        f"devices='{processes}'",
        "precision=32-true",
        f"strategy={'auto' if processes == 1 else 'ddp'}",
        "sync_batchnorm=false",
        "+momentum.base_tau=0.99",
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
