"""solo-learn's own methods, trained by its own code for some steps.

Started as ``python solo_learn_alone.py SETTINGS RESULTS``. Nothing of this package is imported. The
release 1.0.2 was written for torch 1.9 and Lightning 1.4: the hooks that Lightning 2 calls in
another way are handed on here, and a function that torch has renamed gets its old name. None of its
computations is replaced.
"""

from __future__ import annotations

import sys
import types
import warnings

import torch


class Views(torch.utils.data.Dataset):
    """Random views of some images, with the images' indices and labels."""

    def __init__(self, images: int, side: int = 8) -> None:
        drawn = torch.Generator().manual_seed(3)
        self.views = torch.randn(2, images, 3, side, side, generator=drawn)
        self.labels = torch.randint(10, (images,), generator=drawn)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int):
        return i, [view[i] for view in self.views], self.labels[i]


def loader(batch: int, steps: int) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Views(batch * steps), batch_size=batch, drop_last=True)


def trained(model, pl, epochs: int, steps: int, batch: int = 16, precision: str = "32") -> dict:
    """Each step's loss, and the weights and buffers after the last one."""
    losses = []

    class Losses(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, *args) -> None:
            losses.append(float(outputs["loss"]))

    torch.manual_seed(1)  # of queues, k-means, dropout and whitening
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
    trainer.fit(model, loader(batch, steps))
    return {"losses": losses, "state": model.state_dict()}


def _for_lightning_2(kind: type) -> type:
    """A class of 1.0.2 whose hooks Lightning 2 can call."""
    import pytorch_lightning as pl

    own = {"validation_epoch_end": None}
    if any(base.__name__ == "BaseMomentumMethod" for base in kind.__mro__):

        def on_train_batch_end(self, outputs, batch, batch_idx):
            kind.on_train_batch_end(self, outputs, batch, batch_idx, 0)

        own["on_train_batch_end"] = on_train_batch_end
    if "clip_gradients" in vars(kind):  # DINO's own, by the name of Lightning's hook

        def clip_gradients(self, clip, *args, **kwargs):
            hook = isinstance(clip, torch.optim.Optimizer)
            (pl.LightningModule if hook else kind).clip_gradients(self, clip, *args, **kwargs)

        own["clip_gradients"] = clip_gradients
    return type(kind.__name__, (kind,), own)


def main() -> None:
    torch.set_num_threads(1)  # with several, sums are taken in another order
    settings = torch.load(sys.argv[1], weights_only=False)
    for name in ("pl_bolts", "pl_bolts.optimizers", "pl_bolts.optimizers.lr_scheduler"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[name].LinearWarmupCosineAnnealingLR = None  # of a schedule that is not used
    warnings.simplefilter("ignore")
    if settings["current"]:
        import lightning.pytorch as pl
        from omegaconf import OmegaConf
    else:
        import pytorch_lightning as pl

        torch.cholesky = torch.linalg.cholesky
    from solo.methods import METHODS

    results = {}
    for name, given in settings["methods"].items():
        torch.manual_seed(0)
        if settings["current"]:
            cfg = METHODS[name].add_and_assert_specific_cfg(OmegaConf.create(given))
            model = METHODS[name](cfg)
        else:
            model = _for_lightning_2(METHODS[name])(**given)
        if name == "swav" and not settings["current"]:  # as the current version has them
            model.prototypes.weight_g.data.fill_(1)
            model.prototypes.weight_g.requires_grad = False
        results[name] = trained(model, pl, **settings["length"][name])
    assert not [name for name in sys.modules if name.startswith("rdm_solo")]
    torch.save(results, sys.argv[2])


if __name__ == "__main__":
    main()
