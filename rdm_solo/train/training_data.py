"""Build a run's data set, views and loaders, and the values of the config that follow from them."""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Literal

from omegaconf import DictConfig, open_dict

from rdm_solo.cli.instantiation import instantiate
from rdm_solo.data import Dataset, Loader, Views, loader
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl
from rdm_solo.ground.values import check_integer
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.methods.descriptions import method
from rdm_solo.train.processes import world_size

log = logging.getLogger("rdm_solo")


@dataclass(frozen=True)
class Derived:
    """Values that are computed from the config and the data set."""

    processes: int
    filter_batch: int  # rows that a filter sees, over all processes
    global_batch: int  # rows per optimiser step, including accumulated batches
    base_lr: float
    lr: float  # scaled by the global batch
    classifier_lr: float
    num_classes: int


def make_data(cfg: DictConfig) -> tuple[Dataset, Views]:
    """Build ``dataset.source`` and ``dataset.views``."""
    dataset = instantiate(cfg.dataset.source)
    if not isinstance(dataset, Dataset):
        raise UserError(
            f"dataset.source must name a function that returns a rdm_solo.data.Dataset, got "
            f"{type(dataset).__name__}."
        )
    views = instantiate(cfg.dataset.views)
    if not isinstance(views, Views):
        raise UserError(f"dataset.views must be rdm_solo.data.Views, got {type(views).__name__}.")
    return dataset, views


def limit_batch(cfg: DictConfig, dataset: Dataset) -> DictConfig:
    """Return the config with a batch size that the data set can fill.

    Log how many images are left over if they are more than a tenth.
    """
    images = len(dataset.train)
    processes = world_size(cfg.trainer)
    largest = images // processes
    if cfg.batch_size <= largest:
        rest = images % (cfg.batch_size * processes)
        if rest > images / 10:
            log.info(
                f"each epoch leaves out {rest} of {images} images, different ones each time: only "
                f"full batches of {cfg.batch_size * processes} are used; a smaller batch_size "
                "leaves out fewer"
            )
        return cfg
    check_integer("batch_size, limited by the number of training images,", largest, 2)
    log.info(f"batch_size={largest} instead of {cfg.batch_size}: the data set has no more images")
    cfg = cfg.copy()
    cfg.batch_size = largest
    return cfg


def derive(cfg: DictConfig, dataset: Dataset, views: Views) -> tuple[DictConfig, Derived]:
    """Return the config with class counts and scaled learning rates, and the values themselves.

    The linear scaling rule is applied here and nowhere else:
    ``lr * batch_size * processes * accumulation / 256``.
    """
    processes = world_size(cfg.trainer)
    filter_batch = cfg.batch_size * processes
    global_batch = filter_batch * cfg.trainer.accumulate_grad_batches
    _check_method(cfg, dataset, views, filter_batch)
    derived = Derived(
        processes=processes,
        filter_batch=filter_batch,
        global_batch=global_batch,
        base_lr=float(cfg.optimizer.lr),
        lr=cfg.optimizer.lr * global_batch / 256,
        classifier_lr=cfg.optimizer.classifier_lr * global_batch / 256,
        num_classes=dataset.num_classes,
    )
    cfg = cfg.copy()
    with open_dict(cfg):
        cfg.optimizer.lr = derived.lr
        cfg.optimizer.classifier_lr = derived.classifier_lr
        cfg.dataset.num_classes = dataset.num_classes
        cfg.dataset.num_large_crops = views.num_large_crops
        cfg.dataset.num_small_crops = views.num_small_crops
    return cfg, derived


def _check_method(cfg: DictConfig, dataset: Dataset, views: Views, batch: int) -> None:
    """Refuse options that would make a run of this method fail later or train incorrectly."""
    from rdm_solo.methods.building import check_kwargs  # loads solo-learn
    from rdm_solo.methods.solo_learn import MULTI_CROP

    description = method(cfg.method.name)
    large, small = views.num_large_crops, views.num_small_crops
    if large != 2 or (small and description.name not in MULTI_CROP):
        raise UserError(
            f"dataset.views makes {large} large crops and {small} small ones: every method takes "
            f"two large crops, and small ones need method={' or method='.join(MULTI_CROP)}."
        )
    kwargs = cfg.method.kwargs
    check_kwargs(kwargs)
    chosen = ChosenFilter.from_config(cfg)
    if chosen.function == "truncate":
        # The filter of one batch has at most as many directions as the batch has rows.
        directions = kwargs.proj_output_dim
        if not chosen.momentum:
            directions = min(directions, batch)
        check_integer("filter.keep", chosen.parameters["keep"], 1, directions - 1)
    queue = kwargs.get("queue_size")
    if description.queue and (queue < batch or queue % batch):
        raise UserError(
            f"method.kwargs.queue_size={queue} must be a multiple of the {batch} rows that each "
            "batch adds to it."
        )
    if queue and queue < batch:  # SwAV's queue, which is off if it has no rows
        raise UserError(
            f"method.kwargs.queue_size={queue} must be at least the {batch} rows that each batch "
            "adds to it."
        )
    if description.labels and not dataset.labelled:
        raise UserError(f"method={description.name} needs labels; {dataset.name} has none.")
    if cfg.knn.every_n_epochs and cfg.knn.k > len(dataset.train):
        raise UserError(
            f"knn.k={cfg.knn.k} neighbours are more than the {len(dataset.train)} training images "
            f"of dataset={dataset.name}; lower it, or set knn.every_n_epochs=0."
        )


class DataModule(pl.LightningDataModule):
    """Load training views, validation images, and clean training images for the kNN classifier.

    A training batch is ``(indices, [view_1, view_2, ...], labels)``; its order and views depend on
    the seed and the epoch only. Batches of the other two loaders are ``(images, labels)``.
    """

    def __init__(
        self,
        dataset: Dataset,
        views: Views,
        batch_size: int,
        seed: int = 0,
        expand_channels: int | None = None,
    ) -> None:
        super().__init__()
        self.dataset = dataset
        self.views = views
        self.batch_size = batch_size
        self._load = partial(loader, dataset, seed=seed, expand_channels=expand_channels)
        self._loaders: list[Loader] = []
        self._memory: Loader | None = None
        # Raise the loader's errors now rather than when training starts.
        self._load("train", batch_size, views=views)

    def _loader(
        self, part: Literal["train", "val"], batch_size: int, views: Views | None = None
    ) -> Loader:
        device = self.trainer.strategy.root_device
        batches = self._load(part, batch_size, views=views, device=device)
        self._loaders.append(batches)
        return batches

    def skipped(self) -> dict[str, str]:
        """Return the paths of the images that this process has skipped so far, with the reasons."""
        reasons: dict[str, str] = {}
        for batches in self._loaders:
            reasons |= batches.skipped
        return reasons

    def train_dataloader(self) -> Loader:
        return self._loader("train", self.batch_size, self.views)

    def val_dataloader(self) -> Loader | list[Loader]:
        if self.dataset.val is None or not self.dataset.labelled:
            return []
        return self._loader("val", 512)

    def memory_dataloader(self) -> Loader:
        """Return the loader of clean training images, in order; it is created once and reused."""
        if self._memory is None:
            self._memory = self._loader("train", 512)
        return self._memory
