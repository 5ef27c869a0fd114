"""Linear evaluation: ``python -m rdm_solo.linear run=RUN_FOLDER``."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo import cli
from rdm_solo.runs.files import LINEAR, LINEAR_TABLE, SUMMARY, write_whole

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rdm_solo.data.images import Dataset
    from rdm_solo.evaluate.features import Loaders
    from rdm_solo.evaluate.probe import EpochRow, ProbeResult, Protocol
    from rdm_solo.methods.weight_files import Spec, Weights

log = logging.getLogger("rdm_solo")

# What the features= options are called in results, and what their scalars begin with.
VARIANTS = {"augmented": ("protocol", "linear/"), "cached": ("cached", "linear/cached_")}
COLUMNS = ("features", "entry", "seed", "epoch", "lr", "loss", "top1", "top5")
# What a repetition under another seed has of its own; all else in a record is its settings.
OUTCOMES = ("top1", "top5", "seed", "seconds", "device", "versions")


def evaluate(cfg: DictConfig) -> dict[str, Any]:
    """One evaluation: config in; backbone, data and classifier; results written."""
    import hydra.utils
    import torch

    from rdm_solo.evaluate import features
    from rdm_solo.methods import weight_files

    protocol = _protocol(cfg)
    device = _device(cfg.device)
    weights, spec = _source(cfg)
    told = cfg.run is not None or cfg.backbone.stem is not None
    assumed = None if told else weight_files.assumed(weights, spec)
    out = _out(cfg)
    backbone = weight_files.load(weights, spec, cfg.dataset.image_size).to(device)
    dataset = hydra.utils.instantiate(cfg.dataset.source)
    _check_labels(dataset)
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
        "versions": _versions(),
    }
    alike = _write(out, cfg.features, record, result.curve)
    if cfg.run is not None:
        _tell_the_run(Path(cfg.run), cfg.features, record, alike, weights.step or 0)
    _announce(record, protocol, result, alike, out)
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


def _protocol(cfg: DictConfig) -> Protocol:
    from rdm_solo.evaluate.probe import Protocol
    from rdm_solo.messages import suggest

    if cfg.features not in VARIANTS:
        raise ValueError(
            f"features must be {' or '.join(VARIANTS)}, got {cfg.features!r}"
            f"{suggest(cfg.features, list(VARIANTS))}."
        )
    if isinstance(cfg.seed, bool) or not isinstance(cfg.seed, int) or cfg.seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {cfg.seed!r}.")
    if cfg.features == "cached":
        for name, value in cfg.augmentation.items():
            if value is not None:
                raise ValueError(
                    f"augmentation.{name}={value} would be ignored: features=cached takes plain "
                    "images; leave one of them out."
                )
    given: Any = OmegaConf.to_container(cfg)
    return Protocol(**{name: given[name] for name in Protocol.__dataclass_fields__})


def _device(name: str) -> torch.device:
    import torch

    found = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if found else "cpu")
    if name not in ("cpu", "cuda", "gpu"):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}.")
    if name != "cpu" and not found:
        raise ValueError(
            f"device={name}, but this machine shows no GPU to torch {torch.__version__}; use "
            "device=cpu or device=auto."
        )
    return torch.device("cpu" if name == "cpu" else "cuda")


def _source(cfg: DictConfig) -> tuple[Weights, Spec]:
    """The weights to evaluate and the backbone that they belong to."""
    from rdm_solo.methods import weight_files
    from rdm_solo.runs import checkpoints

    if cfg.run is None and cfg.checkpoint is None:
        raise ValueError("give run=RUN_FOLDER, or checkpoint=FILE with dataset=...; --help says.")
    if cfg.get("dataset") is None:
        raise ValueError(f"checkpoint={cfg.checkpoint} does not say on which images: add dataset=.")
    given = {name: value for name, value in cfg.backbone.items() if value}
    if cfg.run is not None:
        if given:
            name, value = next(iter(given.items()))
            raise ValueError(
                f"backbone.{name}={value} would be ignored: run={cfg.run} says what its backbone "
                "is; leave it out."
            )
        return checkpoints.of_run(cfg.run, cfg.checkpoint)
    weights = weight_files.read(cfg.checkpoint)
    if not given:
        return weights, weight_files.known(weights)
    if given.get("stem") not in (None, "small", "imagenet"):
        raise ValueError(f"backbone.stem must be small or imagenet, got {given['stem']!r}.")
    about = weights.spec or weight_files.guess(weights.state)
    name = given.get("name") or weight_files.known(weights).name
    same = about if about is not None and about.name == name else None
    stem = given.get("stem") or (same.stem if same else "imagenet")
    kwargs = {**(same.kwargs if same else {}), **_plain(given.get("kwargs", {}))}
    return weights, weight_files.Spec(name, stem, kwargs)


def _plain(kwargs: Any) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(kwargs) if OmegaConf.is_config(kwargs) else kwargs
    return {name: value for name, value in found.items() if value is not None}


def _check_labels(dataset: Dataset) -> None:
    if not dataset.labelled:
        raise ValueError(
            f"dataset={dataset.name} has no labels, which a linear evaluation needs; give another "
            "dataset=..., or sort its images into a folder for each class."
        )
    if dataset.val is None:
        raise ValueError(
            f"dataset={dataset.name} has no validation images to measure accuracies on; add a "
            "validation folder (dataset.val)."
        )


def _versions() -> dict[str, str]:
    from rdm_solo.train import closing

    return closing.versions()


def _out(cfg: DictConfig) -> Path:
    """The folder of results, made now: a long evaluation must not end on one that is refused."""
    folder = Path(cfg.out or cfg.run or f"{cfg.checkpoint}_linear")
    cli.make_folder(folder)
    return folder


def _place(path: Path, folder: Path) -> str:
    """A file's path, relative where it lies in the folder of results, which may move."""
    path, folder = path.resolve(), folder.resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _write(
    folder: Path, features: str, record: dict[str, Any], curve: list[EpochRow]
) -> list[dict[str, Any]]:
    """``linear.json`` and ``linear.csv``, where every evaluation keeps its entry.

    One of the same settings and seed is replaced. Returns the entries of the same settings.
    """
    variant, _ = VARIANTS[features]
    closing = folder / LINEAR
    known = json.loads(closing.read_text()) if closing.is_file() else {}
    entries: list[dict[str, Any]] = known.get(variant, [])
    if isinstance(entries, dict):  # a file of one entry, as it was written once
        entries = [entries]
    settings = _settings(record)
    alike = [i for i, entry in enumerate(entries) if _settings(entry) == settings]
    at = next((i for i in alike if entries[i]["seed"] == record["seed"]), len(entries))
    entries[at : at + 1] = [record]
    write_whole(closing, json.dumps({**known, variant: entries}, indent=2) + "\n")

    table = folder / LINEAR_TABLE
    rows: list[dict[str, Any]] = []
    if table.is_file():
        with open(table, newline="") as file:
            rows = list(csv.DictReader(file))
        _count_from_1(rows)
    key = {"features": features, "entry": str(at)}
    rows = [row for row in rows if any(row[name] != value for name, value in key.items())]
    rows += [{**key, "seed": record["seed"], **asdict(row)} for row in curve]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    write_whole(table, text.getvalue())
    return [entries[i] for i in sorted({*alike, at})]


