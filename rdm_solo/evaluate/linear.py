"""Linear evaluation: ``python -m rdm_solo.linear run=RUN_FOLDER``."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from rdm_solo import cli
from rdm_solo.messages import CannotWrite, UserError, check_choice, check_switch, check_whole

if TYPE_CHECKING:  # torch takes seconds, and --help needs none
    from torch import Tensor


def evaluate(cfg: DictConfig) -> dict[str, Any]:
    """One evaluation: config in; backbone, data and classifier; results written."""
    import torch

    from rdm_solo.data.images import SIDES
    from rdm_solo.data.loaders import loader
    from rdm_solo.evaluate import features, linear_config, linear_results
    from rdm_solo.evaluate.probe import fit, fit_linear
    from rdm_solo.methods import weight_files
    from rdm_solo.runs import reading
    from rdm_solo.train import closing, datamodule

    cached = check_choice("features", cfg.features, linear_results.VARIANTS) == "cached"
    if cached:
        _refuse_augmentation(cfg)
    check_whole("seed", cfg.seed)
    online = check_switch("online", cfg.online)
    # Errors of what a run's folder says name it.
    of_the_run = partial(reading.named, Path(cfg.run)) if cfg.run else contextlib.nullcontext
    with of_the_run():
        cfg = linear_config.with_dataset(cfg)
    protocol = linear_config.choose_protocol(cfg)
    device = features.choose_device(cfg.device)
    weights, spec = linear_config.find_weights(cfg)
    known = cfg.run is not None or cfg.backbone.stem is not None
    assumed = None if known else weight_files.assumed(weights, spec)
    # Read, and made, now: a long evaluation must not end on a file or a folder that is refused.
    out = Path(cfg.out or cfg.run or f"{cfg.checkpoint}_linear")
    linear_results.earlier(out)
    with of_the_run():
        image_size = check_whole("dataset.image_size", cfg.dataset.get("image_size"), *SIDES)
        backbone = weight_files.load(weights, spec, image_size).to(device)
        dataset, views = datamodule.made(cfg)
        linear_config.check_labels(dataset)
        views = features.evaluation_views(views, cfg.augmentation)
        channels = features.channels(backbone)
        load = partial(loader, dataset, seed=cfg.seed, device=device, expand_channels=channels)
        plain = load("val", features.PIECE)
    cli.make_folder(out)

    started = time.perf_counter()
    # A frozen backbone gives an image the same features every time: the validation set's, once.
    val = features.extract(backbone, plain)
    read = {"train": len(dataset.train), "val": len(val[1])}
    if cached:
        augmentation = None
        train = features.extract(backbone, load("train", features.PIECE))
        read["train"] = len(train[1])
        _, curve = fit_linear(*train, *val, dataset.num_classes, protocol, cfg.seed)
    else:
        drawn = views.pipelines[0]
        augmentation = {"crop_scale": list(drawn.crop_scale), "flip": drawn.flip}
        augmented = load("train", protocol.batch_size, views=views, drop_last=False)

        def batches(epoch: int) -> "Iterator[tuple[Tensor, Tensor]]":
            augmented.set_epoch(epoch)
            for _, (x,), labels in augmented:
                yield features.represent(backbone, x), labels
            augmented.report_skipped()

        _, curve = fit(batches, *val, dataset.num_classes, protocol, cfg.seed)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    record = {
        "top1": curve[-1].top1,
        "top5": curve[-1].top5,
        "top5_counts": min(5, dataset.num_classes),
        "features": cfg.features,
        "protocol": protocol.as_dict(),
        "base_lr": protocol.lr,
        "lr": protocol.effective_lr,
        "augmentation": augmentation,
        "seed": cfg.seed,
        "seconds": round(time.perf_counter() - started, 2),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "dataset": dataset.name,
        "images": read,
        "backbone": asdict(spec),
        "assumed": assumed,
        "checkpoint": _place(weights.path, out),
        "checkpoint_epoch": weights.epoch,
        "versions": closing.versions(),
    }
    linear_results.announce(record)
    try:
        alike = linear_results.write(out, record, curve)
        if cfg.run is not None:
            run = Path(cfg.run)
            linear_results.record_in_run(run, record, alike, weights.step or 0, online)
    except CannotWrite as error:
        raise UserError(f"{error}; the accuracies above are not kept.") from error
    linear_results.conclude(record, alike, out)
    return record


def _refuse_augmentation(cfg: DictConfig) -> None:
    for name, value in cfg.augmentation.items():
        if value is not None:
            raise UserError(
                f"augmentation.{name}={value} would be ignored: features=cached takes plain "
                "images; leave one of them out."
            )


def _place(path: Path, folder: Path) -> str:
    """A file's path, relative where it lies in the folder of results, which may move."""
    path, folder = path.resolve(), folder.resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def main() -> None:
    """The command."""
    cli.command(cli.errors_as_sentences()(evaluate), "linear", open_sections=["dataset"])
