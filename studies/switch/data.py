"""The data sets of the switch trial that need a selection of their images."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from rdm_solo.data import Dataset
from rdm_solo.data import digits as all_digits
from rdm_solo.data.draws import generator
from rdm_solo.data.images import DataError, Images
from rdm_solo.data.sources import channel_moments
from rdm_solo.evaluate.probe import fit_linear
from rdm_solo.train.training_data import make_data
from studies.images import split
from studies.neighbours import knn_accuracy

ICONS = "ICONS"  # environment variable: the file that studies.switch.icons has written
CLASSES = 16  # the icons' most common names
NUM_DIGITS = 512


def digits() -> Dataset:
    """Return the digits with a part of the training images."""
    data = all_digits()
    train, _ = split(data.train, NUM_DIGITS, "switch", "digits")
    return replace(data, train=train)


def icons(num_train: int, num_val: int, **unused: Any) -> Dataset:
    """Return icons of the most common names; designers of one part have no icon in the other."""
    path = os.environ.get(ICONS)
    if path is None:
        raise DataError(f"set {ICONS} to the file that python -m studies.switch.icons writes.")
    content = np.load(path)
    images = torch.from_numpy(content["images"])[:, None]
    labels = torch.from_numpy(content["labels"]).long()
    validation = torch.from_numpy(content["validation"])
    parts = []
    for part, count in ((~validation, num_train), (validation, num_val)):
        rows = (part & (labels < CLASSES)).nonzero()[:, 0]
        order = torch.randperm(len(rows), generator=generator("switch", "icons", count))
        rows = rows[order[:count]]
        parts.append(Images(images[rows], labels[rows]))
    train, val = parts
    return Dataset("icons", train, val, CLASSES, *channel_moments(train.images))


def pixel_accuracies(config: DictConfig) -> dict[str, float]:
    """Return the accuracies of kNN and of a linear probe on the standardised pixels."""
    dataset, _ = make_data(config)
    columns = []
    for part in (dataset.train, dataset.val):
        pixels = part.images.flatten(1) / 255
        columns += [(pixels - dataset.mean[0]) / dataset.std[0], part.labels]
    linear = fit_linear(*columns, num_classes=dataset.num_classes)
    return {"knn": knn_accuracy(*columns), "linear": linear.curve[-1].top1}
