"""Filter curves and spectra over epochs, for the loggers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

PICTURE = "pictures/spectra"

# W&B's charts, which have a line per epoch: the array that is drawn, and the title.
CHARTS = {
    "filter_curve": "filter g by index, sorted eigenvalues",
    "filter_curve_directional": "filter g by index, along the target's eigenvectors",
    "ideal_filter": "ideal filter by index",
    "lam_online": "log10 of the online branch's eigenvalues",
    "lam_target": "log10 of the target branch's eigenvalues",
}
LINES = 8  # epochs in a chart
POINTS = 100  # in a line, evenly spaced on a logarithmic axis; W&B draws at most 10,000 rows


def draw(history: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Return W&B's charts by key, each with a line for the first, the last and some other epochs.

    ``history`` has the arrays of each epoch, counted from 1, as in a run's ``spectra`` folder.
    """
    import wandb

    drawn: dict[str, Any] = {}
    for name, title in CHARTS.items():
        epochs = [epoch for epoch in sorted(history) if name in history[epoch]]
        picked = np.linspace(0, len(epochs) - 1, min(LINES, len(epochs))).round().astype(int)
        lines = [_line(history[epochs[i]][name], name.startswith("lam_")) for i in picked]
        if any(x for x, _ in lines):
            drawn[f"charts/{name}"] = wandb.plot.line_series(
                xs=[x for x, _ in lines],
                ys=[y for _, y in lines],
                keys=[f"epoch {epochs[i]}" for i in picked],
                title=title,
                xname="index i",
            )
    return drawn


def histograms(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the logarithms of an epoch's eigenvalues, by the names of their histograms.

    >>> histograms({"lam_online": np.array([100.0, 0.0]), "rows": np.array(64)})
    {'spectra/log10_online': array([2.])}
    """
    return {
        name.replace("lam_", "spectra/log10_"): np.log10(values[values > 0])
        for name, values in arrays.items()
        if name.startswith("lam_") and (values > 0).any()
    }


def _line(values: np.ndarray, logarithmic: bool) -> tuple[list[int], list[float]]:
    """Return thinned indices (from 1) and values, without those that were not measured."""
    places = np.unique(np.geomspace(1, len(values), POINTS).round().astype(int)) - 1
    kept = values[places]
    drawn = np.isfinite(kept) & ((kept > 0) | (not logarithmic))
    points = np.log10(kept[drawn]) if logarithmic else kept[drawn]
    return (places[drawn] + 1).tolist(), points.astype(float).tolist()
