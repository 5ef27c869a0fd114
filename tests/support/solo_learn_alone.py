"""Train solo-learn's methods with its own code: ``python solo_learn_alone.py SETTINGS RESULTS``.

Nothing of this package is imported. Release 1.0.2 was written for torch 1.9 and Lightning 1.4.
Hooks that Lightning 2 calls differently are adapted here, and a function that torch has renamed
gets its old name. Of solo-learn's computation nothing is replaced, only torchvision's network.
"""

import json
import sys
import types
import warnings

import torch
import torchvision

BATCH = 16


class TinyResNet(torch.nn.Module):
    """A network of two layers with the attributes of torchvision's ResNets that solo-learn uses.

    solo-learn replaces ``conv1`` by its stem for CIFAR.
    """

    def __init__(self, **options) -> None:
        super().__init__()
        self.inplanes = 16
        self.conv1 = torch.nn.Conv2d(3, 64, 7, bias=False)
        self.conv2 = torch.nn.Conv2d(64, self.inplanes, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(self.inplanes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.norm(self.conv2(self.conv1(x)))
        return maps.relu().mean((2, 3))


def batches(steps: int, side: int = 4) -> torch.utils.data.DataLoader:
    """Return batches of indices, two random views and labels."""
    rng = torch.Generator().manual_seed(3)
    views = torch.randn(2, BATCH * steps, 3, side, side, generator=rng)
    labels = torch.randint(10, (BATCH * steps,), generator=rng)
    pairs = list(zip(*views))
    images = list(zip(range(len(labels)), pairs, labels))
    return torch.utils.data.DataLoader(images, batch_size=BATCH)


def trained(model, pl, epochs: int, steps: int, precision: str = "32") -> tuple[list, dict]:
    """Return each step's loss, and the weights and buffers after the last one."""
    losses = []

    class Losses(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, *args) -> None:
            losses.append(float(outputs["loss"]))

    torch.manual_seed(1)  # for queues, k-means, dropout and whitening
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        precision=precision,
        callbacks=[Losses()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, batches(steps))
    return losses, model.state_dict()


def _for_lightning_2(kind: type) -> type:
    """Return a class of 1.0.2 whose hooks Lightning 2 can call."""

    class Adapted(kind):
        validation_epoch_end = None

        def on_train_batch_end(self, outputs, batch, batch_idx):
            if hasattr(kind, "momentum_pairs"):
                super().on_train_batch_end(outputs, batch, batch_idx, 0)

        def configure_gradient_clipping(self, *args, **kwargs):
            """Do not call DINO's own clip_gradients, as Lightning would."""

    return Adapted


def train(settings: dict, pl) -> dict[str, tuple[list, dict]]:
    """Return what ``trained`` returns for solo-learn's own class of each method."""
    from omegaconf import OmegaConf
    from solo.methods import METHODS

    results = {}
    for name, options in settings["methods"].items():
        torch.manual_seed(0)
        if settings["current"]:
            cfg = METHODS[name].add_and_assert_specific_cfg(OmegaConf.create(options))
            model = METHODS[name](cfg)
        else:
            model = _for_lightning_2(METHODS[name])(**options)
        if name == "swav" and not settings["current"]:  # as the current version has them
            model.prototypes.weight_g.data.fill_(1)
            model.prototypes.weight_g.requires_grad = False
        results[name] = trained(model, pl, **settings["length"][name])
    return results


def main() -> None:
    torch.set_num_threads(1)  # several threads would sum in another order
    settings = json.loads(sys.argv[1])
    torchvision.models.resnet18 = TinyResNet
    # 1.0.2 imports a schedule, which is not used, from a package that Lightning 2 does not fit.
    for name in ("pl_bolts", "pl_bolts.optimizers", "pl_bolts.optimizers.lr_scheduler"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[name].LinearWarmupCosineAnnealingLR = None
    warnings.simplefilter("ignore")
    if settings["current"]:
        import lightning.pytorch as pl
    else:
        import pytorch_lightning as pl

        torch.cholesky = torch.linalg.cholesky
    results = train(settings, pl)
    assert not [name for name in sys.modules if name.startswith("rdm_solo")]
    torch.save(results, sys.argv[2])


if __name__ == "__main__":
    main()
