"""Data sets of the studies, with images that are held out of training."""

from dataclasses import replace
from typing import Any

import torch

from rdm_solo.data import digits, textures
from rdm_solo.data.draws import generator
from rdm_solo.data.images import Dataset, Images

HELD_OUT_DIGITS = 360  # in the study of the warnings


def split(images: Images, count: int, *seed: str) -> list[Images]:
    """Return ``count`` randomly drawn images, and the others."""
    order = torch.randperm(len(images), generator=generator(*seed))
    parts = order.tensor_split([count])
    return [Images(images.images[part], images.labels[part]) for part in parts]


def digits_to_train() -> Dataset:
    """Return the digits without those that the study of the warnings holds out."""
    data = digits()
    _, train = split(data.train, HELD_OUT_DIGITS, "alarms", "digits")
    return replace(data, train=train)


def labelled(name: str, held_out: int) -> Dataset:
    """Return a data set of the study of the warnings, validated on the held-out images.

    ``held_out`` is the number of held-out textures; of the digits there are ``HELD_OUT_DIGITS``.
    """
    if name == "digits":
        val, _ = split(digits().train, HELD_OUT_DIGITS, "alarms", "digits")
        return replace(digits_to_train(), val=val)
    val = textures(name, num_train=12, num_val=held_out, seed=1).val
    return replace(textures(name), val=val)


def tuning(**options: Any) -> Dataset:
    """Return a data set on which the trial of the mechanism chooses learning rates.

    Its validation images are a fifth of the training images. ``options`` are passed to
    :func:`rdm_solo.data.textures`; without options it is the digits.
    """
    data = textures(**options) if options else digits()
    val, train = split(data.train, len(data.train) // 5, "mechanism", "held out")
    return replace(data, train=train, val=val)
