"""Compute class counts and scaled learning rates from the config and the data set."""

import logging
import os
from dataclasses import dataclass

import torch
from omegaconf import DictConfig, OmegaConf, open_dict

from rdm_solo.data.images import Dataset
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_integer
from rdm_solo.methods.descriptions import method

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


def on_cpu(trainer: DictConfig) -> bool:
    """Return whether the run trains on the CPU."""
    if trainer.accelerator == "auto":
        return not torch.cuda.is_available()
    return bool(trainer.accelerator == "cpu")


def world_size(trainer: DictConfig) -> int:
    """Return the number of processes of the run, as Lightning will count them."""
    devices = trainer.devices
    if devices in ("auto", -1):
        devices = 1 if on_cpu(trainer) else max(1, torch.cuda.device_count())
    elif OmegaConf.is_list(devices):
        devices = len(devices)
    return int(devices) * int(trainer.num_nodes)


def limit_threads(threads: int | None) -> None:
    """Limit CPU threads here and in the processes that Lightning starts; None sets no limit."""
    if threads is not None:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)


def fit_batch(cfg: DictConfig, dataset: Dataset) -> DictConfig:
    """Return the config with a batch size that the data set can fill."""
    largest = len(dataset.train) // world_size(cfg.trainer)
    if cfg.batch_size <= largest:
        return cfg
    check_integer("batch_size, limited by the number of training images,", largest, 2)
    log.info(f"batch_size={largest} instead of {cfg.batch_size}: the data set has no more images")
    with_batch = cfg.copy()
    with_batch.batch_size = largest
    return with_batch


def derive(
    cfg: DictConfig, dataset: Dataset, num_large_crops: int, num_small_crops: int
) -> tuple[DictConfig, Derived]:
    """Return the config with class counts and scaled learning rates, and the values themselves.

    The linear scaling rule is applied here and nowhere else:
    ``lr * batch_size * processes * accumulation / 256``.
    """
    from rdm_solo.methods.solo_learn import MULTI_CROP

    if num_large_crops != 2 or (num_small_crops and cfg.method.name not in MULTI_CROP):
        raise UserError(
            f"dataset.views makes {num_large_crops} large crops and {num_small_crops} small ones: "
            f"every method takes two large crops, and small ones need "
            f"method={' or method='.join(MULTI_CROP)}."
        )
    processes, images = world_size(cfg.trainer), len(dataset.train)
    filter_batch = cfg.batch_size * processes
    _check_method(cfg, dataset, filter_batch)
    if cfg.knn.every_n_epochs and cfg.knn.k > images:
        raise UserError(
            f"knn.k={cfg.knn.k} neighbours are more than the {images} training images of "
            f"dataset={dataset.name}; lower it, or set knn.every_n_epochs=0."
        )
    global_batch = filter_batch * cfg.trainer.accumulate_grad_batches
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
        cfg.optimizer.lr, cfg.optimizer.classifier_lr = derived.lr, derived.classifier_lr
        cfg.dataset.num_classes = dataset.num_classes
        cfg.dataset.num_large_crops = num_large_crops
        cfg.dataset.num_small_crops = num_small_crops
    return cfg, derived


def _check_method(cfg: DictConfig, dataset: Dataset, batch: int) -> None:
    """Refuse options that would make solo-learn's class fail later or train incorrectly."""
    from rdm_solo.methods.building import check_kwargs  # loads solo-learn

    description, kwargs = method(cfg.method.name), cfg.method.kwargs
    check_kwargs(kwargs)
    queue = kwargs.get("queue_size")
    if (description.queue or queue) and (queue < batch or (description.queue and queue % batch)):
        requirement = "a multiple of" if description.queue else "at least"
        raise UserError(
            f"method.kwargs.queue_size={queue} must be {requirement} the {batch} rows that "
            "each batch adds to it."
        )
    if description.labels and not dataset.labelled:
        raise UserError(f"method={description.name} needs labels; {dataset.name} has none.")
