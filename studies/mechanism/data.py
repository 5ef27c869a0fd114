"""The data on which learning rates are chosen."""

from dataclasses import replace
from typing import Any

import torch

from rdm_solo.data import digits, textures
from rdm_solo.data.draws import generator
from rdm_solo.data.images import Dataset
from studies.alarms.data import rows


def held_out(**options: Any) -> Dataset:
    """Return a data set whose validation images are a fifth of the training images.

    ``options`` are passed to :func:`rdm_solo.data.textures`; without options it is the digits.
    """
    data = textures(**options) if options else digits()
    order = torch.randperm(len(data.train), generator=generator("mechanism", "held out"))
    fifth = len(order) // 5
    train = rows(data.train, order[fifth:])
    val = rows(data.train, order[:fifth])
    return replace(data, train=train, val=val)
