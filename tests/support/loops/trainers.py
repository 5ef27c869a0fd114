"""Loops of a library's Trainer, with a callback that watches."""

import sys

import torch
from torch import nn

from rdm_solo.watch import WatchCallback
from support.loops import EPOCHS, MOMENTUM, PREDICTOR, STOP_GRADIENT
from support.loops.digits import BATCH, Pairs, view
from support.loops.methods import SimSiam, conv_net
from support.loops.plain import rate
from support.other_libraries import replace_what_it_imports


def fit(lightning, module, callback, batches):
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))


class Wrapped(nn.Module):
    """A user's model with the methods that lightly-train calls."""

    def __init__(self):
        super().__init__()
        self.model = conv_net()[:-2]

    def forward_features(self, x):
        return {"features": self.model(x)}

    def forward_pool(self, outputs):
        return {"pooled_features": outputs["features"].mean((2, 3), keepdim=True)}

    def feature_dim(self):
        return 64


def lightly_train(folder, failure, **options):
    """lightly-train's DINO."""
    import pytorch_lightning
    from lightly_train._methods.dino.dino import DINO, DINOAdamWArgs, DINOArgs
    from lightly_train._models.embedding_model import EmbeddingModel

    args = DINOArgs(
        hidden_dim=128,
        bottleneck_dim=32,
        output_dim=256,
        reference_batch_size=BATCH,
        student_freeze_last_layer_steps=10,
        teacher_temp=0.04,
        warmup_teacher_temp=0.04,
        warmup_teacher_temp_steps=10,
        momentum_start=0.0 if failure == MOMENTUM else 0.99,
        momentum_end=0.0 if failure == MOMENTUM else 1.0,
        weight_decay_start=0.04,
        weight_decay_end=0.04,
    )
    optimizer = DINOAdamWArgs(lr=rate(DINOAdamWArgs().lr, failure))
    method = DINO(args, optimizer, EmbeddingModel(Wrapped()), BATCH, 3)
    method._log_example_views = lambda train_batch: None
    if failure == STOP_GRADIENT:
        encoder, head = method.teacher_embedding_model, method.teacher_projection_head
        method._forward_teacher = lambda x: head(encoder(x).flatten(1))
        trained = method.trainable_modules()
        trained.modules = [*trained.modules, encoder, head]
        method.trainable_modules = lambda: trained
    batches = Pairs(lambda pair: {"views": list(pair)})
    fit(pytorch_lightning, method, WatchCallback(folder, **options), batches)


def stable_pretraining(folder, failure, **options):
    """stable-pretraining's SimSiam."""
    if "stable_pretraining" not in sys.modules:
        replace_what_it_imports()
        from stable_pretraining.module import Module

        sys.modules["stable_pretraining"].Module = Module
        sys.modules["stable_pretraining.backbone"].from_timm = None
    import lightning.pytorch
    from stable_pretraining.methods import simsiam

    class Method(simsiam.SimSiam):
        def forward(self, batch, stage):
            return vars(super().forward(batch["view1"], batch["view2"]))

    method = Method(conv_net(), 32, 8)
    if failure == PREDICTOR:
        method.predictor = nn.Identity()
    lr = rate(0.06, failure)
    sgd = {"type": "SGD", "lr": lr, "momentum": 0.9, "weight_decay": 5e-4}
    method.optim = {"optimizer": sgd, "scheduler": "ConstantLR"}
    loss = simsiam._neg_cos_sim
    if failure == STOP_GRADIENT:
        simsiam._neg_cos_sim = lambda p, z: -torch.cosine_similarity(p, z).mean()
    batches = Pairs(lambda pair: dict(zip(("view1", "view2"), pair)))
    fit(lightning.pytorch, method, WatchCallback(folder, views=2, **options), batches)
    simsiam._neg_cos_sim = loss


def hugging_face(folder, failure, **options):
    """A Trainer that fits SimSiam with the library's ViT."""
    import transformers

    from rdm_solo.watch import WatchTrainerCallback

    config = transformers.ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=8,
        patch_size=2,
    )

    class ClassToken(nn.Module):
        def forward(self, outputs):
            return outputs.last_hidden_state[:, 0]

    class Model(SimSiam):
        def __init__(self):
            super().__init__(failure, transformers.ViTModel(config, add_pooling_layer=False))
            self.projection_head.insert(0, ClassToken())

        def forward(self, x1, x2):
            return {"loss": super().forward(x1, x2)}

    def collate(images):
        images = torch.stack(images)
        return {"x1": view(images), "x2": view(images)}

    arguments = transformers.TrainingArguments(
        "trainer",
        per_device_train_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        learning_rate=rate(5e-4, failure),
        max_grad_norm=0,
        warmup_steps=10,
        seed=torch.initial_seed(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_drop_last=True,
        remove_unused_columns=False,
    )
    images = list(Pairs().images)
    callback = WatchTrainerCallback(folder, views=2, **options)
    trainer = transformers.Trainer(
        Model(), arguments, collate, train_dataset=images, callbacks=[callback]
    )
    trainer.train()
