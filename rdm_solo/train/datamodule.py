"""Build the data set, the views and the loaders of a run."""

from typing import Any, Literal

from omegaconf import DictConfig

from rdm_solo.cli.instantiation import instantiate
from rdm_solo.data import Dataset, Loader, Views, loader
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl


def make_data(cfg: DictConfig) -> tuple[Dataset, Views]:
    """Build ``dataset.source`` and ``dataset.views``."""
    dataset, views = instantiate(cfg.dataset.source), instantiate(cfg.dataset.views)
    for name, value, expected in (("source", dataset, Dataset), ("views", views, Views)):
        if not isinstance(value, expected):
            raise UserError(
                f"dataset.{name} must name a function that returns a rdm_solo.data."
                f"{expected.__name__} (its _target_), got {value!r:.80}."
            )
    return dataset, views


class DataModule(pl.LightningDataModule):
    """Load training views, validation images, and clean training images for the kNN classifier."""

    def __init__(
        self,
        dataset: Dataset,
        views: Views,
        batch_size: int,
        seed: int = 0,
        expand_channels: int | None = None,
    ) -> None:
        super().__init__()
        self.dataset, self.views, self.batch_size = dataset, views, batch_size
        self.options: dict[str, Any] = {"seed": seed, "expand_channels": expand_channels}
        self._memory: Loader | None = None
        self._loaders: list[Loader] = []
        # Raise the loader's errors now rather than when training starts.
        loader(dataset, "train", batch_size, views=views, **self.options)

    def _loader(
        self, part: Literal["train", "val"], batch_size: int, views: Views | None = None
    ) -> Loader:
        device = self.trainer.strategy.root_device
        batches = loader(self.dataset, part, batch_size, views=views, device=device, **self.options)
        self._loaders.append(batches)
        return batches

    def skipped(self) -> dict[str, str]:
        """Return the paths of the images that this process has skipped so far, with the reasons."""
        return {path: why for batches in self._loaders for path, why in batches.skipped.items()}

    def train_dataloader(self) -> Loader:
        return self._loader("train", self.batch_size, self.views)

    def val_dataloader(self) -> Loader | list[Loader]:
        if self.dataset.val is None or not self.dataset.labelled:
            return []
        return self._loader("val", 512)

    def memory_dataloader(self) -> Loader:
        """Return the loader of clean training images, in order; it is created once and reused."""
        self._memory = self._memory or self._loader("train", 512)
        return self._memory
