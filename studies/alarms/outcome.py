"""A callback that prepares a run for the study and measures its features at the end."""

import json
from pathlib import Path

import torch
from sklearn.linear_model import (
    LogisticRegression,
)
from torch import Tensor, nn

from rdm_solo.data import loader
from rdm_solo.data.draws import generator
from rdm_solo.evaluate.extraction import extract
from rdm_solo.ground.lightning import pl
from rdm_solo.runs.files import write_atomically
from rdm_solo.spectra.features import FeatureSpectra
from studies.alarms.clean_measures import explained_variance, intrinsic_dimension
from studies.images import labelled
from studies.neighbours import knn_accuracy

FILE = "outcome.json"
FEW_LABELS = 50
MOST_ITERATIONS = 500


class Outcome(pl.Callback):
    """Measure linear accuracy on held-out images before and after training.

    After training, also measure the rank of clean features and kNN accuracy with 50 labels.
    """

    def __init__(self, folder: Path, data: str, held_out: int, batch_norm: bool) -> None:
        self.path = Path(folder) / FILE
        self.batch_norm = batch_norm
        self.images = labelled(data, held_out)
        self.values: dict[str, float] = {}

    def setup(self, trainer, pl_module, stage):
        torch.set_flush_denormal(True)  # without it, the CPU needs minutes for collapsed networks
        if self.batch_norm:
            return
        for module in list(pl_module.modules()):
            for name, child in module.named_children():
                if isinstance(child, (nn.BatchNorm1d, nn.BatchNorm2d)):
                    setattr(module, name, nn.Identity())

    def teardown(self, trainer, pl_module, stage):
        torch.set_flush_denormal(False)

    def on_train_start(self, trainer, pl_module):
        self.measure(pl_module, "untrained")

    def on_train_end(self, trainer, pl_module):
        self.measure(pl_module, "trained")

    def measure(self, model: nn.Module, when: str) -> None:
        model.eval()
        x, y = extract(model.backbone, loader(self.images, "train", 512))
        x_held, y_held = extract(model.backbone, loader(self.images, "val", 512))
        model.train()
        if not (x.isfinite().all() and x_held.isfinite().all()):
            return  # training diverged
        self.values[f"linear_{when}"] = linear_accuracy(x, y, x_held, y_held)
        if when == "trained":
            self.values |= clean_values(x)
            order = torch.randperm(len(x), generator=generator("few labels"))
            few = order[:FEW_LABELS]
            self.values["knn_few"] = knn_accuracy(x[few], y[few], x_held, y_held)
        write_atomically(self.path, json.dumps(self.values) + "\n")


def linear_accuracy(x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor) -> float:
    """Return the accuracy (%) of logistic regression on standardised features.

    Each feature is centred and divided by its standard deviation (plus 1 % of the features' root
    mean square), so information counts at any scale above rounding. The paper's protocol is not
    used, because it had not converged on an untrained network's features.
    """
    x = x.double()
    mean = x.mean(0)
    scale = (x.var(0) + 1e-4 * x.square().mean() + 1e-60).sqrt()
    train = (x - mean) / scale
    held_out = (x_held.double() - mean) / scale
    classifier = LogisticRegression(max_iter=MOST_ITERATIONS)
    classifier.fit(train.numpy(), y.numpy())
    return 100 * float(classifier.score(held_out.numpy(), y_held.numpy()))


def clean_values(x: Tensor) -> dict[str, float]:
    """Return the measures of clean features, computed in eval() mode."""
    metric = FeatureSpectra(x.shape[1])
    metric.update([x])
    values = {}
    for name, value in metric.compute().items():
        values[f"clean_{name.removesuffix('/features')}"] = value
    values["clean_idest"] = intrinsic_dimension(x)
    values["clean_explained"] = explained_variance(x)
    return values
