"""A linear classifier on frozen features: its schedule, its training, its accuracies.

torch alone. :func:`fit_linear` takes features that are there already and takes seconds;
:func:`fit` takes whatever hands out an epoch's batches, such as features of augmented images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PROTOCOLS", "EpochRow", "ProbeResult", "Protocol", "accuracies", "fit", "fit_linear"]

OPTIMIZERS = ("sgd", "lars")
SCHEDULES = ("step", "cosine")
# The largest values that are allowed; the paper's rates are 30 and 0.1.
BOUNDS = {"lr": 1e5, "momentum": 1.0, "weight_decay": 1.0, "gamma": 1.0}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Protocol:
    """How the classifier is trained; the defaults are the paper's for CIFAR and ImageNet-100.

    >>> paper = Protocol()
    >>> [round(paper.rate(epoch), 6) for epoch in (0, 59, 60, 79, 80)]
    [30.0, 30.0, 3.0, 3.0, 0.3]
    >>> imagenet = Protocol("lars", epochs=90, batch_size=4096, lr=0.1, schedule="cosine")
    >>> imagenet.rate(0), imagenet.rate(45)
    (1.6, 0.8)

    Args:
        optimizer: ``sgd`` or ``lars``.
        epochs: passes over the training features.
        batch_size: rows per step; the last batch of an epoch may be shorter.
        lr: base learning rate; it is multiplied by ``batch_size / 256``.
        momentum: of either optimiser.
        weight_decay: likewise.
        schedule: ``step`` multiplies the rate by ``gamma`` at every milestone, ``cosine`` takes it
            to zero; both move once an epoch.
        milestones: shares of the epochs, so that a shorter run keeps the schedule's shape.
        gamma: of ``step``.
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
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} is not allowed: give a whole number from 1 on")
        for name, most in BOUNDS.items():
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= most:
                raise ValueError(
                    f"{name}={value!r} is not allowed: give a number from 0 to {most:g}"
                )
        for name, allowed in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is not allowed: give {' or '.join(allowed)}"
                )
        if isinstance(self.milestones, Sequence):
            object.__setattr__(self, "milestones", tuple(self.milestones))
        if not isinstance(self.milestones, tuple) or not all(
            _is_number(share) and 0 < share <= 1 for share in self.milestones
        ):
            raise ValueError(
                f"milestones={self.milestones!r} is not allowed: give shares of the epochs, above "
                "0 and at most 1, such as [0.6, 0.8]"
            )

    @property
    def effective_lr(self) -> float:
        """The first epoch's rate: ``lr * batch_size / 256``."""
        return self.lr * self.batch_size / 256

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, which counts from 0."""
        if self.schedule == "cosine":
            return self.effective_lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        passed = sum(epoch >= round(share * self.epochs) for share in self.milestones)
        return self.effective_lr * self.gamma**passed

    def as_dict(self) -> dict[str, Any]:
        """Its fields and the effective rate, as a result records them."""
        fields = asdict(self)
        fields["milestones"] = list(self.milestones) if self.schedule == "step" else None
        fields["gamma"] = self.gamma if self.schedule == "step" else None
        return {**fields, "effective_lr": self.effective_lr}


# The paper's for CIFAR and ImageNet-100; and for ImageNet-1k, after SimSiam's official evaluation.
# solo-learn's files say lr 0.3 for BYOL and DINO, and 0.15 for SwAV on ImageNet-100.
PROTOCOLS = {
    "sgd": Protocol(),
    "lars": Protocol("lars", 90, 4096, 0.1, schedule="cosine", milestones=()),
}


@dataclass(frozen=True)
class EpochRow:
    """One epoch of a probe (from 1): training loss, accuracies on validation in per cent."""

    epoch: int
    lr: float
    loss: float
    top1: float
    top5: float


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies in per cent after the last epoch, the way there, and the classifier.

    ``top5`` is the accuracy among the best ``k = min(5, classes)``.
    """

    top1: float
    top5: float
    k: int
    curve: list[EpochRow]
    weight: Tensor = field(repr=False)
    bias: Tensor = field(repr=False)


Batches = Callable[[int], Iterable[tuple[Tensor, Tensor]]]


def fit_linear(
    features: Tensor,
    labels: Tensor,
    val_features: Tensor,
    val_labels: Tensor,
    num_classes: int,
    protocol: Protocol | None = None,
    seed: int = 0,
) -> ProbeResult:
    """Train on ``(N, d)`` features with ``(N,)`` labels; every row comes once an epoch.

    >>> x = torch.eye(3).repeat(20, 1)
    >>> y = torch.arange(3).repeat(20)
    >>> result = fit_linear(x, y, x, y, num_classes=3, protocol=Protocol(epochs=5))
    >>> result.top1, result.top5, result.k
    (100.0, 100.0, 3)

    Args:
        features: of the training images, on the device that is to train; float32 is kept or made.
        labels: class numbers from 0 to ``num_classes - 1``.
        val_features: of the images that the accuracies are measured on.
        val_labels: likewise.
        num_classes: outputs of the classifier.
        protocol: by default the paper's.
        seed: of the classifier's first weights and of every epoch's order.
    """
    protocol = protocol or Protocol()
    _check_features("the training set", features, labels, num_classes)
    features, labels = features.float(), labels.to(features.device)

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(features), generator=_generator(seed, 1 + epoch))
        order = order.to(features.device)
        for low in range(0, len(order), protocol.batch_size):
            rows = order[low : low + protocol.batch_size]
            yield features[rows], labels[rows]

    return fit(batches, val_features, val_labels, num_classes, protocol, seed)


