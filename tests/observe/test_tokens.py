"""Patch tokens are found in vision transformers of several libraries, and only there."""

from types import SimpleNamespace

import pytest
import timm
import torch
import torchvision
from torch import nn

from rdm_solo.observe.tokens import patch_tokens

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
PATCHES = 4  # of 16 x 16 pixels


class Small(nn.Module):
    """A hand-written transformer of `patches` and class tokens; returns the class token."""

    def __init__(self, registers=0, norm=True):
        super().__init__()
        self.embed = nn.Conv2d(3, 12, 8, 8)
        self.prefix = nn.Parameter(torch.randn(1, 1 + registers, 12))
        layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True, norm_first=norm)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(12) if norm else nn.Identity()

    def tokens(self, x):
        x = self.embed(x).flatten(2).mT
        x = torch.cat([self.prefix.expand(len(x), -1, -1), x], 1)
        return self.norm(self.encoder(x))

    def forward(self, x):
        return self.tokens(x)[:, 0]


def measure(backbone: nn.Module, images: torch.Tensor = IMAGES) -> torch.Tensor | None:
    backbone.eval()
    with torch.no_grad():
        tokens = patch_tokens(backbone, images)
    assert not any(part._forward_hooks for part in backbone.modules())
    return tokens


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_tiny_patch16_224", {"global_pool": "avg"}),
        ("vit_tiny_patch16_224", {"global_pool": "map"}),
        ("deit_tiny_distilled_patch16_224", {}),
        ("vit_small_patch14_reg4_dinov2", {}),
        ("vit_small_patch16_dinov3", {}),
    ],
)
def test_timm(name, options):
    vit = timm.create_model(name, num_classes=0, img_size=32, patch_size=16, depth=2, **options)
    tokens = measure(vit)
    with torch.no_grad():
        expected = vit.forward_features(IMAGES)[:, vit.num_prefix_tokens :]
    assert tokens.shape[1] == PATCHES
    assert torch.equal(tokens, expected)


def test_timm_with_all_tokens_as_output():
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, reg_tokens=2)
    vit.reset_classifier(0, "")
    tokens = measure(vit)
    assert tokens.shape[1] == PATCHES
    with torch.no_grad():
        assert torch.equal(tokens, vit(IMAGES)[:, 3:])


def test_torchvision():
    vit = torchvision.models.VisionTransformer(32, 16, 2, 2, 12, 24)
    outputs = []
    vit.encoder.ln.register_forward_hook(lambda *call: outputs.append(call[2]))
    vit.eval()
    with torch.no_grad():
        tokens = patch_tokens(vit, IMAGES)
    assert len(vit.encoder.ln._forward_hooks) == 1, "the user's own hook stays"
    assert torch.equal(tokens, outputs[0][:, 1:])


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("registers", [0, 4])
def test_a_transformer_of_the_users_own(registers, norm):
    vit = Small(registers, norm).eval()
    with torch.no_grad():
        expected = vit.tokens(IMAGES)[:, 1 + registers :]
    tokens = measure(vit)
    assert tokens.shape == (2, 16, 12)
    torch.testing.assert_close(tokens, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(measure(nn.Sequential(vit, nn.Linear(12, 5))), tokens)


class Returns(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_the_tokens_that_a_backbone_returns():
    tokens = torch.randn(2, 5, 3)
    patches = tokens[:, 1:]
    pooled = tokens[:, 0]
    assert torch.equal(measure(Returns(lambda x: tokens)), patches)
    assert torch.equal(measure(Returns(lambda x: (tokens, pooled))), patches)
    dinov2 = {"x_norm_clstoken": pooled, "x_norm_patchtokens": patches, "masks": None}
    assert torch.equal(measure(Returns(lambda x: dinov2)), patches)
    face = {"pooler_output": pooled, "last_hidden_state": tokens}
    assert torch.equal(measure(Returns(lambda x: face)), patches)
    wide = torch.randn(2, 320, 3)  # of 16 x 20 patches
    assert torch.equal(measure(Returns(lambda x: {"x_norm_patchtokens": wide})), wide)
    maps = torch.randn(2, 3, 2, 5)
    assert torch.equal(measure(Returns(lambda x: maps)), maps.flatten(2).transpose(1, 2))


class Wide(nn.Module):
    """DINOv2's names of class and register tokens, for images of 4 x 5 patches."""

    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, 3))
        self.register_tokens = nn.Parameter(torch.randn(1, 4, 3))
        self.mask_token = nn.Parameter(torch.randn(1, 3))

    def forward(self, x):
        prefix = torch.cat([self.cls_token, self.register_tokens], 1).expand(len(x), -1, -1)
        return {"last_hidden_state": torch.cat([prefix, torch.ones(len(x), 20, 3)], 1)}


@pytest.mark.parametrize("backbone", [Wide(), nn.Sequential(Wide())])
def test_patches_of_images_that_are_not_square(backbone):
    assert torch.equal(measure(backbone), torch.ones(2, 20, 3))


@pytest.mark.parametrize(
    "backbone",
    [
        torchvision.models.resnet18(),
        nn.Sequential(nn.Flatten(), nn.Linear(3072, 8)),
        Returns(lambda x: SimpleNamespace(features=x)),
        Returns(lambda x: torch.ones(2, 1, 3)),
    ],
    ids=["resnet", "vectors", "an object", "one token"],
)
def test_a_backbone_without_tokens_has_none(backbone):
    assert measure(backbone) is None