def _count_from_1(rows: list[dict[str, Any]]) -> None:
    """Shift the epochs of evaluations by earlier versions, which begin with epoch 0."""

    def evaluation(row: dict[str, Any]) -> tuple[str, str]:
        return row["features"], row["entry"]

    old = {evaluation(row) for row in rows if row["epoch"] == "0"}
    for row in rows:
        if evaluation(row) in old:
            row["epoch"] = str(int(row["epoch"]) + 1)


def _settings(record: dict[str, Any]) -> dict[str, Any]:
    """What two evaluations must share for their accuracies to be averaged, as JSON has it."""
    plain = json.loads(json.dumps(record))
    return {name: value for name, value in plain.items() if name not in OUTCOMES}


def _moments(alike: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Mean and standard deviation of several seeds' accuracies."""
    values = [record[name] for record in alike]
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values)}


def _tell_the_run(
    folder: Path, features: str, record: dict[str, Any], alike: list[dict[str, Any]], step: int
) -> None:
    """The accuracies in the run's ``summary.json`` and loggers."""
    from rdm_solo import loggers

    variant, prefix = VARIANTS[features]
    accuracies = {name: record[name] for name in ("top1", "top5")}
    path = folder / SUMMARY
    if path.is_file():
        summary = json.loads(path.read_text())
        told: dict[str, Any] = {**accuracies, "seed": record["seed"]}
        if len(alike) > 1:
            told["seeds"] = {"n": len(alike), **{n: _moments(alike, n) for n in accuracies}}
        summary.setdefault("linear", {})[variant] = told
        write_whole(path, json.dumps(summary, indent=2) + "\n")
    scalars = {f"{prefix}{name}": value for name, value in accuracies.items()}
    took = loggers.append(folder, scalars, step)
    if took:
        log.info(f"{', '.join(scalars)} went to {' and '.join(took)}")


