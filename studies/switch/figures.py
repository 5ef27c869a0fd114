"""The figures of the switch: the rank of each arm, divided by that of its unchanged run."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator
from scipy import stats

from rdm_solo import plots
from rdm_solo.plots import style
from studies.switch.effects import data_sets, differences
from studies.switch.runs import FIRST, LAST

COLUMN = "projection"  # for SwAV and DINO the same number as the outputs that the loss compares


class Panels(NamedTuple):
    """A figure: its title, and the label of each (setting, arm)."""

    title: str
    arms: Mapping[tuple[str, str], str]


FIGURES = {
    "switch_filter": Panels(
        "SimSiam while its target filter is switched",
        {
            ("power", "off"): "no filter",
            ("power", "p 0.5"): "filter σ^0.5",
            ("power", "rotated 1"): "target rotated",
            ("power", "scrambled"): "singular values shuffled",
            ("power", "covariance"): "no filter, covariance term",
            ("identity", "on"): "filter added, none before",
        },
    ),
    "switch_methods": Panels(
        "Learned predictors, SwAV and DINO",
        {
            ("SimSiam", "no predictor"): "SimSiam, no predictor",
            ("BYOL", "no predictor"): "BYOL, no predictor",
            ("BYOL", "online target"): "BYOL, no momentum",
            ("SwAV", "softmax"): "SwAV, no Sinkhorn",
            ("DINO", "no centring"): "DINO, no centring",
            ("DINO", "no sharpening"): "DINO, no sharpening",
        },
    ),
}


@style.styled
def figure(values: pd.DataFrame, panels: Panels) -> Figure:
    """Draw means over the seeds, with their 95 % intervals; the switch is shaded."""
    names = data_sets(values)
    drawing = Figure(figsize=(0.8 + 1.8 * len(names), 3.3), layout="constrained")
    axes = drawing.subplots(1, len(names), sharey=True, squeeze=False)[0]
    looks = style.looks(panels.arms.values())
    for name, ax in zip(names, axes):
        ax.axvspan(FIRST - 1, LAST, color="0.93")
        ax.axhline(0, color="0.4", linewidth=0.8)
        for (setting, arm), label in panels.arms.items():
            of_data = differences(values, setting, arm, COLUMN).xs(name, level="data")
            draw_arm(ax, of_data, looks[label])
        ax.set_title(name)
        ax.set_xlabel("epoch")
        ax.yaxis.set_major_locator(MultipleLocator(np.log(2)))
        ax.yaxis.set_major_formatter(FuncFormatter(as_ratio))
    axes[0].set_ylabel("rank / unchanged rank")
    drawing.suptitle(panels.title)
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    drawing.draw_without_rendering()  # `plots.save` expects a final layout
    return drawing


def as_ratio(logarithm: float, position: int) -> str:
    return f"{np.exp(logarithm):.3g}"


def draw_arm(ax: Axes, by_epoch: pd.DataFrame, look: style.Look) -> None:
    """Draw the mean of differences of ln rank over the epochs, with its interval."""
    n = len(by_epoch)
    mean = by_epoch.mean()
    half = by_epoch.sem() * stats.t.ppf(0.975, n - 1)
    ax.plot(by_epoch.columns, mean, **{**look, "marker": ""})
    ax.fill_between(
        by_epoch.columns, mean - half, mean + half, color=look["color"], alpha=0.15, linewidth=0
    )


def draw(values: pd.DataFrame, folder: Path) -> None:
    """Save the figures."""
    for name, panels in FIGURES.items():
        plots.save(figure(values, panels), folder, name, ("png",))
