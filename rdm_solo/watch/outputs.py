"""Both branches' outputs of a step, from what each call of their parts gave."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rdm_solo.callbacks.branches import ByParts, Outputs

Calls = Mapping[str, Sequence[Tensor]]


def outputs_of(calls: Calls, observer: ByParts, views: int | None) -> Outputs | None:
    """A step's outputs; None where a branch was not called.

    The target's calls are views of the same images where the user says so by ``views``, and their
    number is a multiple of it: the calls of a step then come batch by batch. Else there are no
    positives. Where a branch has more rows than the other, as with small crops that the student
    alone sees, its first ones count.
    """
    whole = {name: torch.cat(list(each)) for name, each in calls.items()}
    for name, other in observer.same.items():
        if name not in whole and other in whole:
            whole[name] = whole[other]
    if "online" not in whole or "target" not in whole:
        return None
    online, target = whole["online"], whole["target"]
    if online.shape[1] != target.shape[1]:
        names = observer.branches
        raise ValueError(
            f"the online branch ({names.online}) has {online.shape[1]} numbers a row and the "
            f"target ({names.target or f'the input of {names.online}'}) {target.shape[1]}: name "
            "the two outputs that the loss compares, online='...', target='...'."
        )
    n = min(len(online), len(target))
    cut = {id(x): x[:n] for x in whole.values()}  # one tensor stays one
    projection = whole["projection"]
    if projection.shape[1] != target.shape[1] or len(projection) < n:
        projection = target  # a predictor of tokens may take others than it gives
    positive = _next_views(calls["target"], views)
    return Outputs(
        cut[id(online)],
        cut[id(target)],
        None if positive is None else positive[:n],
        cut[id(projection)],
    )


def _next_views(calls: Sequence[Tensor], views: int | None) -> Tensor | None:
    """For each row the same image's in the next view, the last view followed by the first; None
    where that is not known.

    >>> _next_views([torch.tensor([[1.0]]), torch.tensor([[2.0]])], 2).tolist()
    [[2.0], [1.0]]
    """
    if not views or views < 2 or len(calls) % views:
        return None
    groups = [calls[i : i + views] for i in range(0, len(calls), views)]
    if any(len({len(view) for view in group}) > 1 for group in groups):
        return None
    return torch.cat([view for group in groups for view in (*group[1:], group[0])])
