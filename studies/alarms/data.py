"""The study's data sets, with held-out images that a run uses for neither training nor kNN."""

from dataclasses import replace
from typing import Any

import torch

from rdm_solo.data import digits, textures
from rdm_solo.data.draws import generator
from rdm_solo.data.images import Dataset, Images

HELD_OUT_DIGITS = 360


def source(name: str, **options: Any) -> Dataset:
    """Return a data set to train on.

    ``options`` are passed to :func:`rdm_solo.data.textures`.
    """
    if name != "digits":
        return textures(**{"variant": name, **options})
    data = digits()
    kept = _digits_order()[HELD_OUT_DIGITS:]
    return replace(data, train=rows(data.train, kept))


def labelled(name: str, held_out: int) -> Dataset:
    """Return a data set with all training images, and the held-out images as its validation set.

    ``held_out`` is the number of held-out textures; of the digits there are ``HELD_OUT_DIGITS``.
    """
    data = source(name)
    if name == "digits":
        val = rows(digits().train, _digits_order()[:HELD_OUT_DIGITS])
    else:
        val = textures(name, num_train=12, num_val=held_out, seed=1).val
    return replace(data, val=val)


def _digits_order() -> torch.Tensor:
    return torch.randperm(1437, generator=generator("alarms", "digits"))


def rows(images: Images, index: torch.Tensor) -> Images:
    """Return the images with these indices."""
    return Images(images.images[index], images.labels[index])
