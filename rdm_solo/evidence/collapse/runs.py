"""One run of the study: its settings drawn, trained, labelled and measured; a row of the table."""

import copy
import math
import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from rdm_solo import cli, runs
from rdm_solo.callbacks.knn import Neighbours, unit
from rdm_solo.data.images import Images
from rdm_solo.data.loaders import loader
from rdm_solo.evidence.collapse import sets
from rdm_solo.lightning import pl
from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.runs import spectra_files
from rdm_solo.runs.files import METRICS
from rdm_solo.spectra.ranks import effective_rank
from rdm_solo.train import closing, training
from rdm_solo.train.training import Parts

PLAN: Any = OmegaConf.to_container(
    OmegaConf.create((files(__package__) / "study.yaml").read_text(encoding="utf-8"))
)
PARTS = ("choose", "judge", "test", "last")
OTHERS = "others"  # the part of other methods
# Columns with a number for each epoch: what the warnings read, and what the labels do.
READ = {
    "variance": "feature/spread",
    "erank": "erank/projection",
    "centred": "erank/centred",
    "logits": "erank/logits",
}
MEASURED = (*READ, "gap")
LABELS = ("knn", "held_out_rank", "held_out_variance")
ABOUT = ("name", "part", "data", "setting", "method", "options", "distinct", "batch_norm")
HEAD = (*ABOUT, "dimensions", "diverged", *LABELS, *MEASURED, "versions")


@dataclass(frozen=True)
class Planned:
    """A run of the plan: which part it belongs to, and what it draws by."""

    part: str
    data: str
    setting: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.part}/{self.data}/{self.setting}/{self.number}"


def planned() -> Iterator[Planned]:
    """All runs of the plan, part after part, each so mixed that a study that stops early has some
    of everything."""
    for part in (*PARTS, OTHERS):
        found = [
            Planned(part, data, setting, number)
            for setting, options in settings(part).items()
            for data in PLAN["sets"]
            for number in range(options.get("times", 1))
        ]
        random.Random("order").shuffle(found)
        yield from found


def settings(part: str) -> Any:
    """The settings of a part of the plan."""
    return PLAN[OTHERS if part == OTHERS else "settings"]


def is_here(run: Planned) -> bool:
    """Whether the installed solo-learn has its method."""
    option = next(o for o in settings(run.part)[run.setting]["options"] if o.startswith("method="))
    return solo_learn.GENERATION in METHODS[option.removeprefix("method=")].versions


@dataclass(frozen=True)
class Drawn:
    """The settings that a planned run drew."""

    options: list[str]
    seed: int
    distinct: int  # training samples, repeated to the set's size
    batch_norm: bool


def draw(run: Planned) -> Drawn:
    """The same settings for the same planned run, whoever asks."""
    setting, dice = settings(run.part)[run.setting], random.Random(PLAN["draws"] + run.name)
    drawn = PLAN["drawn"]
    seed = dice.randrange(1000, 2**31)
    factor = _between(dice, *setting.get("rate", drawn["rate"]))
    typed = {
        "batch_size": dice.choice(drawn["batch_size"]),
        "method.kwargs.proj_output_dim": dice.choice(drawn["proj_output_dim"]),
    }
    typed |= {name: dice.choice(values) for name, values in setting.get("draw", {}).items()}
    distinct = dice.choice(setting.get("distinct", [sets.TRAIN]))
    given = [*PLAN["shared"], *PLAN["sets"][run.data]["options"], *setting["options"]]
    given += [f"{name}={value}" for name, value in typed.items()] + [f"seed={seed}"]
    rate = cli.compose("config", given).optimizer.lr * factor
    options = [*given, f"optimizer.lr={rate:.3g}"]
    return Drawn(options, seed, distinct, setting.get("batch_norm", True))


def _between(dice: random.Random, low: float, high: float) -> float:
    """A factor between both, whose logarithm is uniform."""
    return float(low * (high / low) ** dice.random())


