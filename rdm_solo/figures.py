"""Pictures of a run."""

from __future__ import annotations

import csv
from pathlib import Path

__all__ = ["draw_erank", "read_metrics"]

# Okabe and Ito's blue and vermilion: apart for the colour-blind, and in grey by their dashes.
ONLINE, TARGET = "#0072B2", "#D55E00"


def read_metrics(path: Path) -> dict[str, list[float]]:
    """The columns of a ``metrics.csv``; a value that was not measured is NaN."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    names = rows[0].keys() if rows else []
    return {name: [float(row[name] or "nan") for row in rows] for name in names}


def draw_erank(metrics: Path, out: Path, title: str) -> None:
    """Effective rank of both branches over the epochs (the paper's Figure 1)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    columns = read_metrics(metrics)
    epochs = [int(epoch) + 1 for epoch in columns["epoch"]]
    figure, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    marker = "o" if len(epochs) < 40 else None
    style = {"linewidth": 1.8, "marker": marker, "markersize": 3.5}
    axes.plot(epochs, columns["erank/target"], color=TARGET, label="target", **style)
    axes.plot(epochs, columns["erank/online"], color=ONLINE, ls="--", label="online", **style)
    axes.set(xlabel="epoch", ylabel="effective rank", title=title)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    plt.close(figure)
