"""Linear evaluation: ``rdm-solo linear run=RUN_FOLDER``."""

import contextlib
import logging
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rdm_solo.cli import arguments

log = logging.getLogger("rdm_solo")


def evaluate(cfg: DictConfig) -> dict[str, Any]:
    """Train a linear classifier on a frozen backbone, write the results and return the record."""
    from rdm_solo.data import loader
    from rdm_solo.evaluate import extraction, linear_config, linear_results
    from rdm_solo.evaluate.probe import fit, fit_linear
    from rdm_solo.ground.devices import device_name
    from rdm_solo.ground.errors import UserError
    from rdm_solo.methods import backbones, weight_files
    from rdm_solo.runs import files
    from rdm_solo.runs.groups import mean_std
    from rdm_solo.train import reporting, training_data

    linear_config.check(cfg)
    device = extraction.choose_device(cfg.device)
    named_errors: Any = contextlib.nullcontext()
    if cfg.run is not None:
        named_errors = files.prefix_errors(Path(cfg.run))
    with named_errors:
        cfg = linear_config.with_dataset(cfg)
        protocol = linear_config.choose_protocol(cfg)
        weights, spec = linear_config.find_weights(cfg)
        backbone = weight_files.load(weights, spec, cfg.dataset.image_size).to(device)
        dataset, views = training_data.make_data(cfg)
    if not dataset.labelled or dataset.val is None:
        raise UserError(
            f"dataset={dataset.name} has no labels or no validation images, but a linear "
            "evaluation needs both; pass another dataset=..."
        )
    assumed_stem = None
    if cfg.run is None and cfg.backbone.stem is None:
        assumed_stem = weight_files.assumed_stem(weights, spec)
    # Raise now if the results could not be added to an existing linear.json.
    out = Path(cfg.out or cfg.run or f"{cfg.checkpoint}_linear")
    files.read_object(out, files.LINEAR)
    views = extraction.evaluation_views(views, cfg.augmentation)
    channels = backbones.input_channels(spec.name, spec.kwargs)
    load = partial(loader, dataset, seed=cfg.seed, device=device, expand_channels=channels)
    clean = load("val", extraction.CHUNK)
    files.make_results_folder(out)

    started = time.perf_counter()
    # The features of clean images never change, so they are extracted once.
    val, val_labels = extraction.extract(backbone, clean)
    validation = (val.to(device), val_labels.to(device), dataset.num_classes, protocol, cfg.seed)
    image_counts = {"train": len(dataset.train), "val": len(val_labels)}
    augmentation = None
    if cfg.features == "cached":
        train, labels = extraction.extract(backbone, load("train", extraction.CHUNK))
        image_counts["train"] = len(labels)
        _, curve = fit_linear(train, labels, *validation)
    else:
        pipeline = views.pipelines[0]
        augmentation = {"crop_scale": list(pipeline.crop_scale), "flip": pipeline.flip}
        augmented = load("train", protocol.batch_size, views=views, drop_last=False)
        batches = partial(extraction.augmented, backbone, augmented)
        _, curve = fit(batches, *validation)
    checkpoint = weights.path.resolve()
    if checkpoint.is_relative_to(out.resolve()):
        # A relative path stays valid if the folder is moved.
        checkpoint = checkpoint.relative_to(out.resolve())
    settings = asdict(protocol)
    settings["milestones"] = list(protocol.milestones)  # a list, as read from linear.json
    record = {
        "top1": curve[-1].top1,
        "top5": curve[-1].top5,
        "features": cfg.features,
        "protocol": settings,
        "lr": protocol.effective_lr,
        "augmentation": augmentation,
        "seed": cfg.seed,
        "curve": [row._asdict() for row in curve],
        "seconds": round(time.perf_counter() - started, 2),
        "device": device_name(device),
        "dataset": dataset.name,
        "images": image_counts,
        "backbone": asdict(spec),
        "assumed": assumed_stem,
        "checkpoint": str(checkpoint),
        "checkpoint_epoch": weights.epoch,
        "versions": reporting.versions(),
    }
    log.info(
        f"top-1 {record['top1']:.2f} %, top-5 {record['top5']:.2f} % on "
        f"{dataset.name} ({cfg.features} features, {protocol.epochs} epochs, learning rate "
        f"{protocol.effective_lr:g}, seed {cfg.seed})"
    )
    same_settings = linear_results.write(out, record)
    if cfg.run is not None:
        linear_results.log_to_run(Path(cfg.run), record, weights.step or 0, cfg.online)
    if len(same_settings) > 1:
        top1 = [entry["top1"] for entry in same_settings]
        log.info(f"top-1 {mean_std(top1, 2)} % over {len(top1)} seeds")
    log.info(f"{record['seconds']:.0f} s; the results are in {out / files.LINEAR}")
    return record


def main() -> None:
    """Run the command."""
    arguments.command(evaluate, "linear", sys.argv[1:])
