"""Linear evaluation: ``python -m rdm_solo.linear run=RUN_FOLDER``."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from rdm_solo import cli
from rdm_solo.evaluate import linear_results
from rdm_solo.messages import suggest

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rdm_solo.evaluate.features import Loaders
    from rdm_solo.evaluate.probe import EpochRow, ProbeResult, Protocol

log = logging.getLogger("rdm_solo")


def evaluate(cfg: DictConfig) -> dict[str, Any]:
    """One evaluation: config in; backbone, data and classifier; results written."""
    import hydra.utils
    import torch

    from rdm_solo.evaluate import features, linear_config
    from rdm_solo.methods import weight_files
    from rdm_solo.train import closing

    _check_features(cfg)
    cfg = linear_config.with_dataset(cfg)
    protocol = linear_config.choose_protocol(cfg)
    device = linear_config.choose_device(cfg.device)
    weights, spec = linear_config.find_weights(cfg)
    known = cfg.run is not None or cfg.backbone.stem is not None
    assumed = None if known else weight_files.assumed(weights, spec)
    out = _out(cfg)
    backbone = weight_files.load(weights, spec, cfg.dataset.image_size).to(device)
    dataset = hydra.utils.instantiate(cfg.dataset.source)
    linear_config.check_labels(dataset)
    loaders = features.Loaders(dataset, cfg, device, features.channels(backbone))

    started = time.perf_counter()
    if cfg.features == "cached":
        result = _cached(backbone, loaders, protocol, cfg.seed)
    else:
        result = _augmented(backbone, loaders, protocol, cfg.seed)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    record = {
        "top1": result.top1,
        "top5": result.top5,
        "top5_counts": result.k,
        "features": cfg.features,
        "protocol": protocol.as_dict(),
        "base_lr": protocol.lr,
        "lr": protocol.effective_lr,
        "augmentation": loaders.augmentation if cfg.features == "augmented" else None,
        "seed": cfg.seed,
        "seconds": round(time.perf_counter() - started, 2),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "dataset": dataset.name,
        "images": {"train": len(dataset.train), "val": len(dataset.val)},
        "backbone": asdict(spec),
        "assumed": assumed,
        "checkpoint": _place(weights.path, out),
        "checkpoint_epoch": weights.epoch,
        "versions": closing.versions(),
    }
    alike = linear_results.write(out, cfg.features, record, result.curve)
    if cfg.run is not None:
        step = weights.step or 0
        linear_results.record_in_run(Path(cfg.run), cfg.features, record, alike, step)
    linear_results.announce(record, protocol, result, alike, out)
    return record


def _cached(backbone: nn.Module, loaders: Loaders, protocol: Protocol, seed: int) -> ProbeResult:
    from rdm_solo.evaluate.features import extract
    from rdm_solo.evaluate.probe import fit_linear

    train = extract(backbone, loaders.plain("train"))
    val = extract(backbone, loaders.plain("val"))
    return fit_linear(*train, *val, loaders.dataset.num_classes, protocol, seed)


def _augmented(backbone: nn.Module, loaders: Loaders, protocol: Protocol, seed: int) -> ProbeResult:
    from rdm_solo.evaluate.features import extract, represent
    from rdm_solo.evaluate.probe import fit

    loader = loaders.augmented(protocol.batch_size)

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        loader.set_epoch(epoch)
        for _, (x,), labels in loader:  # type: ignore[misc, unused-ignore]
            yield represent(backbone, x), labels

    def report(row: EpochRow) -> None:
        if row.epoch % max(1, protocol.epochs // 10) == 0:
            log.info(f"epoch {row.epoch} of {protocol.epochs}: top-1 {row.top1:.2f} %")

    # A frozen backbone gives an image the same features every time: the validation set's, once.
    val = extract(backbone, loaders.plain("val"))
    num_classes = loaders.dataset.num_classes
    return fit(batches, *val, num_classes, protocol, seed, report)


def _check_features(cfg: DictConfig) -> None:
    if cfg.features not in linear_results.VARIANTS:
        known = list(linear_results.VARIANTS)
        raise ValueError(
            f"features must be {' or '.join(known)}, got {cfg.features!r}"
            f"{suggest(cfg.features, known)}."
        )
    if cfg.features == "cached":
        for name, value in cfg.augmentation.items():
            if value is not None:
                raise ValueError(
                    f"augmentation.{name}={value} would be ignored: features=cached takes plain "
                    "images; leave one of them out."
                )


def _out(cfg: DictConfig) -> Path:
    """The folder of results, made now: a long evaluation must not end on one that is refused."""
    folder = Path(cfg.out or cfg.run or f"{cfg.checkpoint}_linear")
    cli.make_folder(folder)
    return folder


def _place(path: Path, folder: Path) -> str:
    """A file's path, relative where it lies in the folder of results, which may move."""
    path, folder = path.resolve(), folder.resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _job(cfg: DictConfig) -> None:
    with cli.sentences():
        evaluate(cfg)


def main() -> None:
    """The command."""
    cli.command(_job, "linear", open_sections=["dataset"])