def _announce(
    record: dict[str, Any],
    protocol: Protocol,
    result: ProbeResult,
    alike: list[dict[str, Any]],
    out: Path,
) -> None:
    log.info(
        f"top-1 {result.top1:.2f} %, top-{result.k} {result.top5:.2f} % on {record['dataset']} "
        f"({record['features']} features, {protocol.epochs} epochs, learning rate {protocol.lr:g} "
        f"x {protocol.batch_size}/256 = {protocol.effective_lr:g}, seed {record['seed']})"
    )
    if record["assumed"]:
        log.info(f"assumed of the stem: {record['assumed']}")
    if len(alike) > 1:
        top1 = _moments(alike, "top1")
        log.info(f"top-1 {top1['mean']:.2f} ± {top1['sd']:.2f} % over {len(alike)} seeds")
    log.info(f"{record['seconds']:.0f} s; linear.json and linear.csv are in {out}")


def implied(argv: list[str]) -> list[str]:
    """The choices that follow from the others: the run's data set, and its protocol."""
    given = dict(argument.split("=", 1) for argument in argv if "=" in argument)
    choices = []
    dataset = given.get("dataset")
    if "run" in given and dataset is None:
        from hydra.core.config_store import ConfigStore

        from rdm_solo.runs import checkpoints

        # Several under -m; `cli.quote_paths` has quoted each.
        runs = [a or b for a, b in re.findall(r"'([^']*)'|\"([^\"]*)\"", given["run"])]
        nodes = [checkpoints.run_config(Path(run)).dataset for run in runs or [given["run"]]]
        node = nodes[0]
        for run, other in zip(runs, nodes):
            if other != node:
                raise ValueError(
                    f"run={runs[0]} and run={run} have data sets of their own ({node.name} and "
                    f"{other.name}, or other settings): sweep over them apart, or give dataset=..."
                )
        plain = OmegaConf.to_container(node, resolve=False)
        ConfigStore.instance().store(group="dataset", name="of_run", node=plain)
        choices.append("dataset=of_run")
        dataset = node.name
    if dataset == "imagenet" and "protocol" not in given:
        choices.append("protocol=lars")
    return choices


def _job(cfg: DictConfig) -> None:
    with cli.sentences():
        evaluate(cfg)


def main() -> None:
    """The command."""
    cli.command(_job, "linear", lambda argv: [*argv, *implied(argv)])
