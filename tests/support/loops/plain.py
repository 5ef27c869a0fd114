"""Loops that call ``watch.step`` and ``watch.end_epoch`` themselves."""

import copy

import torch
from torch import nn
from torch.optim.lr_scheduler import LinearLR

from rdm_solo.watch import Watch
from support.loops import EPOCHS, LEARNING_RATE, MOMENTUM, STOP_GRADIENT
from support.loops.digits import Pairs
from support.loops.methods import (
    IJEPA,
    WIDTH,
    DINOv2,
    Predictor,
    SimSiam,
    ViT,
    conv_net,
)


def rate(lr, failure):
    return 100 * lr if failure == LEARNING_RATE else lr


def sgd(method, failure):
    return torch.optim.SGD(method.parameters(), rate(0.06, failure), 0.9, weight_decay=5e-4)


def adamw(method, failure):
    return torch.optim.AdamW(method.parameters(), rate(1e-3, failure), weight_decay=0.04)


def train(watch, method, optimizer, warm_up=1):
    """Train ``method.forward``, which returns the loss."""
    scheduler = LinearLR(optimizer, 1 / warm_up, 1, warm_up)
    for _ in range(EPOCHS):
        for x1, x2 in Pairs():
            loss = method(x1, x2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            method.after_step()
            watch.step(loss)
        watch.end_epoch()
    watch.close()


def ijepa(folder, failure, **options):
    method = IJEPA(failure, ViT(), Predictor())
    watch = Watch(folder, method, **options)
    train(watch, method, adamw(method, failure), warm_up=10)


def dinov2(folder, failure, **options):
    method = DINOv2(failure)
    watch = Watch(folder, method, **options)
    train(watch, method, adamw(method, failure), warm_up=10)


def fabric(folder, failure, **options):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = SimSiam(failure)
    model, optimizer = fabric.setup(model, sgd(model, failure))
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(Pairs(), batch_size=None))
    watch = Watch(folder, model, views=2, **options)
    for _ in range(EPOCHS):
        for x1, x2 in loader:
            loss = model(x1, x2)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            watch.step(loss)
        watch.end_epoch()
    watch.close()


def ddp(folder, failure, **options):
    """SimSiam on each process that torchrun starts."""
    model = SimSiam(failure)
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.after_step = model.after_step
    train(Watch(folder, wrapped, views=2, **options), wrapped, sgd(model, failure))


def lightly_simsiam(folder, failure, **options):
    from lightly.models.modules import SimSiamPredictionHead, SimSiamProjectionHead

    heads = SimSiamProjectionHead(WIDTH, 128, 32), SimSiamPredictionHead(32, 8, 32)
    method = SimSiam(failure, conv_net(), *heads)
    train(Watch(folder, method, views=2, **options), method, sgd(method, failure))


def lightly_ijepa(folder, failure, **options):
    from lightly.models.modules.ijepa import IJEPABackbone, IJEPAPredictor

    sizes = {"num_layers": 2, "num_heads": 4, "hidden_dim": WIDTH}
    encoder = IJEPABackbone(image_size=8, patch_size=2, mlp_dim=128, **sizes)
    predictor = IJEPAPredictor(
        seq_length=1,
        predictor_embed_dim=WIDTH,
        num_patches=16,
        mlp_dim=WIDTH,
        dropout=0,
        attention_dropout=0,
        **sizes,
    )
    method = IJEPA(failure, encoder, predictor)
    watch = Watch(folder, method, **options)
    train(watch, method, adamw(method, failure), warm_up=10)


class LightlyDINO(nn.Module):
    """lightly's example with two views."""

    def __init__(self, failure):
        from lightly.loss import DINOLoss
        from lightly.models.modules import DINOProjectionHead

        super().__init__()
        self.momentum = 0.0 if failure == MOMENTUM else 0.99
        self.student_backbone = conv_net()
        self.student_head = DINOProjectionHead(WIDTH, 128, 32, 256)
        self.teacher_backbone = copy.deepcopy(self.student_backbone)
        self.teacher_head = DINOProjectionHead(WIDTH, 128, 32, 256)
        self.teacher_backbone.requires_grad_(failure == STOP_GRADIENT)
        self.teacher_head.requires_grad_(failure == STOP_GRADIENT)
        self.criterion = DINOLoss(output_dim=256)

    def forward(self, *views):
        teacher = [self.teacher_head(self.teacher_backbone(x).flatten(1)) for x in views]
        student = [self.student_head(self.student_backbone(x).flatten(1)) for x in views]
        return self.criterion(teacher, student, epoch=0)

    def after_step(self):
        from lightly.models.utils import update_momentum

        update_momentum(self.student_backbone, self.teacher_backbone, m=self.momentum)
        update_momentum(self.student_head, self.teacher_head, m=self.momentum)


def lightly_dino(folder, failure, **options):
    method = LightlyDINO(failure)
    train(Watch(folder, method, views=2, **options), method, adamw(method, failure))
