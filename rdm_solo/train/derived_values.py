"""Compute what follows from the config and the data set: class counts, scaled learning rates."""

import os
from dataclasses import dataclass

import torch
from omegaconf import DictConfig, OmegaConf, open_dict

from rdm_solo.data.images import Dataset
from rdm_solo.messages import UserError
from rdm_solo.methods.descriptions import method


@dataclass(frozen=True)
class Derived:
    """Values that follow from the config and the data set."""

    processes: int
    filter_batch: int  # rows that a filter sees: those of all processes together
    global_batch: int  # rows of an optimiser step, accumulated ones included
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
        devices = 1 if on_cpu(trainer) else torch.cuda.device_count()
    elif OmegaConf.is_list(devices):
        devices = len(devices)
    return int(devices) * int(trainer.num_nodes)


def limit_threads(threads: int | None) -> None:
    """Use that many CPU threads, also in the processes that Lightning starts; None: no limit."""
    if threads is not None:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)


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
            f"method={cfg.method.name} takes two large crops and no small ones, got "
            f"{num_large_crops} and {num_small_crops} from dataset.views; multi-crop goes with "
            f"method={' or method='.join(MULTI_CROP)}, two large crops beside the small ones."
        )
    processes, images = world_size(cfg.trainer), len(dataset.train)
    filter_batch = cfg.batch_size * processes
    if filter_batch > images:
        raise UserError(
            f"batch_size={cfg.batch_size} on {processes} process(es) is more than the "
            f"{images} training images of dataset={dataset.name}; lower it."
        )
    channels = cfg.dataset.get("channels")
    if channels not in (None, dataset.train.channels):
        raise UserError(
            f"dataset.channels={channels} would be ignored: the images of dataset={dataset.name} "
            f"have {dataset.train.channels}; leave it out."
        )
    _check_method(cfg, dataset, filter_batch)
    if cfg.knn.every_n_epochs and cfg.knn.k > images:
        raise UserError(
            f"knn.k={cfg.knn.k} neighbours are more than the {images} training images of "
            f"dataset={dataset.name}; lower it, or switch kNN off with knn.every_n_epochs=0."
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
    """Refuse options with which solo-learn's class would fail at some step."""
    from rdm_solo.methods.building import check_kwargs  # with solo-learn, in seconds

    described, kwargs = method(cfg.method.name), cfg.method.kwargs
    check_kwargs(kwargs)
    queue = kwargs.get("queue_size")
    if described.queue and (queue < batch or queue % batch):
        raise UserError(
            f"method.kwargs.queue_size={queue} must be a multiple of the {batch} rows of a batch "
            f"that enter it; {max(1, round(queue / batch)) * batch} is the nearest."
        )
    if isinstance(queue, int) and 0 < queue < batch:
        raise UserError(
            f"method.kwargs.queue_size={queue} is less than the {batch} rows of a batch "
            "that enter it; raise it, or give 0 for no queue."
        )
    part = kwargs.get("whitening_size")
    if part is not None and cfg.batch_size % part:
        raise UserError(
            f"method.kwargs.whitening_size={part} must divide batch_size={cfg.batch_size}."
        )
    if part is not None and part <= kwargs.proj_output_dim:
        raise UserError(
            f"method.kwargs.whitening_size={part} rows cannot be whitened in "
            f"method.kwargs.proj_output_dim={kwargs.proj_output_dim} dimensions; take at least "
            "twice as many rows as dimensions."
        )
    clusters = kwargs.get("num_prototypes")
    held = len(dataset.train) // batch * cfg.batch_size
    if OmegaConf.is_list(clusters) and max(clusters, default=1) > held:
        raise UserError(
            f"method.kwargs.num_prototypes={clusters}: k-means starts from images of one process, "
            f"which are {held} here; lower it."
        )
    if described.labels and not dataset.labelled:
        raise UserError(
            f"method={described.name} learns from labels, which dataset={dataset.name} does not "
            "have; method=simclr does without."
        )
