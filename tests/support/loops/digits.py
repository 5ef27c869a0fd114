"""Scikit-learn's digits as three-channel images of 8x8 pixels, and two views of each."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import pad

BATCH = 64
HELD_OUT = 397


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the images and labels of the training set and of the held-out set."""
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = (images.float() / 8 - 1).reshape(-1, 1, 8, 8).expand(-1, 3, 8, 8).contiguous()
    shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[shuffled], labels[shuffled]
    train = images[HELD_OUT:], labels[HELD_OUT:]
    return train, (images[:HELD_OUT], labels[:HELD_OUT])


def view(images: Tensor) -> Tensor:
    """Return each image moved by at most a pixel, with another contrast and noise."""
    n = len(images)
    windows = pad(images, (1, 1, 1, 1), value=-1).unfold(2, 8, 1).unfold(3, 8, 1)
    down, right = torch.randint(3, (2, n))
    moved = windows[torch.arange(n), :, down, right]
    contrast = 0.6 + 0.8 * torch.rand(n, 1, 1, 1)
    return moved * contrast + 0.2 * torch.randn_like(moved)


class Pairs(torch.utils.data.IterableDataset):
    """An epoch's batches of two views."""

    def __init__(self, make=tuple):
        (self.images, _), _ = digits()
        self.make = make

    def __len__(self):
        return len(self.images) // BATCH

    def __iter__(self):
        order = torch.randperm(len(self.images))
        for rows in order[: len(self) * BATCH].split(BATCH):
            yield self.make((view(self.images[rows]), view(self.images[rows])))
