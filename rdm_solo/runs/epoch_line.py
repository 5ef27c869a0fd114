"""Format the log line of an epoch."""

import math
from collections.abc import Mapping

LEGEND = "erank: effective rank, online < target; features: that of the backbone's features"
ACCURACIES = {"val/knn_acc1": "kNN", "val/acc1": "acc"}
PROGRESS_COLUMNS = {"train/loss", "erank/online", "erank/target", *ACCURACIES}


def epoch_line(
    epoch: int,
    epochs: int | None,
    values: Mapping[str, float],
    seconds: float,
    verdict: str = "",
    is_best: bool = False,
) -> str:
    """Format an epoch's log line from its finite values; epoch 0 is the untrained network.

    ``is_best`` marks the highest kNN accuracy so far.

    >>> values = {"train/loss": -0.8, "erank/online": 4.1, "erank/target": 6.2, "val/acc1": 91.0}
    >>> epoch_line(3, 30, values, 1.4)
    'epoch 3/30: loss -0.800, erank 4.1 < 6.2, acc 91.0, 1.4 s'
    >>> epoch_line(3, None, {"val/knn_acc1": 55.0}, 1.4, verdict="alive", is_best=True)
    'epoch 3: kNN 55.0 (best), 1.4 s, alive'
    """
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    words = []
    if "train/loss" in finite:
        words.append(f"loss {finite['train/loss']:.3f}")
    if "erank/online" in finite and "erank/target" in finite:
        online = round(finite["erank/online"], 1)
        target = round(finite["erank/target"], 1)
        sign = "="
        if online != target:
            sign = "<" if online < target else ">"
        words.append(f"erank {online:.1f} {sign} {target:.1f}")
    if "erank/features" in finite:
        words.append(f"features {finite['erank/features']:.1f}")
    for name, word in ACCURACIES.items():
        if name in finite:
            words.append(f"{word} {finite[name]:.1f}")
            if is_best and name == "val/knn_acc1":
                words[-1] += " (best)"
    if epoch == 0:
        return f"before training: {', '.join(words)}"
    words.append(f"{seconds:.1f} s")
    if verdict:
        words.append(verdict)
    total = "" if epochs is None else f"/{epochs}"
    return f"epoch {epoch}{total}: {', '.join(words)}"