class Labels(pl.Callback):  # type: ignore[misc]
    """Before training and after each epoch, on clean samples and in ``eval()``: kNN accuracy of the
    features, and variance and effective rank of the validation outputs around their mean."""

    def __init__(self, memory: Any, validation: Any) -> None:
        self.loaders = memory, validation
        self.found: dict[str, list[float]] = {name: [] for name in LABELS}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._measure(pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._measure(pl_module)

    @torch.no_grad()
    def _measure(self, model: Any) -> None:
        was, _ = model.training, model.eval()
        (memory, labels), (queries, expected) = map(partial(_features, model), self.loaders)
        outputs, directions = outputs_of(model, queries)
        model.train(was)
        near = Neighbours(unit(queries), k=20)
        near.add(unit(memory), labels)
        right = near.scores(sets.CLASSES, temperature=0.07).argmax(1) == expected
        around, spanned = (x - x.mean(0) for x in (unit(outputs).double(), directions.double()))
        finite = bool(spanned.isfinite().all())  # else the guard ends the run after this
        values = (
            float(100 * right.float().mean()),
            float(effective_rank(torch.linalg.svdvals(spanned).square())) if finite else math.nan,
            float(around.square().sum(1).mean()),
        )
        for name, value in zip(LABELS, values):
            self.found[name].append(value)


def _features(model: Any, loader: Any) -> tuple[Tensor, Tensor]:
    """The backbone's features and the labels of a loader's samples."""
    batches = [(model.backbone(x), y) for x, y in loader]
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def outputs_of(model: Any, features: Tensor) -> tuple[Tensor, Tensor]:
    """What the loss compares, before any filter, predictor or softmax; and the unit vectors that
    the last layer before a softmax makes it from, or else itself as unit vectors."""
    if hasattr(model, "head"):
        hidden = unit(model.head.mlp(features))
        return model.head.last_layer(hidden), hidden
    z = model.projector(features)
    hidden = unit(z)
    prototypes = getattr(model, "prototypes", None)
    if isinstance(prototypes, nn.ModuleList):  # DeepCluster v2's, of which the first is measured
        prototypes = prototypes[0]
    return (z if prototypes is None else prototypes(hidden)), hidden


def measure(run: Planned) -> dict[str, str]:
    """Train a planned run; its row."""
    drawn = draw(run)
    cfg = cli.compose("config", drawn.options)
    diverged = ""
    with tempfile.TemporaryDirectory() as folder:
        labels = Labels(None, None)
        parts = _with_data(training.build(cfg, Path(folder), [labels]), run, drawn, labels)
        if not drawn.batch_norm:
            _drop_batch_norm(parts.model)
        try:
            training.fit(parts)
        except FloatingPointError as error:
            diverged = str(error)
        dimensions, measured = _measured(Path(folder))
    row = {
        "name": run.name,
        **{name: getattr(run, name) for name in ("part", "data", "setting")},
        "options": " ".join(drawn.options[len(PLAN["shared"]) :]),
        "distinct": str(drawn.distinct),
        "batch_norm": str(drawn.batch_norm).lower(),
        "method": cfg.method.name,
        "dimensions": str(dimensions),
        "diverged": diverged,
        "versions": " ".join(f"{name}={version}" for name, version in closing.versions().items()),
    }
    return row | {name: _joined(values) for name, values in {**labels.found, **measured}.items()}


def _with_data(parts: Parts, run: Planned, drawn: Drawn, labels: Labels) -> Parts:
    model, data = parts.model, parts.data
    if run.data == "rows":
        torch.manual_seed(drawn.seed)
        model.backbone = sets.perceptron(model.features_dim)
        if hasattr(model, "momentum_backbone"):
            model.momentum_backbone = copy.deepcopy(model.backbone).requires_grad_(False)
        data = sets.RowData(data.batch_size, drawn.seed, drawn.distinct)
        labels.loaders = data.memory_dataloader(), data.val_dataloader()
        return replace(parts, data=data)
    memory, validation = (loader(data.dataset, part, sets.TRAIN) for part in ("train", "val"))
    labels.loaders = memory, validation
    images = data.dataset.train
    repeated = torch.arange(len(images)) % drawn.distinct
    shown = Images(images.images[repeated], images.labels[repeated])
    data.dataset = replace(data.dataset, train=shown)
    return parts


def _drop_batch_norm(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, (nn.BatchNorm1d, nn.BatchNorm2d)):
                setattr(module, name, nn.Identity())


def _measured(folder: Path) -> tuple[int, dict[str, list[float]]]:
    """The outputs' dimensions, and what the warnings read of each epoch."""
    if not (folder / METRICS).exists():
        return 0, {name: [] for name in MEASURED}
    table = runs.read_metrics(folder)
    found = {name: table[column].tolist() for name, column in READ.items()}
    found["gap"] = np.log(table["erank/target"] / table["erank/online"]).tolist()
    return int(spectra_files.read(folder)[0]["dimensions"].max()), found


def _joined(values: list[float]) -> str:
    return " ".join(f"{value:.4g}" for value in values)


def series(row: Mapping[str, str], name: str) -> list[float]:
    """A column of a row that has a number for each epoch.

    >>> series({"knn": "10.5 20"}, "knn")
    [10.5, 20.0]
    """
    return [float(word) for word in row[name].split()]
