"""Backbones of the installed solo-learn, one for each way to build them; ours and timm's."""

import pytest
import torch
from support.small_methods import batch, configure, loss_of

from rdm_solo import methods
from rdm_solo.methods import solo_learn

pytestmark = pytest.mark.filterwarnings("ignore")

SMALLEST = [
    "small_resnet",
    "resnet18",
    "vit_tiny",
    "swin_tiny",
    "convnext_tiny",
    "timm/resnet26",
    "timm/vit_tiny_patch16_224",
]
INSTALLED = [n for n in SMALLEST if n in solo_learn.BACKBONES or n.startswith(solo_learn.TIMM)]


@pytest.mark.parametrize("name", INSTALLED)
def test_a_step_reaches_the_first_layer_and_the_backbone_alone_has_the_same_weights(name):
    cfg = configure(
        "method=simsiam",
        "dataset=synthetic",
        "dataset.image_size=32",
        "method.kwargs.proj_hidden_dim=16",
        "method.kwargs.proj_output_dim=8",
        f"backbone.name={name}",
    )
    torch.manual_seed(0)
    model = methods.build(cfg)
    torch.manual_seed(0)
    alone = solo_learn.backbone(name, cfg.backbone.stem, cfg.backbone.kwargs, 32)
    torch.testing.assert_close(alone.state_dict(), model.backbone.state_dict(), rtol=0, atol=0)

    loss = loss_of(model, batch(4, channels=3, size=32))
    loss.backward()
    assert loss.isfinite()
    first = next(p for p in model.backbone.parameters() if p.requires_grad)
    assert first.grad.isfinite().all()
    assert first.grad.abs().max() > 0
