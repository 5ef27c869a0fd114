"""From the recorded calls of a step to both branches' outputs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rdm_solo.filters.spectral_filter import SpectralFilter
from rdm_solo.ground.errors import UserError

Calls = Mapping[str, list[Tensor]]  # the outputs of a step's calls, by branch


class Outputs(NamedTuple):
    """A step's outputs for all large crops, concatenated by view, each of shape ``(V N, k)``."""

    online: Tensor
    target: Tensor
    positive: Tensor | None  # the target's output for the next view; None if views are unknown
    projection: Tensor
    hidden: Tensor | None = None  # (V N, b): input of the last layer before the softmax
    features: list[Tensor] | None = None  # of the backbone: one tensor per view, or one for all

    def to(self, device: torch.device) -> "Outputs":
        """Return the outputs on a device, without the features."""
        tensors = self._replace(features=None)._asdict()
        for name, x in tensors.items():
            if x is not None:
                tensors[name] = x.to(device)
        return Outputs(**tensors)


def combine(calls: Calls, views: int | None, aliases: Mapping[str, str]) -> Outputs | None:
    """Return a step's outputs, or None if a branch was not called.

    ``views`` is the number of calls of the target with views of the same images. Without it,
    positives are not measured. If a branch was not recorded, its alias takes its place. If one
    branch has more rows than the other, as with small crops for the student alone, only its first
    rows are used.
    """
    by_view = rows_by_view(calls, views)
    features = by_view.pop("features", None)
    joined = {name: torch.cat(tensors) for name, tensors in by_view.items()}
    for name, alias in aliases.items():
        if name not in joined and alias in joined:
            joined[name] = joined[alias]
    if "online" not in joined or "target" not in joined:
        return None

    online, target, projection = joined["online"], joined["target"], joined["projection"]
    if online.shape[1] != target.shape[1]:
        raise UserError(
            f"the online branch has {online.shape[1]} dimensions and the target "
            f"{target.shape[1]}: pass the parts whose outputs the loss compares, online='...', "
            "target='...'."
        )
    n = min(len(online), len(target))
    if projection.shape[1] != target.shape[1] or len(projection) < n:
        projection = target  # a token predictor may have inputs of another shape
    positive = None
    if len(by_view["target"]) > 1:
        first_view, *other_views = by_view["target"]
        positive = torch.cat([*other_views, first_view])[:n]
    # Usually nothing is cut, and outputs that share a tensor have their moments computed once.
    if max(len(online), len(target), len(projection)) > n:
        online, target, projection = online[:n], target[:n], projection[:n]
    return Outputs(online, target, positive, projection, joined.get("hidden"), features)


def rows_by_view(calls: Calls, views: int | None) -> dict[str, list[Tensor]]:
    """Return each branch's rows by view, or in one tensor if its calls do not divide into views.

    With gradient accumulation, a step calls the parts batch by batch. The first ``views`` calls of
    each batch are its views, and small crops follow.

    >>> a1, a2, small, b1, b2 = torch.arange(5.0).reshape(5, 1, 1)
    >>> calls = {"target": [a1, a2, b1, b2], "online": [a1, a2, small, b1, b2, small]}
    >>> [[view.flatten().tolist() for view in x] for x in rows_by_view(calls, 2).values()]
    [[[0.0, 3.0], [1.0, 4.0]], [[0.0, 3.0], [1.0, 4.0]]]
    """
    target = calls.get("target", [])
    batches = count_batches(target, views) if views else 0
    by_view = {}
    for name, outputs in calls.items():
        size, rest = divmod(len(outputs), batches or 1)  # calls per batch
        if views and batches and rest == 0 and size >= views:
            by_view[name] = [torch.cat(outputs[view::size]) for view in range(views)]
        else:
            by_view[name] = [torch.cat(outputs)]
    features = by_view.get("features", [])
    if len({len(x) for x in features}) > 1:
        by_view["features"] = [torch.cat(features)]
    elif len(features) == 1 and target:
        n = sum(map(len, target))
        by_view["features"] = [features[0][:n]]  # without small crops
    return by_view


def count_batches(target: list[Tensor], views: int) -> int:
    """Return how many batches of ``views`` calls a step made.

    The result is 0 if the calls do not divide into groups of ``views`` equally long calls. Fewer
    calls than ``views`` count as one batch.
    """
    batches, rest = divmod(len(target), views)
    if batches and rest:
        return 0
    lengths = [len(call) for call in target]
    for start in range(0, len(lengths), views):
        if len(set(lengths[start : start + views])) > 1:  # not the same images
            return 0
    return max(batches, 1)


def first_tensor(output: Any) -> Tensor | None:
    """Return the first tensor in an output, which may be a tensor, a sequence or a mapping.

    >>> first_tensor({"loss": None, "tokens": (torch.ones(2), torch.zeros(3))})
    tensor([1., 1.])
    """
    if isinstance(output, Tensor):
        return output
    values: Any = ()
    if isinstance(output, Mapping):
        values = output.values()
    elif isinstance(output, (tuple, list)):
        values = output
    for value in values:
        tensor = first_tensor(value)
        if tensor is not None:
            return tensor
    return None


def views_of(part: Any, output: Any) -> list[Any]:
    """Return the output or the input of a call by view: a spectral filter takes a stack of views.

    >>> [len(view) for view in views_of(SpectralFilter("target"), torch.zeros(2, 8, 3))]
    [8, 8]
    """
    x = first_tensor(output)
    if isinstance(part, SpectralFilter) and x is not None and x.ndim == 3:
        return list(x)
    return [output]


def has_rows(output: Any) -> bool:
    """Return whether :func:`rows` accepts an output."""
    x = first_tensor(output)
    return x is not None and 2 <= x.ndim <= 4 and x.is_floating_point()


def rows(output: Any, name: str, tokens: str = "mean") -> Tensor:
    """Return the first tensor of an output as rows ``(N, k)``, without its graph.

    An image's row is the mean of its tokens ``(N, T, k)`` or of its map ``(N, k, H, W)``, because
    its tokens differ mostly by position and would count as several images. With ``tokens="rows"``
    each token is a row. Error messages contain ``name``.

    >>> images = torch.arange(12.0).reshape(2, 3, 2)
    >>> rows(images, "head").tolist(), rows(images, "head", "rows").shape
    ([[2.0, 3.0], [8.0, 9.0]], torch.Size([6, 2]))
    """
    x = first_tensor(output)
    if x is None or not has_rows(x):
        received = type(output).__name__
        if x is not None:
            received = f"{x.dtype} of shape {tuple(x.shape)}"
        raise UserError(
            f"{name} returned {received}; expected rows (N, k), tokens (N, T, k) or maps "
            "(N, k, H, W) of floating-point numbers. Name another part."
        )
    x = x.detach()
    if x.ndim == 4:
        x = x.flatten(2).mT
    if x.ndim == 2:
        return x
    if tokens == "rows":
        return x.flatten(0, 1)
    return x.mean(1, dtype=torch.promote_types(x.dtype, torch.float32))
