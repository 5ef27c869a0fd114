"""Every backbone of the installed solo-learn, ours, and timm's: built by name, and taking steps."""

from __future__ import annotations

import pytest
import torch
from support.small_methods import batch, configure, loss_of

from rdm_solo import methods
from rdm_solo.methods import solo_learn

SMALL = ("small_resnet", "resnet18", "vit_tiny", "swin_tiny", "poolformer_s12", "convnext_tiny")
SMALL += ("wide_resnet28w2", "timm/resnet26", "timm/convnext_atto")
HERE = [n for n in SMALL if n in solo_learn.BACKBONES or n.startswith(solo_learn.TIMM)]


def build(name: str, method: str = "simsiam", size: int = 32):
    options = [f"method={method}", "dataset=synthetic", f"dataset.image_size={size}"]
    options += ["method.kwargs.proj_hidden_dim=16", "method.kwargs.proj_output_dim=8"]
    return methods.build(configure(*options, f"backbone.name={name}"))


@pytest.mark.parametrize("name", solo_learn.BACKBONES)
def test_every_name_builds(name):
    try:
        with torch.device("meta"):
            model = build(name)
    except RuntimeError:  # earlier versions of timm ask tensors for their values
        model = build(name)
    assert sum(p.numel() for p in model.backbone.parameters()) > 1e5 or name == "small_resnet"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stem", ["small", "imagenet"])
@pytest.mark.parametrize("name", HERE)
def test_a_backbone_alone_is_that_of_solo_learns_own_class(name, stem):
    """The same seed draws the same weights, to the bit, under the same names."""
    cfg = configure("dataset=synthetic", "dataset.image_size=32", f"backbone.name={name}")
    cfg.backbone.stem = stem
    cfg.method.kwargs.update(proj_hidden_dim=16, proj_output_dim=8)
    torch.manual_seed(0)
    want = solo_learn.adapted("simsiam")(cfg).backbone.state_dict()
    torch.manual_seed(0)
    found = solo_learn.backbone(name, stem, cfg.backbone.kwargs, 32).state_dict()
    assert list(found) == list(want)
    assert all(torch.equal(found[key], value) for key, value in want.items())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["simsiam", "byol"])
@pytest.mark.parametrize("name", HERE)
def test_one_of_each_kind_takes_a_step(name, method):
    model = build(name, method)
    loss = loss_of(model, batch(4, channels=3, size=32))
    loss.backward()
    assert loss.isfinite()
    # Residual branches that start at zero pass nothing on at first, so the first layer is asked.
    first = next(p for p in model.backbone.parameters() if p.requires_grad)
    assert first.grad.isfinite().all()
    assert first.grad.abs().max() > 0