def fit(
    batches: Batches,
    val_features: Tensor,
    val_labels: Tensor,
    num_classes: int,
    protocol: Protocol,
    seed: int = 0,
    each_epoch: Callable[[EpochRow], None] | None = None,
) -> ProbeResult:
    """Train on what ``batches(epoch)`` yields, ``(features, labels)`` pairs without a gradient.

    The classifier starts as SimSiam's does: weights of standard deviation 0.01, biases of 0.
    """
    _check_features("the validation set", val_features, val_labels, num_classes)
    device = val_features.device
    val_features, val_labels = val_features.float(), val_labels.to(device)
    classifier = nn.Linear(val_features.shape[1], num_classes)
    nn.init.normal_(classifier.weight, std=0.01, generator=_generator(seed, 0))
    nn.init.zeros_(classifier.bias)
    classifier.to(device)
    optimizer = _optimizer(classifier, protocol)
    curve: list[EpochRow] = []
    for epoch in range(protocol.epochs):
        for group in optimizer.param_groups:
            group["lr"] = protocol.rate(epoch)
        loss = _train_epoch(classifier, optimizer, batches(epoch))
        with torch.no_grad():
            top1, top5 = accuracies(classifier(val_features), val_labels)
        curve.append(EpochRow(epoch + 1, protocol.rate(epoch), loss, top1, top5))
        if each_epoch is not None:
            each_epoch(curve[-1])
        if not math.isfinite(loss) or not bool(torch.isfinite(classifier.weight).all()):
            raise ValueError(
                f"the linear classifier diverged in epoch {epoch + 1} (its loss is {loss:g}): "
                f"lower lr={protocol.lr:g}"
            )
    weight, bias = classifier.weight.detach().cpu(), classifier.bias.detach().cpu()
    last = curve[-1]
    return ProbeResult(last.top1, last.top5, min(5, num_classes), curve, weight, bias)


def _train_epoch(
    classifier: nn.Linear,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
) -> float:
    """One pass; the mean loss over all rows."""
    device = classifier.weight.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    rows = 0
    for x, labels in batches:
        loss = F.cross_entropy(classifier(x.to(device).float()), labels.to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimizer.step()
        total += loss.detach() * len(x)
        rows += len(x)
    if not rows:
        raise ValueError("the linear classifier got an epoch without a batch; give it images")
    return float(total) / rows


def accuracies(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Share of rows, in per cent, whose label is the best class, and among the best five.

    With fewer than five classes the second counts all of them.

    >>> accuracies(torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), torch.tensor([0, 1]))
    (50.0, 100.0)
    """
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hits = best == labels[:, None]
    return 100 * float(hits[:, 0].double().mean()), 100 * float(hits.any(1).double().mean())


def _optimizer(classifier: nn.Linear, protocol: Protocol) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"momentum": protocol.momentum, "weight_decay": protocol.weight_decay}
    if protocol.optimizer == "sgd":
        return torch.optim.SGD(classifier.parameters(), lr=protocol.effective_lr, **options)
    # timm's Lars (1.0.12 and later) leaves a layer without weight decay as it is unless it is
    # told to; SimSiam's official evaluation rescales always.
    from timm.optim.lars import Lars

    return Lars(classifier.parameters(), lr=protocol.effective_lr, always_adapt=True, **options)


def _check_features(what: str, x: Tensor, labels: Tensor, num_classes: int) -> None:
    if x.ndim != 2 or labels.shape != (len(x),) or len(x) == 0:
        raise ValueError(
            f"a linear classifier takes features of shape (N, d) and labels of shape (N,), got "
            f"{tuple(x.shape)} and {tuple(labels.shape)} for {what}"
        )
    if int(labels.min()) < 0 or int(labels.max()) >= num_classes:
        raise ValueError(
            f"num_classes={num_classes} allows labels from 0 to {num_classes - 1}, got "
            f"{int(labels.min())} to {int(labels.max())} in {what}"
        )
    if not bool(torch.isfinite(x).all()):
        rows = int((~torch.isfinite(x)).any(1).sum())
        raise ValueError(
            f"{rows} of {len(x)} features of {what} are not finite: the backbone has diverged, or "
            "its weights do not belong to it"
        )


def _generator(seed: int, stream: int) -> torch.Generator:
    from rdm_solo.data.draws import generator

    return generator(seed, "probe", stream)
