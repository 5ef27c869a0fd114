"""The loaders of a run, on the device that trains."""

from __future__ import annotations

from rdm_solo.data.file_loader import FileLoader
from rdm_solo.data.images import Dataset, Files
from rdm_solo.data.memory_loader import EpochLoader
from rdm_solo.data.views import Views
from rdm_solo.lightning import pl

__all__ = ["DataModule"]


class DataModule(pl.LightningDataModule):  # type: ignore[misc,name-defined]
    """Training views, validation images, and clean training images for the kNN's memory."""

    def __init__(
        self,
        dataset: Dataset,
        views: Views,
        batch_size: int,
        seed: int = 0,
        expand_channels: int | None = None,
    ) -> None:
        super().__init__()
        self.dataset, self.views = dataset, views
        self.batch_size, self.seed = batch_size, seed
        self.expand_channels = expand_channels
        self._memory: EpochLoader | None = None

    def _loader(self, images: object, **options: object) -> EpochLoader:
        loader = FileLoader if isinstance(images, Files) else EpochLoader
        return loader(
            images,  # type: ignore[arg-type]
            mean=self.dataset.mean,
            std=self.dataset.std,
            seed=self.seed,
            device=self.trainer.strategy.root_device,
            expand_channels=self.expand_channels,
            **options,  # type: ignore[arg-type]
        )

    def train_dataloader(self) -> EpochLoader:
        return self._loader(self.dataset.train, batch_size=self.batch_size, views=self.views)

    def val_dataloader(self) -> EpochLoader | list[EpochLoader]:
        """Validation images; nothing where there are none, or no labels to compare with."""
        if self.dataset.val is None or not self.dataset.labelled:
            return []
        return self._loader(self.dataset.val, batch_size=512, shuffle=False, drop_last=False)

    def memory_dataloader(self) -> EpochLoader:
        """Clean training images, in order; the same loader each time, so they are copied once."""
        if self._memory is None:
            self._memory = self._loader(
                self.dataset.train, batch_size=512, shuffle=False, drop_last=False
            )
        return self._memory
