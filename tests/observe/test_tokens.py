"""Patch tokens are found in vision transformers of several libraries, and only there."""

from types import SimpleNamespace

import pytest
import timm
import torch
import torchvision
from torch import nn

from rdm_solo.observe.tokens import patch_tokens

IMAGES = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))
SQUARE = IMAGES[..., :32]


class Small(nn.Module):
    """A hand-written transformer of class tokens and 4 x 6 patches, which returns their mean."""

    def __init__(self, prefix, convolution=True, norm=True):
        super().__init__()
        self.embed = nn.Conv2d(3, 12, 8, 8) if convolution else nn.Linear(192, 12)
        self.prefix = nn.Parameter(torch.randn(1, prefix, 12))
        layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True, norm_first=norm)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(12) if norm else nn.Identity()

    def tokens(self, x):
        if isinstance(self.embed, nn.Conv2d):
            x = self.embed(x).flatten(2).mT
        else:
            x = self.embed(nn.functional.unfold(x, 8, stride=8).mT)
        x = torch.cat([self.prefix.expand(len(x), -1, -1), x], 1)
        return self.norm(self.encoder(x))

    def forward(self, x):
        return self.tokens(x).mean(1)


def measure(backbone: nn.Module, images: torch.Tensor = IMAGES, is_known: bool = True):
    """Return the patch tokens, or None; check what is said of them, and that no hook is left."""
    backbone.eval()
    hooks = [len(part._forward_hooks) for part in backbone.modules()]
    with torch.no_grad():
        found = patch_tokens(backbone, images)
    assert [len(part._forward_hooks) for part in backbone.modules()] == hooks
    if found is None:
        return None
    assert found.is_number_known is is_known
    return found.tokens


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_tiny_patch16_224", {"global_pool": "avg", "class_token": False}),
        ("vit_tiny_patch16_224", {"global_pool": "map", "reg_tokens": 2}),
        ("deit_tiny_distilled_patch16_224", {}),
        ("vit_small_patch14_reg4_dinov2", {}),
        ("vit_small_patch16_dinov3", {}),
    ],
)
def test_timm(name, options):
    sizes = {"img_size": (32, 48), "patch_size": 16, "depth": 2}
    vit = timm.create_model(name, num_classes=0, **sizes, **options)
    tokens = measure(vit)
    with torch.no_grad():
        expected = vit.forward_features(IMAGES)[:, vit.num_prefix_tokens :]
    assert tokens.shape[1] == 6
    assert torch.equal(tokens, expected)


def test_timm_with_all_tokens_as_output():
    vit = timm.create_model("vit_tiny_patch16_224", img_size=(32, 48), depth=2, reg_tokens=2)
    vit.reset_classifier(0, "")
    tokens = measure(vit)
    assert tokens.shape[1] == 6
    with torch.no_grad():
        assert torch.equal(tokens, vit(IMAGES)[:, 3:])


@pytest.mark.parametrize(
    ("make", "layer", "prefix"),
    [
        (lambda: torchvision.models.VisionTransformer(32, 16, 2, 2, 12, 24), "encoder.ln", 1),
        # Its class token comes after the patches' last block.
        (lambda: timm.create_model("cait_xxs24_224", img_size=32, depth=2), "blocks", 0),
        # The second stage's patches come from a convolution that merges the first stage's.
        (lambda: timm.create_model("pvt_v2_b0", depths=(1, 4, 1, 1)), "stages.1.norm", 0),
    ],
    ids=["torchvision", "cait", "pvt"],
)
def test_tokens_of_other_transformers_are_a_layers_output(make, layer, prefix):
    vit = make()
    outputs = []
    vit.get_submodule(layer).register_forward_hook(lambda *call: outputs.append(call[2]))
    tokens = measure(vit, SQUARE)
    assert torch.equal(tokens, outputs[0][:, prefix:])


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("prefix", "convolution"), [(0, True), (1, True), (5, True), (5, False)])
def test_a_transformer_of_the_users_own(prefix, convolution, norm):
    """Without a convolution, nothing tells class tokens and patches apart."""
    vit = Small(prefix, convolution, norm).eval()
    with torch.no_grad():
        expected = vit.tokens(IMAGES)[:, prefix if convolution else 0 :]
    tokens = measure(vit, is_known=convolution)
    assert tokens.shape == expected.shape
    torch.testing.assert_close(tokens, expected, rtol=1e-5, atol=1e-6)
    encoder = nn.Sequential(vit, nn.Linear(12, 5))
    assert torch.equal(measure(encoder, is_known=convolution), tokens)


class Returns(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_the_tokens_that_a_backbone_returns():
    tokens = torch.randn(2, 5, 3)
    pooled = tokens[:, 0]
    for output in (tokens, (tokens, pooled), {"pooled": pooled, "last_hidden_state": tokens}):
        backbone = Returns(lambda x, output=output: output)
        assert torch.equal(measure(backbone, is_known=False), tokens)
    dinov2 = {"x_norm_clstoken": pooled, "x_norm_patchtokens": tokens, "masks": None}
    assert torch.equal(measure(Returns(lambda x: dinov2)), tokens)
    maps = torch.randn(2, 3, 2, 5)
    assert torch.equal(measure(Returns(lambda x: maps)), maps.flatten(2).transpose(1, 2))


@pytest.mark.parametrize(
    "backbone",
    [
        torchvision.models.resnet18(),
        nn.Sequential(nn.Flatten(), nn.Linear(4608, 8)),
        Returns(lambda x: SimpleNamespace(features=x)),
        Returns(lambda x: torch.ones(2, 1, 3)),
    ],
    ids=["resnet", "vectors", "an object", "one token"],
)
def test_a_backbone_without_tokens_has_none(backbone):
    assert measure(backbone) is None
