"""Tiny encoders and methods as users write them; a method's ``forward`` returns the loss."""

import copy
import itertools

import torch
from torch import nn
from torch.nn.functional import cosine_similarity, layer_norm, normalize, smooth_l1_loss

from support.loops import MOMENTUM, PREDICTOR, STOP_GRADIENT

WIDTH = 64
PATCHES = 16


def conv_net():
    layers = []
    channels = 3
    for width, stride in ((16, 1), (32, 2), (WIDTH, 2)):
        conv = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def blocks(width):
    layer = nn.TransformerEncoderLayer(
        width, 4, 2 * width, dropout=0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)


class ViT(nn.Module):
    """A vision transformer of two blocks, which returns tokens."""

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, 2, 2)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, PATCHES, WIDTH))
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.mask_token = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.blocks = blocks(WIDTH)

    def forward(self, images, keep=None, masked=None):
        x = self.patch_embed(images).flatten(2).mT
        if masked is not None:  # (N, PATCHES): DINOv2 replaces patches by the mask token
            x = torch.where(masked[..., None], self.mask_token, x)
        x = x + self.pos_embed
        if keep is not None:  # (N, K): I-JEPA encodes some patches only
            x = take(x, keep)
        return self.blocks(torch.cat([self.cls_token.expand(len(x), 1, -1), x], 1))


def take(tokens, at):
    return tokens.gather(1, at[..., None].expand(-1, -1, tokens.shape[-1]))


@torch.no_grad()
def move(teacher, student, momentum):
    for slow, fast in zip(teacher.parameters(), student.parameters()):
        slow.lerp_(fast, 1 - momentum)


def mlp(*widths):
    layers = []
    for width, out in itertools.pairwise(widths):
        layers += [nn.Linear(width, out, bias=False), nn.BatchNorm1d(out), nn.ReLU()]
    return layers[:-1]


class SimSiam(nn.Module):
    """lightly's example; the heads may be lightly's."""

    def __init__(self, failure, backbone=None, projection_head=None, prediction_head=None):
        super().__init__()
        self.failure = failure
        self.backbone = backbone or conv_net()
        self.projection_head = projection_head or nn.Sequential(*mlp(WIDTH, 2 * WIDTH, 32))
        self.prediction_head = prediction_head or nn.Sequential(*mlp(32, 8, 32)[:-1])
        if failure == PREDICTOR:
            self.prediction_head = nn.Identity()

    def forward(self, x1, x2):
        z1, z2 = (self.projection_head(self.backbone(x)) for x in (x1, x2))
        p1, p2 = self.prediction_head(z1), self.prediction_head(z2)
        if self.failure != STOP_GRADIENT:
            z1, z2 = z1.detach(), z2.detach()
        return -(cosine_similarity(p1, z2) + cosine_similarity(p2, z1)).mean() / 2

    def after_step(self):
        pass


class Predictor(nn.Module):
    """I-JEPA's narrow transformer on the context's tokens and on one mask token per target."""

    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Linear(WIDTH, width)
        self.mask_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, PATCHES, width))
        self.blocks = blocks(width)
        self.project = nn.Linear(width, WIDTH)

    def forward(self, tokens, context, targets):
        positions = self.pos_embed.expand(len(tokens), -1, -1)
        x = self.embed(tokens[:, 1:]) + take(positions, context)
        queries = self.mask_token + take(positions, targets)
        x = self.blocks(torch.cat([x, queries], 1))
        return self.project(x[:, -targets.shape[1] :])


class IJEPA(nn.Module):
    """I-JEPA (Assran et al., 2023): predict a block's patches from the others' encodings.

    The target encoder requires gradients, which it never gets, as in lightly's example.
    """

    def __init__(self, failure, encoder, predictor):
        super().__init__()
        self.failure = failure
        self.encoder = encoder
        self.predictor = predictor
        self.target_encoder = copy.deepcopy(encoder)

    def forward(self, images, _):
        top, left = torch.randint(3, (2,)).tolist()
        grid = torch.arange(PATCHES).reshape(4, 4)
        targets = grid[top : top + 2, left : left + 2].flatten()
        context = grid.flatten()[~torch.isin(grid.flatten(), targets)]
        targets, context = targets.expand(len(images), -1), context.expand(len(images), -1)
        with torch.set_grad_enabled(self.failure == STOP_GRADIENT):
            h = self.target_encoder(images)[:, 1:]
            h = take(layer_norm(h, h.shape[-1:]), targets)
        z = self.predictor(self.encoder(images, context), context, targets)
        return smooth_l1_loss(z, h)

    def after_step(self):
        move(self.target_encoder, self.encoder, 0.0 if self.failure == MOMENTUM else 0.99)


class Head(nn.Module):
    """DINO's head: an MLP to unit rows, and prototypes of unit length."""

    def __init__(self, prototypes=256):
        super().__init__()
        layers = [nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(128, 32))
        self.prototypes = nn.Parameter(torch.randn(prototypes, 32))

    def forward(self, x):
        return normalize(self.mlp(x), dim=-1) @ normalize(self.prototypes, dim=-1).mT


class DINOv2(nn.Module):
    """DINOv2 (Oquab et al., 2023): DINO on class tokens, iBOT on masked patches, and KoLeo."""

    def __init__(self, failure):
        super().__init__()
        self.failure = failure
        parts = {"backbone": ViT(), "dino_head": Head(), "ibot_head": Head()}
        self.student = nn.ModuleDict(parts)
        self.teacher = copy.deepcopy(self.student).requires_grad_(failure == STOP_GRADIENT)
        self.centers = {"dino_head": 0, "ibot_head": 0}

    def targets(self, head, tokens):
        """Return the teacher's centred and sharpened softmax."""
        logits = self.teacher[head](tokens)
        center = self.centers[head]
        self.centers[head] = 0.9 * center + 0.1 * logits.detach().mean(0)
        return ((logits - center) / 0.04).softmax(-1)

    def forward(self, x1, x2):
        images = torch.cat([x1, x2])
        masked = torch.rand(len(images), PATCHES) < 0.4
        with torch.set_grad_enabled(self.failure == STOP_GRADIENT):
            tokens = self.teacher["backbone"](images)
            dino = self.targets("dino_head", tokens[:, 0]).roll(len(x1), 0)
            ibot = self.targets("ibot_head", tokens[:, 1:][masked])
        tokens = self.student["backbone"](images, masked=masked)
        loss = 0.1 * sum(koleo(view) for view in tokens[:, 0].chunk(2))
        loss = loss + cross_entropy(dino, self.student["dino_head"](tokens[:, 0]))
        return loss + cross_entropy(ibot, self.student["ibot_head"](tokens[:, 1:][masked]))

    def after_step(self):
        move(self.teacher, self.student, 0.0 if self.failure == MOMENTUM else 0.99)


def cross_entropy(targets, logits):
    return -(targets * (logits / 0.1).log_softmax(-1)).sum(-1).mean()


def koleo(x):
    """Return minus the mean log distance of the unit rows to their nearest neighbours."""
    x = normalize(x, dim=-1)
    nearest = (x @ x.mT).fill_diagonal_(-1).argmax(1)
    return -((x - x[nearest]).norm(dim=-1) + 1e-8).log().mean()
