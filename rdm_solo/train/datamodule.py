"""The data set, the views and the loaders of a run."""

from omegaconf import DictConfig, OmegaConf

from rdm_solo.cli.answers import instantiate
from rdm_solo.data.images import Dataset
from rdm_solo.data.loaders import Loader, loader
from rdm_solo.data.views import Views
from rdm_solo.lightning import pl
from rdm_solo.messages import UserError


def made(cfg: DictConfig) -> tuple[Dataset, Views]:
    """What ``dataset.source`` and ``dataset.views`` build; ValueError for anything else."""
    parts = []
    for name, kind in (("source", Dataset), ("views", Views)):
        node = cfg.dataset[name]
        part = instantiate(node) if OmegaConf.is_dict(node) else node
        if not isinstance(part, kind):
            raise UserError(
                f"dataset.{name} must name a function that returns a rdm_solo.data.{kind.__name__} "
                f"(its _target_), got {part!r:.80}."
            )
        parts.append(part)
    return parts[0], parts[1]  # type: ignore[return-value]


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
        self.dataset, self.views, self.batch_size = dataset, views, batch_size
        self.options = {"seed": seed, "expand_channels": expand_channels}
        self._memory: Loader | None = None
        self._loaders: list[Loader] = []
        # Refuses now, with a sentence, what could not be loaded when training starts.
        loader(dataset, "train", batch_size, views=views, **self.options)

    def _loader(self, part: str, batch_size: int, views: Views | None = None) -> Loader:
        device = self.trainer.strategy.root_device
        made = loader(self.dataset, part, batch_size, views=views, device=device, **self.options)
        self._loaders.append(made)
        return made

    def skipped(self) -> dict[str, str]:
        """The images that this process's loaders have left out so far, by path, and why."""
        return {path: why for made in self._loaders for path, why in made.skipped.items()}

    def train_dataloader(self) -> Loader:
        return self._loader("train", self.batch_size, self.views)

    def val_dataloader(self) -> Loader | list[Loader]:
        """Validation images; nothing where there are none, or no labels to compare with."""
        if self.dataset.val is None or not self.dataset.labelled:
            return []
        return self._loader("val", 512)

    def memory_dataloader(self) -> Loader:
        """Clean training images, in order; the same loader each time, so they are copied once."""
        self._memory = self._memory or self._loader("train", 512)
        return self._memory
