"""The study's data sets, with images that neither training nor kNN ever sees."""

from dataclasses import replace
from typing import Any

import torch

from rdm_solo.data import digits, textures
from rdm_solo.data.draws import generator
from rdm_solo.data.images import Dataset, Images

HELD_OUT_DIGITS = 360


def source(name: str, **options: Any) -> Dataset:
    """Return a data set to train on.

    ``options`` are those of :func:`rdm_solo.data.textures` in a run's config.
    """
    if name != "digits":
        return textures(**{"variant": name, **options})
    data = digits()
    return replace(data, train=_rows(data.train, _digits_order()[HELD_OUT_DIGITS:]))


def labelled(name: str, held_out: int) -> Dataset:
    """Return all training images, with the held-out images (this many textures) as the validation
    set."""
    data = source(name)
    if name == "digits":
        return replace(data, val=_rows(digits().train, _digits_order()[:HELD_OUT_DIGITS]))
    return replace(data, val=textures(name, num_train=12, num_val=held_out, seed=1).val)


def _digits_order() -> torch.Tensor:
    return torch.randperm(1437, generator=generator("alarms", "digits"))


def _rows(images: Images, rows: torch.Tensor) -> Images:
    return Images(images.images[rows], images.labels[rows])
