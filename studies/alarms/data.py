"""The study's data sets, with images that neither training nor kNN ever sees."""

from dataclasses import replace
from typing import Any

import torch

from rdm_solo.data import digits, textures
from rdm_solo.data.draws import generator
from rdm_solo.data.images import Dataset, Images

HELD_OUT = {"textures": 1920, "angles": 1920, "digits": 360}  # images


def source(name: str, **options: Any) -> Dataset:
    """Return a data set to train on.

    ``options`` are those of :func:`rdm_solo.data.textures` in a run's config.
    """
    if name != "digits":
        return textures(**{"variant": name, **options})
    data = digits()
    return replace(data, train=_rows(data.train, _digits_order()[HELD_OUT[name] :]))


def labelled(name: str) -> Dataset:
    """Return all training images, with the held-out images as the validation set."""
    data = source(name)
    if name == "digits":
        return replace(data, val=_rows(digits().train, _digits_order()[: HELD_OUT[name]]))
    return replace(data, val=textures(name, num_train=12, num_val=HELD_OUT[name], seed=1).val)


def _digits_order() -> torch.Tensor:
    return torch.randperm(1437, generator=generator("alarms", "digits"))


def _rows(images: Images, rows: torch.Tensor) -> Images:
    return Images(images.images[rows], images.labels[rows])
