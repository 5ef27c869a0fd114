"""Measure a backbone on a user's images, and leave the run that trains it as it was."""

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from rdm_solo.ground.distributed import gather_objects, rank, world_size
from rdm_solo.ground.errors import UserError, first_line
from rdm_solo.observe import neighbours, parts
from rdm_solo.observe.outputs import rows

# Batch size for images that are given as a tensor.
BATCH = 512


@contextlib.contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode, without gradients; restore modes and random states.

    Random numbers start at the same seed each time, so a loader that shuffles gives the same order
    in all epochs and on all processes.
    """
    device = next(module.parameters(), torch.empty(0)).device
    cuda = [device] if device.type == "cuda" else []
    modes = {part: part.training for part in module.modules()}
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    with torch.no_grad(), torch.autocast(device.type, enabled=False), torch.random.fork_rng(cuda):
        try:
            torch.default_generator.manual_seed(0)
            np.random.seed(0)
            random.seed(0)
            for part in modes:
                # A module's own eval() may do more: LoRA layers merge their weights in it.
                part.training = False
            yield
        finally:
            for part, mode in modes.items():
                part.training = mode
            np.random.set_state(numpy_state)
            random.setstate(python_state)


class UserImages:
    """Images that a user passed as ``option``: a loader, a tensor or a tuple of tensors."""

    def __init__(self, option: str, source: Any) -> None:
        if isinstance(source, Tensor):
            source = (source,)
        if isinstance(source, tuple):
            source = DataLoader(TensorDataset(*source), BATCH)
        self.option = option
        self.loader = source

    def batches(self) -> Iterator[list[Tensor]]:
        """Yield the tensors of each batch; the first one has images as the model takes them."""
        for batch in self.loader:
            tensors = [x for x in tree_leaves(batch) if isinstance(x, Tensor)]
            if not tensors or not tensors[0].is_floating_point():
                self.refuse("must start with images as the model takes them", tensors)
            yield tensors

    def shares(self) -> Iterator[list[Tensor]]:
        """Yield this process's rows of each batch; each image belongs to one process."""
        first, step, last = rank(), world_size(), sys.maxsize
        sampler = getattr(self.loader, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            # The loader has this process's images only. It repeats images at the end, so that all
            # processes have the same number.
            first, step = 0, 1
            size = len(sampler.dataset)  # type: ignore[arg-type]
            last = len(range(sampler.rank, size, sampler.num_replicas))
        count = 0
        for tensors in self.batches():
            share = slice((first - count) % step, max(0, last - count), step)
            count += len(tensors[0])
            mine = [x[share] for x in tensors]
            if len(mine[0]):
                yield mine
        if count < step:
            raise UserError(f"{self.option}: {count} images are too few for {step} process(es).")

    def forward(self, backbone: nn.Module | None, images: Tensor) -> Any:
        """Return the backbone's output, computed on its device and in its dtype."""
        if backbone is None:
            raise UserError(f"{self.option} needs features: pass backbone='NAME'.")
        # DDP would synchronise buffers, and torch.compile would compile for this batch size.
        backbone = parts.unwrap(backbone)
        parameter = next(backbone.parameters(), images)
        try:
            return backbone(images.to(parameter.device, parameter.dtype))
        except Exception as error:
            self.refuse(f"is refused by the backbone ({first_line(error)})", [images])

    def features(self, backbone: nn.Module | None, images: Tensor) -> Tensor:
        """Return the backbone's features ``(N, k)``."""
        return rows(self.forward(backbone, images), "backbone")

    def refuse(self, reason: str, tensors: list[Tensor]) -> NoReturn:
        """Raise UserError that describes a batch."""
        received = [f"{x.dtype} {tuple(x.shape)}" for x in tensors]
        raise UserError(
            f"{self.option}: a batch {reason}, got {', '.join(received) or 'no tensor'}."
        )


class LabelledImages:
    """Measure the accuracy of weighted kNN: ``train`` is the memory, ``val`` is classified.

    Each is a loader of ``(images, labels)`` or a pair of tensors. ``classes`` is the number of
    different labels, known after the first measurement.

    >>> images = torch.eye(2), torch.tensor([0, 1])
    >>> backbone = nn.Linear(2, 2)
    >>> LabelledImages(images, images, k=1).accuracy(backbone, backbone)
    100.0
    """

    def __init__(self, train: Any, val: Any, k: int = 20, temperature: float = 0.07) -> None:
        self.train = UserImages("labelled (train)", train)
        self.val = UserImages("labelled (val)", val)
        self.k = k
        self.temperature = temperature
        self.classes = 0

    def accuracy(self, backbone: nn.Module | None, module: nn.Module) -> float:
        """Return the accuracy in per cent, the same on all processes."""
        seen: set[int] = set()

        def encoded(images: UserImages) -> Iterator[tuple[Tensor, Tensor]]:
            for x, *others in images.shares():
                y = others[0] if others else x
                if y.is_floating_point() or y.shape != x.shape[:1] or y.min() < 0:
                    images.refuse("must have images and integer labels from 0", [x, *others])
                seen.update(y.tolist())
                features = images.features(backbone, x)
                yield features, y.to(features.device, torch.long)

        with undisturbed(module):
            memory, queries = encoded(self.train), encoded(self.val)
            value = neighbours.accuracy(memory, queries, self.k, self.temperature)
        self.classes = len(set().union(*gather_objects(seen)))
        return float(value)
