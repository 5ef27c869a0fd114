"""Train and evaluate a linear classifier on frozen features.

:func:`fit_linear` takes features in memory; :func:`fit` takes a function that yields an epoch's
batches, such as features of augmented images.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rdm_solo.data.draws import generator
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_choice, check_integer, check_number

log = logging.getLogger("rdm_solo")


@dataclass(frozen=True)
class Protocol:
    """How the classifier is trained; the defaults are the paper's for CIFAR and ImageNet-100.

    >>> paper = Protocol()
    >>> [round(paper.rate(epoch), 6) for epoch in (0, 59, 60, 79, 80)]
    [30.0, 30.0, 3.0, 3.0, 0.3]

    ``conf/linear.yaml`` describes each option.
    """

    optimizer: str = "sgd"
    epochs: int = 100
    batch_size: int = 256
    lr: float = 30.0
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: str = "step"
    milestones: Sequence[float] = (0.6, 0.8)
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, ("sgd", "lars"))
        check_choice("schedule", self.schedule, ("step", "cosine"))
        check_integer("epochs", self.epochs, 1)
        check_integer("batch_size", self.batch_size, 1)
        check_number("lr", self.lr, 0)
        check_number("momentum", self.momentum, 0, 1)
        check_number("weight_decay", self.weight_decay, 0, 1)
        check_number("gamma", self.gamma, 0, 1)
        for share in self.milestones:
            check_number("each of milestones (shares of the epochs)", share, above=0, maximum=1)

    @property
    def effective_lr(self) -> float:
        """Return the first epoch's rate: ``lr * batch_size / 256``."""
        return self.lr * self.batch_size / 256

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        if self.schedule == "cosine":
            return self.effective_lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        decays = sum(epoch >= round(share * self.epochs) for share in self.milestones)
        return self.effective_lr * self.gamma**decays


# sgd: the paper's, for CIFAR and ImageNet-100. lars: SimSiam's official code, for ImageNet-1k.
# solo-learn's configs use lr 0.3 for BYOL and DINO, and 0.15 for SwAV on ImageNet-100.
PROTOCOLS = {
    "sgd": Protocol(),
    "lars": Protocol("lars", 90, 4096, 0.1, schedule="cosine", milestones=()),
}


class EpochRow(NamedTuple):
    """One epoch, counted from 1: training loss, and validation accuracies in per cent."""

    epoch: int
    lr: float
    loss: float
    top1: float
    top5: float


class ProbeResult(NamedTuple):
    """The trained classifier and its learning curve, whose last accuracies are the result."""

    classifier: nn.Linear
    curve: list[EpochRow]


def fit_linear(
    features: Tensor,
    labels: Tensor,
    val_features: Tensor,
    val_labels: Tensor,
    num_classes: int,
    protocol: Protocol = PROTOCOLS["sgd"],
    seed: int = 0,
    quiet: bool = False,
) -> ProbeResult:
    """Train on float32 features ``(N, d)`` with labels ``(N,)``, shuffled in each epoch.

    ``seed`` determines the classifier's initial weights and the shuffling. With ``quiet``, the
    accuracies of epochs are not logged.

    >>> x = torch.eye(3).repeat(20, 1)
    >>> y = torch.arange(3).repeat(20)
    >>> fit_linear(x, y, x, y, num_classes=3, protocol=Protocol(epochs=5)).curve[-1].top1
    100.0
    """

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        rng = generator(seed, "probe", 1 + epoch)
        order = torch.randperm(len(features), generator=rng).to(features.device)
        for rows in torch.split(order, protocol.batch_size):
            yield features[rows], labels[rows]

    return fit(batches, val_features, val_labels, num_classes, protocol, seed, quiet)


def fit(
    batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]],
    val_features: Tensor,
    val_labels: Tensor,
    num_classes: int,
    protocol: Protocol,
    seed: int = 0,
    quiet: bool = False,
) -> ProbeResult:
    """Train on the ``(features, labels)`` pairs that ``batches(epoch)`` yields.

    As in SimSiam, weights start with standard deviation 0.01 and biases at 0.
    """
    device = val_features.device
    classifier = nn.Linear(val_features.shape[1], num_classes)
    nn.init.normal_(classifier.weight, std=0.01, generator=generator(seed, "probe", 0))
    nn.init.zeros_(classifier.bias)
    classifier.to(device)
    optimizer = _optimizer(classifier, protocol)
    curve: list[EpochRow] = []
    for epoch in range(protocol.epochs):
        lr = protocol.rate(epoch)
        optimizer.param_groups[0]["lr"] = lr
        total = torch.zeros((), dtype=torch.float64, device=device)
        rows = 0
        for x, labels in batches(epoch):
            logits = classifier(x.to(device))
            loss = F.cross_entropy(logits, labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
            optimizer.step()
            total += loss.detach() * len(x)
            rows += len(x)
        mean_loss = float(total) / rows
        with torch.no_grad():
            logits = classifier(val_features)
        if not (math.isfinite(mean_loss) and logits.isfinite().all()):
            raise UserError(
                f"the linear classifier diverged in epoch {epoch + 1} (its loss is {mean_loss:g}): "
                f"lower lr={protocol.lr:g}, unless the backbone's features are not finite."
            )
        top1, top5 = accuracies(logits, val_labels)
        curve.append(EpochRow(epoch + 1, lr, mean_loss, top1, top5))
        interval = max(1, protocol.epochs // 10)
        if not quiet and (epoch + 1) % interval == 0:
            log.info(f"epoch {epoch + 1} of {protocol.epochs}: top-1 {top1:.2f} %")
    return ProbeResult(classifier, curve)


def accuracies(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return top-1 and top-5 accuracy in per cent; with fewer than five classes, top-5 is 100.

    >>> accuracies(torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), torch.tensor([0, 1]))
    (50.0, 100.0)
    """
    k = min(5, logits.shape[1])
    best = logits.topk(k, dim=1).indices
    hits = (best == labels[:, None]).double()
    top1 = hits[:, 0].mean()
    top5 = hits.sum(1).mean()
    return 100 * float(top1), 100 * float(top5)


def _optimizer(classifier: nn.Linear, protocol: Protocol) -> torch.optim.Optimizer:
    # fit sets the learning rate in each epoch.
    options: dict[str, Any] = {
        "params": classifier.parameters(),
        "momentum": protocol.momentum,
        "weight_decay": protocol.weight_decay,
    }
    if protocol.optimizer == "sgd":
        return torch.optim.SGD(**options)
    # Without always_adapt, timm's Lars (1.0.12 and later) does not rescale a layer that has no
    # weight decay; SimSiam's official evaluation always rescales.
    from timm.optim.lars import Lars

    return Lars(always_adapt=True, **options)
