"""Combine the recorded calls of a step into both branches' outputs."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rdm_solo.ground.errors import UserError
from rdm_solo.observe.branches import Outputs, by_view
from rdm_solo.observe.parts import ModuleObserver

Calls = Mapping[str, Sequence[Tensor]]


def outputs_of(calls: Calls, observer: ModuleObserver, views: int | None) -> Outputs | None:
    """Return a step's outputs, or None if a branch was not called.

    If one branch has more rows than the other, as with small crops for the student alone, only its
    first rows are used. ``views`` is the number of calls of the target with views of the same
    images; without it, positives are not measured.
    """
    backbone = calls.get("features")
    calls = {name: outputs for name, outputs in calls.items() if name != "features"}
    ordered = by_view(calls, views) if views and "target" in calls else None
    joined = {name: torch.cat(list(outputs)) for name, outputs in (ordered or calls).items()}
    for name, other in observer.aliases.items():
        if name not in joined and other in joined:
            joined[name] = joined[other]
    if "online" not in joined or "target" not in joined:
        return None
    online, target, projection = (joined[name] for name in ("online", "target", "projection"))
    if online.shape[1] != target.shape[1]:
        names = observer.branches
        raise UserError(
            f"the online branch ({names.online}) has {online.shape[1]} dimensions and the "
            f"target ({names.target or f'the input of {names.online}'}) {target.shape[1]}: pass "
            "the parts whose outputs the loss compares, online='...', target='...'."
        )
    n = min(len(online), len(target))
    if projection.shape[1] != target.shape[1] or len(projection) < n:
        projection = target  # a token predictor may have inputs of another shape
    positive = None
    if ordered and views and views > 1:  # the next view of the image; the last wraps around
        positive = target.roll(-(len(target) // views), 0)[:n]
    # Outputs that share a tensor still share it, so that its moments are computed once.
    first_target = target if len(target) == n else target[:n]
    first_online = first_target if online is target else online[:n]
    if projection is target:
        projection = first_target
    elif projection is online:
        projection = first_online
    else:
        projection = projection[:n]
    features = None if backbone is None else _features_by_view(backbone, calls["target"], views)
    return Outputs(first_online, first_target, positive, projection, features=features)


def _features_by_view(
    calls: Sequence[Tensor], target: Sequence[Tensor], views: int | None
) -> Sequence[Tensor]:
    """Return the backbone's outputs by view, or in one tensor with at most the target's rows."""
    ordered = by_view({"target": target, "features": calls}, views) if views else None
    if ordered and views:
        batches = len(ordered["features"]) // views
        starts = range(0, len(ordered["features"]), batches)
        features = [torch.cat(ordered["features"][start : start + batches]) for start in starts]
        if len({len(x) for x in features}) == 1:
            return features
    return [torch.cat(list(calls))[: sum(map(len, target))]]
