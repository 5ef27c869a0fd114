"""A callback that makes a run one of the study: its data, its network, and its labels."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rdm_solo.callbacks.knn import unit
from rdm_solo.data import Images, loader
from rdm_solo.lightning import pl
from rdm_solo.runs.files import write_atomically
from rdm_solo.spectra.ranks import effective_rank
from studies.collapse import sets
from studies.collapse.plan import LABELS
from studies.neighbours import knn_accuracy

FILE = "labels.json"


class Changes(pl.Callback):  # type: ignore[misc]
    """Trains on a few distinct samples, on rows of numbers, or without batch norm, and measures
    what the labels are made from: before training and after each epoch, on clean samples."""

    def __init__(self, folder: Path, data: str, seed: int, distinct: int, batch_norm: bool) -> None:
        self.path, self.data, self.seed = Path(folder) / FILE, data, seed
        self.distinct, self.batch_norm = distinct, batch_norm
        self.labels: dict[str, list[float]] = {name: [] for name in LABELS}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self.data == "rows":
            self._train_on_rows(trainer.datamodule, pl_module)
        else:
            self._repeat_samples(trainer.datamodule)
        if not self.batch_norm:
            _drop_batch_norm(pl_module)

    def _train_on_rows(self, data: Any, model: Any) -> None:
        torch.manual_seed(self.seed)
        model.backbone = sets.perceptron(model.features_dim)
        if hasattr(model, "momentum_backbone"):
            model.momentum_backbone = copy.deepcopy(model.backbone).requires_grad_(False)
        rows = sets.RowData(data.batch_size, self.seed, self.distinct)
        data.train_dataloader, data.val_dataloader = rows.train_dataloader, rows.val_dataloader
        self.memory, self.validation = rows.memory_dataloader(), rows.val_dataloader()

    def _repeat_samples(self, data: Any) -> None:
        parts = (loader(data.dataset, part, sets.TRAIN) for part in ("train", "val"))
        self.memory, self.validation = parts
        images = data.dataset.train
        repeated = torch.arange(len(images)) % self.distinct
        train = Images(images.images[repeated], images.labels[repeated])
        data.dataset = replace(data.dataset, train=train)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._measure(pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._measure(pl_module)

    @torch.no_grad()
    def _measure(self, model: Any) -> None:
        training = model.training
        model.eval()
        memory, labels = _features(model, self.memory)
        queries, expected = _features(model, self.validation)
        outputs, directions = outputs_of(model, queries)
        model.train(training)
        around, spanned = (x - x.mean(0) for x in (unit(outputs).double(), directions.double()))
        rank = math.nan
        if spanned.isfinite().all():  # otherwise the run ends as diverged
            rank = float(effective_rank(torch.linalg.svdvals(spanned).square()))
        self.labels["knn"].append(knn_accuracy(memory, labels, queries, expected))
        self.labels["held_out_rank"].append(rank)
        self.labels["held_out_variance"].append(float(around.square().sum(1).mean()))
        write_atomically(self.path, json.dumps(self.labels) + "\n")


def _features(model: Any, batches: Any) -> tuple[Tensor, Tensor]:
    """Return the backbone's features and the labels of a loader's samples."""
    pairs = [(model.backbone(x), y) for x, y in batches]
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def outputs_of(model: Any, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the loss compares, before any filter, predictor or softmax, and the unit vectors
    that enter the last layer before a softmax, or the outputs themselves as unit vectors."""
    if hasattr(model, "head"):
        hidden = unit(model.head.mlp(features))
        return model.head.last_layer(hidden), hidden
    z = model.projector(features)
    hidden = unit(z)
    prototypes = getattr(model, "prototypes", None)
    if isinstance(prototypes, nn.ModuleList):  # DeepCluster v2's, of which the first is measured
        prototypes = prototypes[0]
    return (z if prototypes is None else prototypes(hidden)), hidden


def _drop_batch_norm(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, (nn.BatchNorm1d, nn.BatchNorm2d)):
                setattr(module, name, nn.Identity())
