"""Both branches' outputs of a step, from what each call of their parts gave."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rdm_solo.callbacks.branches import ByParts, Outputs
from rdm_solo.messages import UserError

Calls = Mapping[str, Sequence[Tensor]]


def outputs_of(calls: Calls, observer: ByParts, views: int | None) -> Outputs | None:
    """A step's outputs; None where a branch was not called.

    Where a branch has more rows than the other, as with small crops that the student alone sees,
    its first ones count. There are positives where the user says how many ``views`` of the same
    images the target is called with (:func:`by_view`).
    """
    ordered = by_view(calls, views) if views and "target" in calls else None
    whole = {name: torch.cat(list(each)) for name, each in (ordered or calls).items()}
    for name, other in observer.same.items():
        if name not in whole and other in whole:
            whole[name] = whole[other]
    if "online" not in whole or "target" not in whole:
        return None
    online, target = whole["online"], whole["target"]
    if online.shape[1] != target.shape[1]:
        names = observer.branches
        raise UserError(
            f"the online branch ({names.online}) has {online.shape[1]} numbers a row and the "
            f"target ({names.target or f'the input of {names.online}'}) {target.shape[1]}: name "
            "the two outputs that the loss compares, online='...', target='...'."
        )
    n = min(len(online), len(target))
    projection = whole["projection"]
    if projection.shape[1] != target.shape[1] or len(projection) < n:
        projection = target  # a predictor of tokens may take others than it gives
    positive = None
    if ordered and views and views > 1:  # of each row the next view's, of the last the first's
        positive = target.roll(-(len(target) // views), 0)
    cut = {id(x): x if len(x) == n else x[:n] for x in (online, target, projection)}
    return Outputs(
        cut[id(online)],
        cut[id(target)],
        None if positive is None else positive[:n],
        cut[id(projection)],
    )


def by_view(calls: Calls, views: int) -> dict[str, list[Tensor]] | None:
    """The calls in the order of their views: those with the first view of each batch, then those
    with the second. None where the calls do not say which these are.

    In a step of several batches, as with accumulated gradients, calls come batch by batch, the
    first ``views`` of each with its views.

    >>> a1, a2, small, b1, b2 = torch.arange(5.0).reshape(5, 1, 1)
    >>> calls = {"target": [a1, a2, b1, b2], "online": [a1, a2, small, b1, b2, small]}
    >>> [[int(x) for x in each] for each in by_view(calls, 2).values()]
    [[0, 3, 1, 4], [0, 3, 1, 4]]
    """
    batches, rest = divmod(len(calls["target"]), views)
    if rest or not batches:
        return None
    ordered = {}
    for name, each in calls.items():
        size, rest = divmod(len(each), batches)
        if rest or size < views:
            return None
        starts = range(0, len(each), size)
        ordered[name] = [each[start + view] for view in range(views) for start in starts]
    rows = [len(call) for call in ordered["target"]]
    return ordered if rows == rows[:batches] * views else None
